"""The small Maven project in java/, which holds Apache Kafka's own Java client: built once for its sources."""

from __future__ import annotations

import functools
import hashlib
import shutil
import subprocess
from pathlib import Path
from typing import Final

from tools import kafka_jars

PROJECT: Final = Path(__file__).parent / "java"
TARGET: Final = PROJECT / "target"
STAMP: Final = TARGET / "BUILT"
"""A digest of the sources that TARGET was built from."""
BUILD_TIMEOUT_S: Final = 600.0
IS_POSSIBLE: Final = shutil.which("java") is not None and shutil.which("mvn") is not None
REASON: Final = "the Java client needs java and mvn on the PATH"


@functools.cache
def built() -> list[str]:
    """The start of a command that runs one of its classes."""
    goals = ["compile", "dependency:copy-dependencies", f"-DoutputDirectory={TARGET / 'libs'}"]
    build = ["mvn", "-q", "-B", "-Dstyle.color=never", "-f", str(PROJECT / "pom.xml"), *goals]
    with kafka_jars.maven_alone():
        wanted = _digest()
        if not STAMP.exists() or STAMP.read_text() != wanted:
            subprocess.run(build, check=True, timeout=BUILD_TIMEOUT_S)
            STAMP.write_text(wanted)
    return [*kafka_jars.QUICK_JAVA, "-cp", f"{TARGET / 'classes'}:{TARGET / 'libs'}/*"]


def _digest() -> str:
    """Of all that is built."""
    digest = hashlib.sha256((PROJECT / "pom.xml").read_bytes())
    for each in sorted((PROJECT / "src").rglob("*.java")):
        digest.update(str(each.relative_to(PROJECT)).encode() + each.read_bytes())
    return digest.hexdigest()
