"""An S3-compatible server by others, for tests: versitygw, built by Go, or s3proxy, fetched by Maven.

`python -m tools.s3_server` installs one of them in a directory that git ignores, at a pinned version. It always
succeeds: if neither can be installed, the reason is kept there, and tests skip with it. Tests fetch nothing themselves.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Final, Self

ROOT: Final = Path(__file__).resolve().parent.parent
PLACE: Final = ROOT / ".venv" / "s3"
POM: Final = Path(__file__).resolve().parent / "s3proxy" / "pom.xml"
VERSITYGW: Final = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
PROGRAM: Final = PLACE / "versitygw"
JARS: Final = PLACE / "s3proxy"
REASON: Final = PLACE / "REASON"
FETCH_TIMEOUT_S: Final = 300.0
START_TIMEOUT_S: Final = 30.0
LOOK_EVERY_S: Final = 0.02
STARTS_MAX: Final = 3
"""With a port each: another may have taken the first meanwhile."""
BUCKET: Final = "history"


def main() -> int:
    """Bring a server here, unless one is."""
    PLACE.mkdir(parents=True, exist_ok=True)
    if missing() is None:
        return 0
    failures = [failure for bring in (_build, _fetch) if missing() is not None and (failure := bring()) is not None]
    if missing() is None:
        REASON.unlink(missing_ok=True)
    else:
        REASON.write_text("; ".join(failures))
        print(f"no S3-compatible server for tests: {REASON.read_text()}", file=sys.stderr)
    return 0


def missing() -> str | None:
    """Why there is no server, in a few words; None where there is one."""
    if PROGRAM.exists() or (JARS.is_dir() and shutil.which("java") is not None):
        return None
    return REASON.read_text() if REASON.exists() else "'make test' brings it: python -m tools.s3_server"


def _build() -> str | None:
    if shutil.which("go") is None:
        return "there is no go on the PATH"
    print(f"building {VERSITYGW}", flush=True)
    return _ran(["go", "install", VERSITYGW], {"GOBIN": str(PLACE)})


def _fetch() -> str | None:
    if shutil.which("mvn") is None or shutil.which("java") is None:
        return "there is no java and mvn on the PATH"
    partial = JARS.with_name("s3proxy.partial")
    shutil.rmtree(partial, ignore_errors=True)
    goal = ["dependency:copy-dependencies", f"-DoutputDirectory={partial}"]
    failure = _ran(["mvn", "-q", "-B", "-Dstyle.color=never", "-f", str(POM), *goal], {})
    if failure is None:
        partial.rename(JARS)
    return failure


def _ran(command: list[str], environment: dict[str, str]) -> str | None:
    """Why it failed, in a few words; None where it did not."""
    try:
        subprocess.run(
            command, env=os.environ | environment, check=True, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S
        )
    except subprocess.CalledProcessError as error:
        said = (error.stderr or error.stdout).strip().splitlines() or ["nothing"]
        return f"{command[0]} said: {said[-1][:200]}"
    except subprocess.TimeoutExpired:
        return f"{command[0]} took longer than {FETCH_TIMEOUT_S:.0f} s"
    return None


class S3Server:
    """A server over one directory, on loopback, with a bucket and credentials of its own. It can be killed and
    restarted at its port. Its output goes to `s3.log`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.objects = directory / "objects"
        """A directory for each bucket, a file for each object."""
        (self.objects / BUCKET).mkdir(parents=True)
        self._access, self._secret = f"test{secrets.token_hex(8)}", secrets.token_hex(20)
        self._port = 0
        self._process: subprocess.Popen[bytes] | None = None

    def url(self, prefix: str = "durable") -> str:
        """A store of its own for each prefix."""
        return f"s3://{BUCKET}/{prefix}"

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables for a client."""
        return {
            "AWS_ACCESS_KEY_ID": self._access,
            "AWS_SECRET_ACCESS_KEY": self._secret,
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self._port}",
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }

    def start(self) -> None:
        """On the port that it had before, if any; until it answers."""
        for _ in range(STARTS_MAX):
            port = self._port or _free_port()
            if self._started(port):
                self._port = port
                return
        raise AssertionError(f"the S3 server does not start:\n{self._log.read_text()[-2000:]}")

    def pause(self) -> None:
        """SIGSTOP: it takes connections and answers nobody."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._process is not None:
            self.kill()

    @property
    def _log(self) -> Path:
        return self._directory / "s3.log"

    def _started(self, port: int) -> bool:
        command, environment = self._command(port)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=os.environ | environment
            )
        for _ in range(int(START_TIMEOUT_S / LOOK_EVERY_S)):
            try:
                self._process.wait(LOOK_EVERY_S)
            except subprocess.TimeoutExpired:
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        return True
            else:
                self._process = None
                return False
        self.kill()
        return False

    def _command(self, port: int) -> tuple[list[str], dict[str, str]]:
        if PROGRAM.exists():
            keys = {"ROOT_ACCESS_KEY": self._access, "ROOT_SECRET_KEY": self._secret}
            return [str(PROGRAM), "--port", f"127.0.0.1:{port}", "posix", str(self.objects)], keys
        settings = self._directory / "s3proxy.conf"
        settings.write_text(
            f"s3proxy.endpoint=http://127.0.0.1:{port}\ns3proxy.authorization=aws-v2-or-v4\n"
            f"s3proxy.identity={self._access}\ns3proxy.credential={self._secret}\n"
            f"jclouds.provider=filesystem-nio2\njclouds.filesystem.basedir={self.objects}\n"
        )
        jars = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", f"{JARS}/*"]
        return [*jars, "org.gaul.s3proxy.Main", "--properties", str(settings)], {}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


if __name__ == "__main__":
    sys.exit(main())
