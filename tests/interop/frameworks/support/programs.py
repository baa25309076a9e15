"""A Java program of these tests. It says "up ..." once it works, and ends when its standard input does."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.interop import java_project

UP_S: Final = 240.0
ENDS_S: Final = 240.0
LOGS: Final = "-Dorg.slf4j.simpleLogger."
PROJECTS: Final = Path(__file__).parents[1]


class Program:
    """Killed at the end of its `with`, where it still runs. Its standard error goes to a file."""

    def __init__(self, project: str, arguments: Sequence[str], log: Path) -> None:
        """A class of one of the projects, and its arguments."""
        logs = (f"{LOGS}defaultLogLevel=warn", f"{LOGS}showDateTime=true", f"{LOGS}dateTimeFormat=HH:mm:ss.SSS")
        self._command = [*java_project.built(PROJECTS / project), *logs, *arguments]
        self._log = log
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self.kill()

    def begin(self) -> None:
        """Start it, and do not wait."""
        assert self._process is None, "it runs"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )

    def is_up(self) -> str:
        """Wait until it works; the rest of the line that says so."""
        process = self._running
        assert process.stdout is not None
        limit = threading.Timer(UP_S, process.kill)
        limit.start()
        line = process.stdout.readline()
        limit.cancel()
        word, _, told = line.strip().partition(" ")
        assert word == "up", f"it said {line!r}:\n{self.story()}"
        return told

    def start(self) -> str:
        """`begin`, and wait as `is_up`."""
        self.begin()
        return self.is_up()

    def kill(self) -> None:
        """SIGKILL."""
        process, self._process = self._running, None
        process.kill()
        with process:
            pass

    def pause(self) -> None:
        """SIGSTOP: it does nothing more, and does not know."""
        self._running.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        self._running.send_signal(signal.SIGCONT)

    def end(self) -> None:
        """Tell it to end; it must do so, and well."""
        process, self._process = self._running, None
        with process:
            assert process.stdin is not None
            process.stdin.close()
            try:
                code = process.wait(ENDS_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        assert code == 0, f"it ended with {code}:\n{self.story()}"

    def story(self) -> str:
        """The end of its log, and whether it runs."""
        code = None if self._process is None else self._process.poll()
        return f"{'it runs' if code is None else f'it ended with {code}'}\n{self._log.read_text()[-4000:]}"

    @property
    def _running(self) -> subprocess.Popen[str]:
        assert self._process is not None, "it runs"
        return self._process
