"""Fixtures of commands about settings."""

from __future__ import annotations

from tests.cli.test_commands import headrace

__all__ = ["headrace"]
