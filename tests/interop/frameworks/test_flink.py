"""Apache Flink's sink for Kafka, exactly once: a job fails or is killed, and each of its records comes once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.interop import java_project
from tests.interop.frameworks.support import topics
from tests.interop.frameworks.support.brokers import Brokers
from tests.interop.frameworks.support.programs import Program
from tests.interop.frameworks.support.topics import Reader
from tests.tiers import long_only

COUNT: Final = 1000
FAILS_AT: Final = 140
KILLED_AT: Final = 60
"""Records that have been read when the job is killed."""
NAMINGS: Final = ("INCREMENTING", "POOLING")
"""Flink's names of transactions: it finds those it left by trying names, or asks the brokers for a list."""

pytestmark = pytest.mark.skipif(not java_project.IS_POSSIBLE, reason=java_project.REASON)


class Job:
    """Flink in one process, which writes COUNT numbers to a topic."""

    def __init__(self, brokers: Brokers, naming: str, directory: Path) -> None:
        self.topic = f"flink-{naming.lower()}"
        self._directory = directory
        topics.create(brokers.bootstrap, self.topic)
        self._arguments = (
            *("headrace.frameworks.Numbers", brokers.bootstrap, self.topic, str(COUNT), str(FAILS_AT), naming),
            (directory / "checkpoints").as_uri(),
        )

    def program(self, *more: str) -> Program:
        return Program("flink", (*self._arguments, *more), self._directory / "flink.log")

    def checkpoint(self) -> str:
        """The last one that is whole. Flink writes this file of a checkpoint last."""
        whole = (self._directory / "checkpoints").glob("*/chk-*/_metadata")
        return max((each.parent for each in whole), key=lambda each: int(each.name.removeprefix("chk-"))).as_uri()


@pytest.fixture
def reader(brokers: Brokers, job: Job) -> Iterator[Reader]:
    with Reader(brokers.bootstrap, job.topic) as made:
        yield made


@pytest.fixture
def job(brokers: Brokers, tmp_path: Path, request: pytest.FixtureRequest) -> Job:
    return Job(brokers, request.param, tmp_path)


@long_only
@pytest.mark.parametrize("job", NAMINGS, indirect=True)
def test_each_record_comes_once_though_the_job_fails_and_is_killed(brokers: Brokers, job: Job, reader: Reader) -> None:
    with job.program() as program:
        program.start()
        reader.until(KILLED_AT, program.story)
        program.kill()
    with job.program(job.checkpoint()) as program:
        program.start()
        reader.until(2 * KILLED_AT, program.story)
        for broker in (1, 2, 3):
            brokers.replace(broker)
            reader.until(min(len(reader.rows) + KILLED_AT, COUNT), program.story)
        reader.until(COUNT, program.story)
        program.end()
    assert sorted(int(value) for _, value in reader.to_the_end()) == list(range(COUNT))
