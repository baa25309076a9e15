"""The demo's broker: `headrace up` as a process of its own, on a free port, in a directory of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from headrace.base.errors import HeadraceError

READY_SECONDS_MAX = 30.0
STOP_SECONDS_MAX = 30.0
SIGNALLED = 128
"""Exit code, less the signal's number, of a process that a signal ended."""


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """While the block runs, SIGTERM and SIGHUP end it as an exception does, so that what it started is stopped."""

    def on_signal(number: int, _: FrameType | None) -> None:
        raise SystemExit(SIGNALLED + number)

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class BrokerProcess:
    """A broker that runs from `start` to `stop`. Its standard error is in `log`."""

    def __init__(self, process: subprocess.Popen[str], bootstrap: str, log: Path) -> None:
        self._process = process
        self.bootstrap = bootstrap
        self.log = log

    @property
    def pid(self) -> int:
        return self._process.pid

    @classmethod
    def start(cls, data: Path, store_url: str, log: Path) -> BrokerProcess:
        """Start it and wait until it serves. Raises HeadraceError."""
        command = [sys.executable, "-m", "headrace.cli.main", "up"]
        command += ["--data", str(data), "--listen", "127.0.0.1:0", "--durable", store_url]
        with log.open("wb") as errors:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        impatient = threading.Timer(READY_SECONDS_MAX, process.kill)
        impatient.start()
        try:
            assert process.stdout is not None
            word, _, bootstrap = process.stdout.readline().strip().partition(" ")
        except BaseException:
            process.kill()
            process.wait()
            raise
        finally:
            impatient.cancel()
        if word != "ready":
            process.kill()
            process.wait()
            process.stdout.close()
            raise HeadraceError(f"The broker did not start ({_last_line(log)}); its log is {log}.")
        return cls(process, bootstrap, log)

    def check(self) -> None:
        """Raises HeadraceError where it has ended by itself."""
        if (code := self._process.poll()) is not None:
            raise HeadraceError(f"The broker ended with exit code {code} ({_last_line(self.log)}); see {self.log}.")

    def stop(self) -> int:
        """Stop it in an orderly way, and by force where it does not; its exit code. Idempotent."""
        self._process.terminate()
        try:
            return self._process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()
        finally:
            if self._process.stdout is not None:
                self._process.stdout.close()

    def leave(self) -> None:
        """Let it run on after this process."""
        if self._process.stdout is not None:
            self._process.stdout.close()


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else "it said nothing"
