"""A Spark home whose workers load PySpark from where pip has put it, and not from an archive.

Spark puts `python/lib/pyspark.zip` of its home before all else on the path of each Python process that it starts: for
plans, sources, and tasks. Python keeps nothing of what it compiles out of an archive, so every one of them compiles
PySpark anew, some seconds each. Where the archive is missing, the package is found as everything else is.

The home is a directory of links, gone when this process ends. Only for local sessions, whose workers run by the same
Python; a cluster has a home of its own.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from pathlib import Path
from typing import Final

LINKED: Final = ("bin", "jars")
"""What Spark needs of its home to start."""


def home_without_archives(package: Path) -> Path | None:
    """A home for the PySpark that is installed at `package`; None where that has no home of its own in it."""
    if not all((package / name).is_dir() for name in LINKED):
        return None
    home = Path(tempfile.mkdtemp(prefix="headrace-spark-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    for name in LINKED:
        (home / name).symlink_to(package / name, target_is_directory=True)
    return home
