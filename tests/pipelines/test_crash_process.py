"""A pipeline's process is left, whoever of its children goes on and holds its output."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.pipelines import crash
from tests.pipelines.crash import PipelineProcess

LEAVES_A_CHILD = """
import pathlib, subprocess, sys
pathlib.Path(sys.argv[1]).write_text(str(subprocess.Popen(["sleep", "1000"]).pid))
"""


def test_a_child_that_outlives_the_driver_is_ended_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    popen = subprocess.Popen
    told = tmp_path / "pid"

    def other(_: object, **more: object) -> object:
        return popen([sys.executable, "-c", LEAVES_A_CHILD, str(told)], **more)  # type: ignore[call-overload]

    monkeypatch.setattr(subprocess, "Popen", other)
    with PipelineProcess(tmp_path / "none.toml", tmp_path / "log") as running:
        running.process.wait(crash.WAIT_S)
        child = psutil.Process(int(told.read_text()))
        monkeypatch.setattr(crash, "WAIT_S", 0.1)
        with pytest.raises(AssertionError, match="goes on"):
            running.wait()
    psutil.wait_procs([child], 60)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
