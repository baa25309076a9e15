"""An S3-compatible server by others, for tests: versitygw, built by Go, or s3proxy, fetched by Maven.

`python -m tools.servers.s3_server` installs one of them in a directory that git ignores, at a pinned version. It always
succeeds: if neither can be installed, the reason is kept there, and tests skip with it. Tests fetch nothing themselves.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tools.servers.server_process import ServerProcess

ROOT: Final = Path(__file__).resolve().parents[2]
PLACE: Final = ROOT / ".venv" / "s3"
POM: Final = Path(__file__).resolve().parent / "s3proxy" / "pom.xml"
VERSITYGW: Final = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
UNOPTIMISED: Final = ("-gcflags=all=-N -l", "-ldflags=-s -w")
"""It is built in two thirds of the processor time, and tests ask little of it."""
PROGRAM: Final = PLACE / "versitygw"
JARS: Final = PLACE / "s3proxy"
REASON: Final = PLACE / "REASON"
FETCH_TIMEOUT_S: Final = 300.0
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
    return REASON.read_text() if REASON.exists() else "'make test' brings it: python -m tools.servers.s3_server"


def _build() -> str | None:
    if shutil.which("go") is None:
        return "there is no go on the PATH"
    print(f"building {VERSITYGW}", flush=True)
    return _ran(["go", "install", *UNOPTIMISED, VERSITYGW], {"GOBIN": str(PLACE), "CGO_ENABLED": "0"})


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


class S3Server(ServerProcess):
    """A server over one directory, on loopback, with a bucket and credentials of its own. It can be killed and
    restarted at its port. Its output goes to `s3.log`."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, "s3.log")
        self.objects = directory / "objects"
        """A directory for each bucket, a file for each object."""
        (self.objects / BUCKET).mkdir(parents=True)
        self._access, self._secret = f"test{secrets.token_hex(8)}", secrets.token_hex(20)

    def url(self, prefix: str = "durable") -> str:
        """A store of its own for each prefix."""
        return f"s3://{BUCKET}/{prefix}"

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables for a client."""
        return {
            "AWS_ACCESS_KEY_ID": self._access,
            "AWS_SECRET_ACCESS_KEY": self._secret,
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }

    def command(self, port: int) -> tuple[Sequence[str], Mapping[str, str]]:
        if PROGRAM.exists():
            keys = {"ROOT_ACCESS_KEY": self._access, "ROOT_SECRET_KEY": self._secret}
            return [str(PROGRAM), "--port", f"127.0.0.1:{port}", "posix", str(self.objects)], keys
        settings = self.directory / "s3proxy.conf"
        settings.write_text(
            f"s3proxy.endpoint=http://127.0.0.1:{port}\ns3proxy.authorization=aws-v2-or-v4\n"
            f"s3proxy.identity={self._access}\ns3proxy.credential={self._secret}\n"
            f"jclouds.provider=filesystem-nio2\njclouds.filesystem.basedir={self.objects}\n"
        )
        jars = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", f"{JARS}/*"]
        return [*jars, "org.gaul.s3proxy.Main", "--properties", str(settings)], {}


if __name__ == "__main__":
    sys.exit(main())
