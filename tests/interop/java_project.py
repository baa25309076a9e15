"""The small Maven project in java/, which holds Apache Kafka's own Java client: built once for all tests of a run."""

from __future__ import annotations

import functools
import shutil
import subprocess
from pathlib import Path
from typing import Final

PROJECT: Final = Path(__file__).parent / "java"
BUILD_TIMEOUT_S: Final = 600.0
IS_POSSIBLE: Final = shutil.which("java") is not None and shutil.which("mvn") is not None
REASON: Final = "the Java client needs java and mvn on the PATH"


@functools.cache
def built() -> list[str]:
    """The start of a command that runs one of its classes."""
    target = PROJECT / "target"
    goals = ["compile", "dependency:copy-dependencies", f"-DoutputDirectory={target / 'libs'}"]
    build = ["mvn", "-q", "-B", "-Dstyle.color=never", "-f", str(PROJECT / "pom.xml"), *goals]
    subprocess.run(build, check=True, timeout=BUILD_TIMEOUT_S)
    return ["java", "-Xmx256m", "-cp", f"{target / 'classes'}:{target / 'libs'}/*"]
