"""Kafka Connect's distributed worker with `exactly.once.source.support`: each line comes once."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
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
TOPIC: Final = "lines-of-a-file"

pytestmark = pytest.mark.skipif(not java_project.IS_POSSIBLE, reason=java_project.REASON)


@pytest.fixture
def worker(brokers: Brokers, tmp_path: Path) -> Iterator[Program]:
    arguments = ("headrace.frameworks.ConnectWorker", brokers.bootstrap, "connect")
    with Program("kafka", arguments, tmp_path / "worker.log") as made:
        yield made


@long_only
def test_each_line_comes_once_though_worker_and_brokers_are_killed(
    brokers: Brokers, worker: Program, tmp_path: Path
) -> None:
    topics.create(brokers.bootstrap, TOPIC)
    file = tmp_path / "lines.txt"
    file.touch()
    connector = {
        "connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector",
        "tasks.max": "1",
        "file": str(file),
        "topic": TOPIC,
        "exactly.once.support": "required",
        "transaction.boundary": "interval",
        "transaction.boundary.interval.ms": str(TRANSACTION_MS),
    }
    put(f"{worker.start()}connectors/lines/config", connector)
    with Reader(brokers.bootstrap, TOPIC) as reader:
        for part in range(KILLS * PARTS):
            append(file, part)
            reader.until(max(0, part + 1 - AHEAD) * LINES, worker.story)
            if part % PARTS == 1:
                brokers.replace(part // PARTS % 3 + 1)
            if part % PARTS == PARTS - 1:
                worker.kill()
                worker.start()
        reader.until(KILLS * PARTS * LINES, worker.story)
        worker.end()
        assert sorted(int(value) for _, value in reader.to_the_end()) == list(range(KILLS * PARTS * LINES))


def append(file: Path, part: int) -> None:
    """One part of the lines; each is its number."""
    with file.open("a") as opened:
        opened.writelines(f"{n}\n" for n in range(part * LINES, (part + 1) * LINES))


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
