"""kcat, a command over librdkafka that many use: `python -m tools.debian_packages.kcat` installs Debian's for tests.

The command always succeeds: otherwise the reason is kept, and tests skip with it.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Final

from tools.debian_packages import debian

REASON: Final = Path(__file__).resolve().parents[2] / ".venv" / "kcat" / "reason"


def main() -> int:
    """Install it, unless it is here."""
    REASON.parent.mkdir(parents=True, exist_ok=True)
    REASON.unlink(missing_ok=True)
    if reason := debian.install("kcat"):
        REASON.write_text(reason)
        print(f"no kcat for tests: {reason}", file=sys.stderr)
    return 0


def missing() -> str | None:
    """Why there is no kcat, in a few words; None where there is one."""
    if shutil.which("kcat") is not None:
        return None
    return REASON.read_text() if REASON.exists() else "'make test' installs it: python -m tools.debian_packages.kcat"


if __name__ == "__main__":
    sys.exit(main())
