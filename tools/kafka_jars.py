"""Apache Kafka's own jars, through Maven: `python -m tools.kafka_jars` prints their class path.

Fetches once, into a directory that git ignores, and only the versions that tools/kafka/pom.xml names. Never used by
Headrace itself: they are the oracle of tests and the rival of benchmarks.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

POM: Final = Path(__file__).resolve().parent / "kafka" / "pom.xml"
LIBRARIES: Final = POM.parent / "target" / "libs"
FETCH_TIMEOUT_S: Final = 600.0


def missing_tool() -> str | None:
    """Why Kafka's programs cannot run on this machine, in a few words; None where they can."""
    if shutil.which("java") is None:
        return "there is no java on the PATH"
    if shutil.which("mvn") is None and not _fetched():
        return "there is no mvn on the PATH to fetch Kafka's jars with"
    return None


def class_path() -> str:
    """The class path that Kafka's programs run with, fetched if need be; CalledProcessError where Maven fails."""
    if not _fetched():
        partial = LIBRARIES.with_name("libs.partial")
        shutil.rmtree(partial, ignore_errors=True)
        command = [
            "mvn",
            "-q",
            "-B",
            "-Dstyle.color=never",
            "-f",
            str(POM),
            "dependency:copy-dependencies",
            f"-DoutputDirectory={partial}",
        ]
        subprocess.run(command, check=True, stdout=sys.stderr, timeout=FETCH_TIMEOUT_S)
        shutil.rmtree(LIBRARIES, ignore_errors=True)
        partial.rename(LIBRARIES)
    return f"{LIBRARIES}/*"


def kafka_version() -> str:
    """The version of the jars, as their names say."""
    return next(LIBRARIES.glob("kafka-clients-*.jar")).stem.removeprefix("kafka-clients-")


def _fetched() -> bool:
    return any(LIBRARIES.glob("kafka_2.13-*.jar")) and any(LIBRARIES.glob("kafka-tools-*.jar"))


if __name__ == "__main__":
    print(class_path())
