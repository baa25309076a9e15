"""A server by others, as a process on loopback: started, paused, killed, and started again at the port that it had."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import weakref
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import SystemRandom
from types import TracebackType
from typing import Final, Self

from headrace.broker.home.ports import HeldPorts

START_TIMEOUT_S: Final = 60.0
LOOK_EVERY_S: Final = 0.01
STARTS_MAX: Final = 5
"""With a port each: another may have taken the first meanwhile."""


class ServerProcess(ABC):
    """A server in a directory of its own, in which it runs. Its output goes to a file there."""

    def __init__(self, directory: Path, log_name: str) -> None:
        self.directory: Final = directory
        self.port = 0
        """The port of loopback, once started."""
        self._log_path: Final = directory / log_name
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def command(self, port: int) -> tuple[Sequence[str], Mapping[str, str]]:
        """Return the command, and the environment variables that it has besides ours."""

    def accepts(self, port: int) -> bool:
        """Whether it accepts connections."""
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    @property
    def pid(self) -> int:
        assert self._process is not None, "it runs"
        return self._process.pid

    def start(self) -> None:
        """Start it at the port that it had before, if any, and wait until it accepts connections. Raises AssertionError
        with the end of its log where it does not."""
        for _ in range(STARTS_MAX):
            port = self.port or port_held_for(self)
            if self._started(port):
                self.port = port
                return
        raise AssertionError(f"{type(self).__name__} does not start:\n{self.log()[-2000:]}")

    def pause(self) -> None:
        """Send SIGSTOP: it takes connections and answers nobody."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Send SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """Send SIGKILL, and wait for its end."""
        assert self._process is not None, "it runs"
        self._process.kill()
        self._process.wait()
        self._process = None

    def log(self) -> str:
        return self._log_path.read_text(errors="replace") if self._log_path.exists() else ""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._process is not None:
            self.kill()

    def _started(self, port: int) -> bool:
        command, environment = self.command(port)
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                env={**os.environ, **environment},
            )
        for _ in range(int(START_TIMEOUT_S / LOOK_EVERY_S)):
            try:
                self._process.wait(LOOK_EVERY_S)
            except subprocess.TimeoutExpired:
                if self.accepts(port):
                    return True
            else:
                self._process = None
                return False
        self.kill()
        return False


def port_held_for(owner: object) -> int:
    """Return a port of loopback that no other program takes while the owner is there."""
    held = HeldPorts.free("127.0.0.1", 1, SystemRandom())
    weakref.finalize(owner, held.release)
    return held.numbers[0]
