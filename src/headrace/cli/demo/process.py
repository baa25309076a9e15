"""The demo's broker: `headrace up` as a process of its own, on a free port, in a directory of its own."""

from __future__ import annotations

import asyncio
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
    """While the block runs, SIGINT, SIGTERM and SIGHUP end it as an exception does, so that its processes are stopped.

    The exit code names the signal, whatever a library in between makes of the exception. For example, confluent-kafka
    turns one that meets it in a callback into a SystemError. An event loop would be left in the midst of its work, so
    there the tasks are cancelled instead.
    """
    received: list[int] = []

    def on_signal(number: int, _: FrameType | None) -> None:
        received.append(number)
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise SystemExit(SIGNALLED + number) from None
        loop.call_soon_threadsafe(_cancel_all, loop)

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    except BaseException:
        if received:
            raise SystemExit(SIGNALLED + received[0]) from None
        raise
    else:
        if received:
            raise SystemExit(SIGNALLED + received[0])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _cancel_all(loop: asyncio.AbstractEventLoop) -> None:
    for task in asyncio.all_tasks(loop):
        task.cancel()


class BrokerProcess:
    """A broker that runs from `start` to `stop`. Its standard error is in `log`.

    It is made before it is started, so that its owner can arrange its end before there is anything to end.
    """

    def __init__(self, data: Path, store_url: str, log: Path, engine: str = "local") -> None:
        self.log = log
        self.bootstrap = ""
        """The address where it serves, once started."""
        self._process: subprocess.Popen[str] | None = None
        self._command = [sys.executable, "-m", "headrace.cli.main", "up"]
        self._command += ["--data", str(data), "--listen", "127.0.0.1:0", "--durable", store_url]
        self._command += ["--engine", engine]

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it and wait until it serves. Raises HeadraceError."""
        with self.log.open("wb") as errors:
            self._process = process = subprocess.Popen(
                self._command,
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
            word, _, self.bootstrap = process.stdout.readline().strip().partition(" ")
            if word == "redis":  # its own server's address comes first
                word, _, self.bootstrap = process.stdout.readline().strip().partition(" ")
        finally:
            impatient.cancel()
        if word != "ready":
            process.kill()
            self.stop()
            raise HeadraceError(f"The broker did not start ({_last_line(self.log)}); its log is {self.log}.")

    def check(self) -> None:
        """Raises HeadraceError where it has ended by itself."""
        assert self._process is not None
        if (code := self._process.poll()) is not None:
            raise HeadraceError(f"The broker ended with exit code {code} ({_last_line(self.log)}); see {self.log}.")

    def stop(self) -> int:
        """Stop it in an orderly way, or by force where it does not stop. Returns its exit code. Idempotent."""
        process = self._process
        if process is None:
            return 0
        process.terminate()
        try:
            return process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()
        finally:
            self.leave()

    def leave(self) -> None:
        """Let it continue to run after this process."""
        if self._process is not None and self._process.stdout is not None:
            self._process.stdout.close()


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else "it said nothing"
