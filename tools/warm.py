"""Processes of the command `headrace` that begin with everything imported: forked from one that did nothing else.

The imports take most of a broker's start, and tests start hundreds. A forked broker is a process of its own from then
on. It has its own memory, files, threads and signals, and it ends as any other. The long tier and the benchmarks fork
nothing (`IS_ON`), so that there each broker is an interpreter of its own.
"""

from __future__ import annotations

import atexit
import faulthandler
import gc
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotInTime
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules
from typing import IO, Any, Final, Self

from headrace.base.garbage import spare_the_collector

IS_ON: Final = "HEADRACE_WARM_STARTS"
"""Environment variable: "1" where brokers of tests are forked."""
COMMAND: Final = (sys.executable, "-m", "headrace.cli.main")
"""A forked process does what this command does with the same arguments."""
OF_OPTIONS: Final = ("typer._adapters", "uvloop")
"""With the first option Typer imports Pydantic, where it has such a module, which takes 50 ms."""
STREAMS: Final = (0, 1, 2)
REQUEST_BYTES_MAX: Final = 1 << 20
ENDS_S: Final = 60.0


class WarmProcess:
    """As `subprocess.Popen` of COMMAND and arguments, as far as tests need it. Its parent is the forking process."""

    def __init__(self, arguments: Sequence[str], *, stdout: int | None = None, stderr: IO[Any]) -> None:
        """Standard input is at its end. Without the descriptor `stdout`, the attribute has its standard output."""
        reads, writes = os.pipe()
        self.stdout = os.fdopen(reads)
        self.ended: Future[int] = Future()
        """The exit code, negative for a signal."""
        try:
            with Path(os.devnull).open("rb") as nothing:
                files = (nothing.fileno(), writes if stdout is None else stdout, stderr.fileno())
                self.pid = _forks().start(_wanted(arguments), files, self.ended)
        except BaseException:
            self.stdout.close()
            raise
        finally:
            os.close(writes)

    def poll(self) -> int | None:
        return self.ended.result() if self.ended.done() else None

    def wait(self, timeout: float | None = None) -> int:
        """Raises subprocess.TimeoutExpired."""
        try:
            return self.ended.result(timeout)
        except NotInTime:
            raise subprocess.TimeoutExpired(f"pid {self.pid}", timeout or 0.0) from None

    def send_signal(self, number: int) -> None:
        if not self.ended.done():
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Piped(WarmProcess):
    """As `subprocess.Popen` with pipes of text for what it writes. A context manager."""

    def __init__(self, arguments: Sequence[str]) -> None:
        reads, writes = os.pipe()
        self.stderr = os.fdopen(reads)
        with os.fdopen(writes, "w") as errors:
            super().__init__(arguments, stderr=errors)

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """The rest of what it writes until its end. The pipes are closed then."""
        with ThreadPoolExecutor(2) as reader:
            rest = [reader.submit(_rest_of, pipe) for pipe in (self.stdout, self.stderr)]
            try:
                self.wait(timeout)
            except subprocess.TimeoutExpired:
                self.kill()  # nobody else would end the readers
                raise
            told, errors = (each.result() for each in rest)
        return told, errors

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stdout.close()
        self.stderr.close()
        self.wait()


def _rest_of(pipe: IO[str]) -> str:
    if pipe.closed:
        return ""
    with pipe:
        return pipe.read()


def begun(*arguments: str) -> subprocess.Popen[str] | Piped:
    """Start COMMAND with pipes of text for what it writes; forked where that is on."""
    if is_on():
        return Piped(arguments)
    return subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def is_on() -> bool:
    return os.environ.get(IS_ON) == "1"


def ran(*arguments: str, timeout: float) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run` of COMMAND and arguments, with its output as text; forked where that is on.

    Raises subprocess.TimeoutExpired.
    """
    if not is_on():
        command = [*COMMAND, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout)
    with tempfile.TemporaryFile("w+") as said, ThreadPoolExecutor(1) as reader:
        process = WarmProcess(arguments, stderr=said)
        output = reader.submit(_rest_of, process.stdout)
        try:
            code = process.wait(timeout)
        finally:
            process.kill()  # the end of its output, too
        told = output.result()
        said.seek(0)
        return subprocess.CompletedProcess(arguments, code, told, said.read())


class ForksEndedError(RuntimeError):
    """The process that forks others is gone, and with it the one that was asked for."""


class _Forks:
    """The forking process, as seen by the one that asks."""

    def __init__(self) -> None:
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tools.warm", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        self._turn = threading.Lock()
        self._asked: list[tuple[Future[int], Future[int]]] = []
        self._running: dict[int, Future[int]] = {}
        self._listener = threading.Thread(target=self._listen, name="ends of forked brokers", daemon=True)
        self._listener.start()
        atexit.register(self._close)

    def start(self, wanted: Mapping[str, Any], files: Sequence[int], ended: Future[int]) -> int:
        """The pid. `wanted`: as `_wanted` has it. `files`: its standard streams."""
        pid: Future[int] = Future()
        with self._turn:
            self._asked.append((pid, ended))
            try:
                socket.send_fds(self._ours, [json.dumps(wanted).encode()], files)
            except OSError:
                self._asked.pop()  # or the next one would be told its pid
                raise
        return pid.result()

    def _listen(self) -> None:
        while told := self._ours.recv(REQUEST_BYTES_MAX):
            pid, code = json.loads(told)
            if code is None:
                begun, self._running[pid] = self._asked.pop(0)
                begun.set_result(pid)
            else:
                self._running.pop(pid).set_result(code)
        for pending in (*(begun for begun, _ in self._asked), *self._running.values()):
            pending.set_exception(ForksEndedError("the process that forks brokers has ended"))

    def _close(self) -> None:
        self._ours.shutdown(socket.SHUT_RDWR)
        self._listener.join(ENDS_S)
        self._ours.close()
        self._process.wait(ENDS_S)


class Door:
    """A Unix socket at which shells have commands forked: tools/forked.py asks there. A context manager; at its end it
    kills the commands that somebody still waits for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._running: dict[int, Future[int]] = {}

    def __enter__(self) -> Self:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.bind(str(self.path))
        self._socket.listen()
        self._listener = threading.Thread(target=self._listen, name="door of commands", daemon=True)
        self._listener.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._listener.join(ENDS_S)
        self._socket.close()
        for pid, ended in [*self._running.items()]:
            if not ended.done():
                os.kill(pid, signal.SIGKILL)

    def _listen(self) -> None:
        with suppress(OSError):  # it is closed
            while True:
                asking, _ = self._socket.accept()
                threading.Thread(target=self._serve, args=[asking], daemon=True).start()

    def _serve(self, asking: socket.socket) -> None:
        """Tell the pid, and at its end the exit code."""
        ended: Future[int] = Future()
        with asking, suppress(OSError, ForksEndedError):  # one of them is gone; whoever asks sees the end of the socket
            request, files, _, _ = socket.recv_fds(asking, REQUEST_BYTES_MAX, len(STREAMS))
            try:
                wanted = json.loads(request)
                pid = _forks().start(wanted, files, ended)
            finally:
                for file in files:
                    os.close(file)
            if not wanted["is_apart"]:
                self._running[pid] = ended
            asking.send(b"%d" % pid)
            asking.send(b"%d" % ended.result())
            self._running.pop(pid, None)


_made: list[_Forks] = []
_making: Final = threading.Lock()


def _forks() -> _Forks:
    with _making:
        if not _made:
            _made.append(_Forks())
        return _made[0]


def _serve(channel: socket.socket) -> None:
    """Fork for each request, and tell of each end, until the other side is gone. In a child this ends with its work."""
    gc.disable()
    import headrace.cli.main as command
    from headrace.broker.boot import load_ahead

    for name in _needed():
        import_module(name)
    load_ahead()
    gc.collect()
    gc.freeze()
    gc.enable()
    spare_the_collector()
    woken, wakes = socket.socketpair()
    for each in (woken, wakes):
        each.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
    with selectors.DefaultSelector() as selector:
        selector.register(channel, selectors.EVENT_READ)
        selector.register(woken, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is woken:
                    woken.recv(4096)
                    _tell_ends(channel)
                    continue
                request, files, _, _ = socket.recv_fds(channel, REQUEST_BYTES_MAX, len(STREAMS))
                if not request:
                    return
                if (pid := os.fork()) == 0:
                    break
                for file in files:
                    os.close(file)
                _tell(channel, pid, None)
            else:
                continue
            break
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for each in (channel, woken, wakes):
        each.close()
    code = command.main(_become(json.loads(request), files))
    gc.freeze()  # as where a command is all of its process
    sys.exit(code)


def _needed() -> Iterator[str]:
    """Modules that a command imports only once it is known, or once it reads its options."""
    for package in ("headrace.cli", "headrace.cli.settings", "headrace.cli.work", "headrace.net.client"):
        yield from (each.name for each in iter_modules(import_module(package).__path__, f"{package}."))
    yield "headrace.net.loops"
    yield from (name for name in OF_OPTIONS if find_spec(name) is not None)


def _wanted(arguments: Sequence[str]) -> dict[str, Any]:
    return {"arguments": arguments, "environment": dict(os.environ), "directory": os.getcwd(), "is_apart": False}


def _become(wanted: dict[str, Any], files: Sequence[int]) -> list[str]:
    """Take over streams, environment and directory of the one that asked; the arguments. `is_apart`: begin a session,
    as with setsid(1)."""
    for stream, file in zip(STREAMS, files, strict=True):
        os.dup2(file, stream)
        os.close(file)
    if wanted["is_apart"]:
        os.setsid()
    faulthandler.register(signal.SIGUSR1)  # a test that waits in vain asks where it stands
    os.environ.clear()
    os.environ.update(wanted["environment"])
    os.chdir(wanted["directory"])
    sys.argv = ["headrace", *wanted["arguments"]]
    return list(wanted["arguments"])


def _tell_ends(channel: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        _tell(channel, pid, os.waitstatus_to_exitcode(status))


def _tell(channel: socket.socket, pid: int, code: int | None) -> None:
    """`code`: of one that has ended; None of one that has begun."""
    channel.send(json.dumps([pid, code]).encode())


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as end:
        _serve(end)
