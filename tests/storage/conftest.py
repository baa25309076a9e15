"""Tests of logs have their directories on the disk."""

from __future__ import annotations

from tests.disk import tmp_path

__all__ = ["tmp_path"]
