"""The Maven projects of these tests, such as java/, which holds Apache Kafka's own Java client: built once for their
sources."""

from __future__ import annotations

import functools
import hashlib
import shutil
import subprocess
from pathlib import Path
from typing import Final

from tools import kafka_jars

PROJECT: Final = Path(__file__).parent / "java"
STAMP: Final = "BUILT"
"""The file in a project's target directory with a digest of the sources that it was built from."""
BUILD_TIMEOUT_S: Final = 600.0
IS_POSSIBLE: Final = shutil.which("java") is not None and shutil.which("mvn") is not None
REASON: Final = "the Java client needs java and mvn on the PATH"


@functools.cache
def built(project: Path = PROJECT) -> list[str]:
    """The start of a command that runs one of its classes; CalledProcessError where Maven fails."""
    target = project / "target"
    stamp = target / STAMP
    goals = ["compile", "dependency:copy-dependencies", f"-DoutputDirectory={target / 'libs'}"]
    build = [*kafka_jars.MAVEN, "-f", str(project / "pom.xml"), *goals]
    with kafka_jars.maven_alone():
        wanted = _digest(project)
        if not stamp.exists() or stamp.read_text() != wanted:
            subprocess.run(build, check=True, timeout=BUILD_TIMEOUT_S, env=kafka_jars.maven_environment())
            stamp.write_text(wanted)
    return [*kafka_jars.QUICK_JAVA, "-cp", f"{target / 'classes'}:{target / 'libs'}/*"]


def _digest(project: Path) -> str:
    """Of all that is built."""
    digest = hashlib.sha256((project / "pom.xml").read_bytes())
    for each in sorted((project / "src").rglob("*.java")):
        digest.update(str(each.relative_to(project)).encode() + each.read_bytes())
    return digest.hexdigest()
