"""A Spark home whose workers load PySpark from its installed package, not from an archive.

Spark puts `python/lib/pyspark.zip` of its home first on the path of each Python process that it starts: for plans,
sources, and tasks. Python does not cache what it compiles from an archive. So every process compiles PySpark again, for
some seconds. Without the archive, Python finds the installed package.

The home is a directory of links. It is permanent, with Spark's classes in it, where `headrace.spark.session.classes`
has made one. Otherwise it is removed when this process ends. It serves only local sessions, whose workers run on this
Python; a cluster has a home of its own.
"""

from __future__ import annotations

import atexit
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Final

LINKED: Final = ("bin", "jars")
"""Parts of its home that Spark needs to start."""
ARCHIVE: Final = "classes.jsa"
"""The archive of Spark's classes, in a home."""


def home_without_archives(package: Path) -> Path | None:
    """A home for the PySpark installed at `package`; None where the package contains no home of its own."""
    lasting = lasting_home()
    if (lasting / ARCHIVE).exists() and all(
        (lasting / name).resolve() == (package / name).resolve() for name in LINKED
    ):
        return lasting
    home = Path(tempfile.mkdtemp(prefix="headrace-spark-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    return home if link_home(package, home) else None


def lasting_home() -> Path:
    """The place of the permanent home, if there is one: in this Python's environment."""
    return Path(sys.prefix) / "share" / "headrace" / "spark"


def link_home(package: Path, home: Path) -> bool:
    """Make a home of links. Returns False where `package` lacks the needed parts."""
    if not all((package / name).is_dir() for name in LINKED):
        return False
    home.mkdir(parents=True, exist_ok=True)
    for name in LINKED:
        (home / name).unlink(missing_ok=True)
        (home / name).symlink_to(package / name, target_is_directory=True)
    return True
