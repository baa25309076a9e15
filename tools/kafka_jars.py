"""Apache Kafka's own jars, through Maven: `python -m tools.kafka_jars` prints their class path.

Fetches once, into a directory that git ignores, and only the versions that tools/kafka/pom.xml names; and so those of
Spark's source for Kafka, by tools/spark_kafka/pom.xml. Never used by Headrace itself: they are the oracle of tests and
the rival of benchmarks.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

POM: Final = Path(__file__).resolve().parent / "kafka" / "pom.xml"
LIBRARIES: Final = POM.parent / "target" / "libs"
SPARK_POM: Final = Path(__file__).resolve().parent / "spark_kafka" / "pom.xml"
SPARK_LIBRARIES: Final = SPARK_POM.parent / "target" / "libs"
NEWEST_POM: Final = Path(__file__).resolve().parent / "kafka_newest" / "pom.xml"
NEWEST_LIBRARIES: Final = NEWEST_POM.parent / "target" / "libs"
LOCK: Final = POM.parent / "target" / ".lock"
PROGRAMS: Final = POM.parent / "target" / "programs"
FETCH_TIMEOUT_S: Final = 600.0
QUICK_JAVA: Final = ("java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")
"""A command's start. Its Java starts quickly, and does not compile what will not run for long."""
MAVEN: Final = ("mvn", "-q", "-B", "-Dstyle.color=never")
"""Run it with `maven_environment`."""


@contextmanager
def maven_alone() -> Iterator[None]:
    """Hold this while Maven fetches or builds. Tests run in several processes, which need the same files."""
    LOCK.parent.mkdir(parents=True, exist_ok=True)
    with LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def maven_environment() -> dict[str, str]:
    """Maven's Java runs for seconds, too: compiling less takes less. The user's options follow, and go before."""
    return os.environ | {"MAVEN_OPTS": f"-XX:TieredStopAtLevel=1 {os.environ.get('MAVEN_OPTS', '')}".strip()}


def missing_tool() -> str | None:
    """Why Kafka's programs cannot run on this machine, in a few words; None where they can."""
    if shutil.which("java") is None:
        return "there is no java on the PATH"
    if shutil.which("mvn") is None and not _fetched():
        return "there is no mvn on the PATH to fetch Kafka's jars with"
    return None


def class_path() -> str:
    """The class path that Kafka's programs run with, fetched if need be; CalledProcessError where Maven fails."""
    with maven_alone():
        if not _fetched():
            _fetch(POM, LIBRARIES)
    return f"{LIBRARIES}/*"


def spark_source() -> list[Path]:
    """The jars with which PySpark has its source for Kafka, fetched if need be; CalledProcessError."""
    with maven_alone():
        if not any(SPARK_LIBRARIES.glob("spark-sql-kafka-*.jar")):
            _fetch(SPARK_POM, SPARK_LIBRARIES)
    return sorted(SPARK_LIBRARIES.glob("*.jar"))


def newest_class_path() -> str:
    """The class path of the newest Kafka's server classes, fetched if need be; CalledProcessError."""
    with maven_alone():
        if not any(NEWEST_LIBRARIES.glob("kafka-server-*.jar")):
            _fetch(NEWEST_POM, NEWEST_LIBRARIES)
    return f"{NEWEST_LIBRARIES}/*"


def newest_version() -> str:
    """Version of these classes, from tools/kafka_newest/pom.xml."""
    found = re.search(r"<kafka.version>(.+?)</kafka.version>", NEWEST_POM.read_text(encoding="utf-8"))
    assert found is not None, "the pom names its version"
    return found[1]


def compiled(program: Path, jars: str) -> list[str]:
    """The start of a command that runs a Java program of one file with the class path `jars`. It is compiled once for
    its text: Java would do so at each start, and does where there is no javac. CalledProcessError where that fails."""
    if shutil.which("javac") is None:
        return [*QUICK_JAVA, "-cp", jars, str(program)]
    classes = PROGRAMS / hashlib.sha256(f"{jars} {program.read_text(encoding='utf-8')}".encode()).hexdigest()[:16]
    with maven_alone():
        if not classes.exists():
            partial = classes.with_suffix(".partial")
            compiler = [*("javac", "-J-XX:TieredStopAtLevel=1", "-J-XX:+UseSerialGC"), "-cp", jars, "-d", str(partial)]
            subprocess.run([*compiler, str(program)], check=True, stdout=sys.stderr, timeout=FETCH_TIMEOUT_S)
            partial.rename(classes)
    return [*QUICK_JAVA, "-cp", f"{jars}:{classes}", program.stem]


def _fetch(pom: Path, libraries: Path) -> None:
    partial = libraries.with_name("libs.partial")
    shutil.rmtree(partial, ignore_errors=True)
    goal = ["dependency:copy-dependencies", f"-DoutputDirectory={partial}"]
    command = [*MAVEN, "-f", str(pom), *goal]
    subprocess.run(command, check=True, stdout=sys.stderr, timeout=FETCH_TIMEOUT_S, env=maven_environment())
    shutil.rmtree(libraries, ignore_errors=True)
    partial.rename(libraries)


def kafka_version() -> str:
    """The version of the jars, as their names say."""
    return next(LIBRARIES.glob("kafka-clients-*.jar")).stem.removeprefix("kafka-clients-")


def _fetched() -> bool:
    return any(LIBRARIES.glob("kafka_2.13-*.jar")) and any(LIBRARIES.glob("kafka-tools-*.jar"))


if __name__ == "__main__":
    print(class_path())
