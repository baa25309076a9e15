"""Apache Kafka's own Java client, through the small Maven project in java/; each case is one method in Cases.java."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.interop.samples import CODECS

PROJECT: Final = Path(__file__).parent / "java"
BUILD_TIMEOUT_S: Final = 600.0
CASES: Final = [
    *(f"produce_and_consume {codec}" for codec in CODECS),
    *(f"nulls_and_headers {codec}" for codec in CODECS),
    *(f"acknowledgements {acks}" for acks in ("0", "1", "all")),
    "idempotent_producer",
    "a_mebibyte",
    "offsets_by_time",
    "group_goes_on",
    "group_offsets",
    "topic_life",
    "bad_topics",
    "created_once",
    "dry_run",
    "cluster",
]

pytestmark = pytest.mark.skipif(
    shutil.which("java") is None or shutil.which("mvn") is None, reason="the Java client needs java and mvn on the PATH"
)


@pytest.fixture(scope="module")
def ask(bootstrap: str) -> Iterator[Callable[[str], str]]:
    """Put one case to one Java process that runs them all: its answer."""
    target = PROJECT / "target"
    goals = ["compile", "dependency:copy-dependencies", f"-DoutputDirectory={target / 'libs'}"]
    build = ["mvn", "-q", "-B", "-Dstyle.color=never", "-f", str(PROJECT / "pom.xml"), *goals]
    subprocess.run(build, check=True, timeout=BUILD_TIMEOUT_S)
    command = [
        "java",
        "-Xmx256m",
        "-cp",
        f"{target / 'classes'}:{target / 'libs'}/*",
        "headrace.interop.Main",
        bootstrap,
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        requests, answers = process.stdin, process.stdout

        def put(case: str) -> str:
            print(case, file=requests, flush=True)
            return answers.readline().strip()

        yield put
        requests.close()
        process.wait()


@pytest.mark.parametrize("case", CASES)
def test_the_java_client(ask: Callable[[str], str], case: str) -> None:
    assert ask(case) == "ok"
