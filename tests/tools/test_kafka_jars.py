"""Processes of tests that run side by side let Maven run once at a time."""

from __future__ import annotations

import fcntl

import pytest

from tools import kafka_jars


def test_others_are_kept_out_while_maven_runs() -> None:
    with kafka_jars.maven_alone(), kafka_jars.LOCK.open("w") as another, pytest.raises(BlockingIOError):
        fcntl.flock(another, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with kafka_jars.maven_alone():
        pass  # it is let go of
