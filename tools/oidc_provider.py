"""An identity provider by others for tests: oidc-provider, an OpenID Connect server on Node.js, fetched by npm.

`python -m tools.oidc_provider` installs it in a directory that git ignores, as tools/oidc/package-lock.json has it. It
always succeeds: if it cannot be installed, the reason is kept there, and tests skip with it. Tests fetch nothing
themselves.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
PLACE: Final = ROOT / ".venv" / "oidc"
SOURCE: Final = Path(__file__).resolve().parent / "oidc"
REASON: Final = PLACE / "REASON"
FETCH_TIMEOUT_S: Final = 300.0


def main() -> int:
    """Bring it here, as it is locked."""
    PLACE.mkdir(parents=True, exist_ok=True)
    failure = _fetch()
    if failure is None:
        REASON.unlink(missing_ok=True)
    else:
        REASON.write_text(failure)
        print(f"no identity provider for tests: {failure}", file=sys.stderr)
    return 0


def missing() -> str | None:
    """Why there is no provider, in a few words; None where there is one."""
    if REASON.exists():
        return REASON.read_text()
    if (PLACE / "node_modules" / "oidc-provider").is_dir() and shutil.which("node") is not None:
        return None
    return "'make test' brings it: python -m tools.oidc_provider"


def _fetch() -> str | None:
    """Why it failed, in a few words; None where it did not."""
    if shutil.which("npm") is None or shutil.which("node") is None:
        return "there is no node and npm on the PATH"
    for name in ("package.json", "package-lock.json"):
        shutil.copy(SOURCE / name, PLACE / name)
    command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    try:
        subprocess.run(command, cwd=PLACE, check=True, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S)
    except subprocess.CalledProcessError as error:
        said = (error.stderr or error.stdout).strip().splitlines() or ["nothing"]
        return f"npm said: {said[-1][:200]}"
    except subprocess.TimeoutExpired:
        return "npm took too long"
    return None


@contextmanager
def identity_provider(clients: Sequence[Mapping[str, Any]], *, lifetime_s: int = 3_600) -> Iterator[str]:
    """The issuer of a provider that runs within the block. `clients`: by the names of RFC 7591. Raises AssertionError
    where it does not start."""
    settings = json.dumps({"clients": clients, "lifetime_s": lifetime_s})
    command = ["node", str(SOURCE / "provider.mjs"), str(PLACE), settings]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            line = process.stdout.readline()
            assert line.startswith("ready "), f"it says: {line}"
            yield line.removeprefix("ready ").strip()
        finally:
            process.kill()


if __name__ == "__main__":
    sys.exit(main())
