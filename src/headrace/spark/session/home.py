"""A Spark home whose workers load PySpark from where pip has put it, and not from an archive.

Spark puts `python/lib/pyspark.zip` of its home before all else on the path of each Python process that it starts: for
plans, sources, and tasks. Python keeps nothing of what it compiles out of an archive, so every one of them compiles
PySpark anew, some seconds each. Where the archive is missing, the package is found as everything else is.

The home is a directory of links: one that lasts, with Spark's classes in it, where `headrace.spark.session.classes` has
made it; else gone when this process ends. Only for local sessions, whose workers run by the same Python; a cluster has
a home of its own.
"""

from __future__ import annotations

import atexit
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Final

LINKED: Final = ("bin", "jars")
"""What Spark needs of its home to start."""
ARCHIVE: Final = "classes.jsa"
"""In a home: what Spark loads to start, as Java keeps it."""


def home_without_archives(package: Path) -> Path | None:
    """A home for the PySpark that is installed at `package`; None where that has no home of its own in it."""
    lasting = lasting_home()
    if (lasting / ARCHIVE).exists() and all(
        (lasting / name).resolve() == (package / name).resolve() for name in LINKED
    ):
        return lasting
    home = Path(tempfile.mkdtemp(prefix="headrace-spark-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    return home if link_home(package, home) else None


def lasting_home() -> Path:
    """Where the home is that lasts, if there is one: in this Python's environment."""
    return Path(sys.prefix) / "share" / "headrace" / "spark"


def link_home(package: Path, home: Path) -> bool:
    """Make it, of links; whether `package` has what it needs."""
    if not all((package / name).is_dir() for name in LINKED):
        return False
    home.mkdir(parents=True, exist_ok=True)
    for name in LINKED:
        (home / name).unlink(missing_ok=True)
        (home / name).symlink_to(package / name, target_is_directory=True)
    return True
