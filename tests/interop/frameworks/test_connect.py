"""Kafka Connect's distributed worker with `exactly.once.source.support`: each line comes once."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Final

import pytest

from tests.interop import java_project
from tests.interop.frameworks.support import topics
from tests.interop.frameworks.support.brokers import Brokers
from tests.interop.frameworks.support.programs import Program
from tests.interop.frameworks.support.topics import Reader
from tests.tiers import long_only

LINES: Final = 10
"""Lines that are added at a time."""
PARTS: Final = 4
"""Additions before a kill, of which the last AHEAD need not be read when the worker is killed."""
AHEAD: Final = 2
TRANSACTION_MS: Final = 500
"""A transaction stays open so long: a kill finds one."""
KILLS: Final = 5

pytestmark = pytest.mark.skipif(not java_project.IS_POSSIBLE, reason=java_project.REASON)


@dataclass(frozen=True)
class Source:
    """A file whose lines a group of workers copies to a topic."""

    group: str
    file: Path
    topic: str
    bootstrap: str

    def worker(self, name: str) -> Program:
        arguments = ("headrace.frameworks.ConnectWorker", self.bootstrap, self.group)
        return Program("kafka", arguments, self.file.with_name(f"{name}.log"))

    def append(self, part: int) -> None:
        """One part of the lines; each is its number."""
        with self.file.open("a") as opened:
            opened.writelines(f"{n}\n" for n in range(part * LINES, (part + 1) * LINES))

    def copy(self, worker: str) -> None:
        """Tell the worker at this address to begin."""
        connector = {
            "connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector",
            "tasks.max": "1",
            "file": str(self.file),
            "topic": self.topic,
            "exactly.once.support": "required",
            "transaction.boundary": "interval",
            "transaction.boundary.interval.ms": str(TRANSACTION_MS),
        }
        put(f"{worker}connectors/lines/config", connector)


@pytest.fixture
def source(brokers: Brokers, tmp_path: Path) -> Source:
    group = f"connect-{uuid.uuid4().hex[:8]}"
    made = Source(group, tmp_path / "lines.txt", f"{group}-lines", brokers.bootstrap)
    topics.create(brokers.bootstrap, made.topic)
    made.file.touch()
    return made


@pytest.fixture
def reader(brokers: Brokers, source: Source) -> Iterator[Reader]:
    with Reader(brokers.bootstrap, source.topic) as made:
        yield made


@long_only
def test_each_line_comes_once_though_worker_and_brokers_are_killed(
    brokers: Brokers, source: Source, reader: Reader
) -> None:
    with source.worker("worker") as worker:
        source.copy(worker.start())
        for part in range(KILLS * PARTS):
            source.append(part)
            reader.until(max(0, part + 1 - AHEAD) * LINES, worker.story)
            if part % PARTS == 1:
                brokers.replace(part // PARTS % 3 + 1)
            if part % PARTS == PARTS - 1:
                worker.kill()
                worker.start()
        reader.until(KILLS * PARTS * LINES, worker.story)
        worker.end()
    holds(reader, KILLS * PARTS)


@long_only
def test_a_worker_that_was_taken_for_dead_writes_nothing_twice(source: Source, reader: Reader) -> None:
    with source.worker("first") as first, source.worker("second") as second:
        source.copy(first.start())
        for part in range(PARTS):
            source.append(part)
            reader.until(max(0, part + 1 - AHEAD) * LINES, first.story)
        first.pause()
        second.start()
        source.append(PARTS)
        reader.until((PARTS + 1) * LINES, second.story)
        first.resume()
        source.append(PARTS + 1)
        reader.until((PARTS + 2) * LINES, second.story)
        first.end()
        second.end()
    holds(reader, PARTS + 2)


def holds(reader: Reader, parts: int) -> None:
    """The topic has each line of so many parts once."""
    assert sorted(int(value) for _, value in reader.to_the_end()) == list(range(parts * LINES))


def put(url: str, settings: dict[str, str]) -> None:
    """Make a connector. A worker that still joins its group refuses, and is asked again; an HTTPError says what else
    it has against it."""
    body = json.dumps(settings).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"}, method="PUT")
    deadline = time.monotonic() + topics.DEADLINE_S
    while True:
        try:
            with urllib.request.urlopen(request) as answer:
                assert answer.status in (HTTPStatus.OK, HTTPStatus.CREATED)
                return
        except urllib.error.HTTPError as error:
            if error.code != HTTPStatus.CONFLICT or time.monotonic() > deadline:
                raise
