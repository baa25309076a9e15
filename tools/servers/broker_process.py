"""A Headrace broker as a process of its own, started through the command line as its users start it (or see `warm`)."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from headrace.base.ids import BrokerId
from headrace.broker.home.identity import load_or_create
from headrace.storage.disk import LocalDisk
from tools import engine_under_test, warm

START_TIMEOUT_S: Final = 120.0
STOP_TIMEOUT_S: Final = 60.0


class BrokerProcess:
    """`headrace up` over one data directory; it can be killed and started again over what it left.

    Standard error goes to `broker.log` beside the data, which a failing start names.
    """

    def __init__(
        self, directory: Path, *options: str, broker_id: int | None = None, stop_timeout_s: float = STOP_TIMEOUT_S
    ) -> None:
        """With `broker_id`, it is born under that id, which `headrace up` leaves nobody to choose."""
        self.data = directory / "data"
        self.log = directory / "broker.log"
        self.bootstrap = "127.0.0.1:0"
        self._options = options
        self._role = ["up"]
        if broker_id is not None:
            self.data.mkdir(parents=True)
            if not engine_under_test.is_redis():
                load_or_create(LocalDisk(), self.data, BrokerId(broker_id), random.SystemRandom())
            self._role = ["broker", "--id", str(broker_id)]
        self._stop_timeout_s = stop_timeout_s
        self._process: subprocess.Popen[str] | warm.WarmProcess | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, "the broker is started before it is asked for its pid"
        return self._process.pid

    def start(self) -> None:
        """Start it on the port that it had before, if any, and wait for its `ready` line."""
        program = Path(sys.executable).with_name("headrace")
        at = () if any(each.startswith("listeners=") for each in self._options) else ("--listen", self.bootstrap)
        arguments = [*self._role, "--data", str(self.data), *at, *self._options]
        arguments += engine_under_test.options(self.data)
        with self.log.open("ab") as log:
            if warm.is_on():
                self._process = warm.WarmProcess(arguments, stderr=log)
            else:
                command = [str(program), *arguments]
                self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        self.bootstrap = self._address(self._process)

    def kill(self) -> None:
        """SIGKILL, by pid: nothing of the process runs afterwards."""
        os.kill(self.pid, signal.SIGKILL)
        self._reap()

    def stop(self) -> int:
        """SIGTERM, and the exit status of the clean stop that it asks for."""
        if self._process is None:
            return 0
        self._process.terminate()
        try:
            return self._reap()
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def _address(self, process: subprocess.Popen[str] | warm.WarmProcess) -> str:
        assert process.stdout is not None
        overdue = threading.Timer(START_TIMEOUT_S, process.kill)
        overdue.start()
        line = process.stdout.readline()
        if line.startswith("redis "):
            line = process.stdout.readline()
        overdue.cancel()
        word, _, address = line.strip().partition(" ")
        if word != "ready":
            process.kill()
            self._reap()
            raise AssertionError(f"`headrace up` said {line!r}, not `ready HOST:PORT`:\n{self.log.read_text()[-4000:]}")
        return address

    def _reap(self) -> int:
        assert self._process is not None
        status = self._process.wait(self._stop_timeout_s)
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._process = None
        return status
