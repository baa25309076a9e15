"""A reader that is there before its records."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence


def printed_while(bootstrap: str, arguments: Sequence[str], write: Callable[[], None]) -> str:
    """The output of a command that is started before `write` is called."""
    command = [sys.executable, "-m", "headrace.cli.main", *arguments]
    environment = {**os.environ, "HEADRACE_BOOTSTRAP": bootstrap}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as reader:
        try:
            write()
            return reader.communicate(timeout=150)[0]
        finally:
            reader.kill()
