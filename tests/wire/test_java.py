"""Kafka's own classes (kafka-clients, from Maven) read what we write, see the same values, and write the same bytes.

We then read Java's bytes back into the same message: so both codecs agree, in both directions, in every version of
every message. This is also what holds `tools/kafka_messages.txt` against Kafka.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.wire.schema import Case, cases, dump, random_instance
from tools import kafka_jars

HERE = Path(__file__).parent / "java"
INSTANCES_PER_CASE = 10
PROTOCOL, RECORDS = "4.1.0", "4.3.0"
"""Kafka's releases whose facts the table has: of the protocol, and of the coordinators' records."""
OF_RECORDS = ("coordinator-key", "coordinator-value")
NEWER = "WriteTxnMarkers"
"""Its v2 (KIP-1228) is of the later release, too."""


def class_name(case: Case) -> str:
    name = case.message.root.name
    if case.message.kind in OF_RECORDS:
        coordinator = "transaction" if name.startswith("TransactionLog") else "group"
        return f"org.apache.kafka.coordinator.{coordinator}.generated.{name}"
    return f"org.apache.kafka.common.message.{name}{'Data' if case.message.kind in ('request', 'response') else ''}"


def classpath(release: str) -> str:
    for program in ("java", "javac", "mvn"):
        if shutil.which(program) is None:
            pytest.skip(f"there is no {program} to run Kafka's own classes with")
    libs = HERE / "target" / f"libs-{release}"
    with kafka_jars.maven_alone():
        if not any(libs.glob("kafka-transaction-coordinator-*.jar")):
            command = [*kafka_jars.MAVEN, "-f", str(HERE / "pom.xml"), "dependency:copy-dependencies"]
            command += [f"-Dkafka.version={release}", f"-DoutputDirectory={libs}"]
            quick = kafka_jars.maven_environment()
            done = subprocess.run(command, capture_output=True, text=True, check=False, env=quick)
            if done.returncode:
                pytest.skip(f"Maven could not fetch kafka-clients: {done.stdout.strip()[:200]}")
    return f"{libs}/*"


def ask_java(classpath: str, questions: list[str]) -> list[str]:
    command = kafka_jars.compiled(HERE / "Oracle.java", classpath)
    done = subprocess.run(command, input="\n".join(questions), capture_output=True, text=True, check=True, timeout=150)
    return done.stdout.splitlines()


def is_of_later_release(case: Case) -> bool:
    return case.message.kind in OF_RECORDS or case.message.root.name.startswith(NEWER)


@pytest.mark.parametrize(("release", "later"), [(PROTOCOL, False), (RECORDS, True)])
def test_java_reads_what_we_write_and_we_read_what_java_writes(release: str, later: bool) -> None:
    random = Random(20240229)
    asked: list[tuple[Case, Any, bytes]] = []
    for case in cases():
        if is_of_later_release(case) != later:
            continue
        instances = [type(random_instance(case, random))()]
        instances += [random_instance(case, random) for _ in range(INSTANCES_PER_CASE)]
        asked += [(case, item, case.encode(item)) for item in instances]
    answers = ask_java(classpath(release), [f"{class_name(case)} {case.version} {raw.hex()}" for case, _, raw in asked])
    assert len(answers) == len(asked)
    for (case, item, raw), answer in zip(asked, answers, strict=True):
        assert answer == f"{raw.hex()} {dump(item)}", str(case)
        assert case.decode(memoryview(bytes.fromhex(answer.partition(" ")[0]))) == item, str(case)
