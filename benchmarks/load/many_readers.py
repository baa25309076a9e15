"""Consumers that all read one full topic at once, each the whole of it."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Final

from confluent_kafka import Consumer, TopicPartition

from benchmarks.load.cases import About, Entrant, Figures
from benchmarks.load.perf_tools import Filled
from benchmarks.load.raw.raw_links import FetchFrame, Link, drive, fetched
from headrace.wire.apis import Api, ApiKey, api

BATCH_RECORDS: Final = 10_000
TIMEOUT_S: Final = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchTogether:
    """librdkafka, each consumer in a thread of this process; the rate is that of all together.

    Ten JVMs would leave a machine of few cores nothing for the broker. These take more than the broker does, too: how
    much it can give, `FetchTogetherRaw` says.
    """

    about: About
    filled: Filled
    readers: int

    def run(self, entrant: Entrant) -> Figures:
        topic = self.filled.topic(self.about.name, entrant)
        begin = threading.Barrier(self.readers)
        with ThreadPoolExecutor(self.readers) as threads:
            reads = [
                threads.submit(_read_all, entrant.rival.bootstrap, topic, self.filled.records, begin)
                for _ in range(self.readers)
            ]
            times = [read.result() for read in reads]
        seconds = max(ended for _, ended in times) - min(begun for begun, _ in times)
        return _figures(self.filled, self.readers, seconds)

    def scaled(self, factor: float) -> FetchTogether:
        return replace(self, filled=self.filled.scaled(factor))


def _read_all(bootstrap: str, topic: str, records: int, begin: threading.Barrier) -> tuple[float, float]:
    """When it began and ended."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "benchmark", "enable.auto.commit": False, "log_level": 0}
    reader = Consumer(settings)
    try:
        begin.wait(TIMEOUT_S)
        begun, missing = time.perf_counter(), records
        reader.assign([TopicPartition(topic, 0, 0)])
        while missing and time.perf_counter() < begun + TIMEOUT_S:
            found = reader.consume(min(BATCH_RECORDS, missing), 1.0)
            missing -= sum(message.error() is None for message in found)
        assert not missing, f"{missing} of {records} records were not read"
        return begun, time.perf_counter()
    finally:
        reader.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchTogetherRaw:
    """Connections of one thread, whose requests are encoded once and whose answers are hardly looked at."""

    about: About
    filled: Filled
    readers: int

    def run(self, entrant: Entrant) -> Figures:
        topic = self.filled.topic(self.about.name, entrant)
        with ExitStack() as open_links:
            readers = []
            for _ in range(self.readers):
                link = Link(entrant.rival.bootstrap)
                open_links.callback(link.close)
                readers.append(Reader(link, topic, {0: 0}, {0: self.filled.records}))
            begun = time.perf_counter()
            drive(readers)
            seconds = time.perf_counter() - begun
        return _figures(self.filled, self.readers, seconds)

    def scaled(self, factor: float) -> FetchTogetherRaw:
        return replace(self, filled=self.filled.scaled(factor))


class Reader:
    """An `Actor` that reads partitions of one topic until it has reached all ends."""

    def __init__(self, link: Link, topic: str, offsets: dict[int, int], ends: dict[int, int]) -> None:
        self.link = link
        self._request = FetchFrame(_fetch(), topic, list(offsets.items()))
        self._offsets = dict(offsets)
        self._ends = dict(ends)
        self.requests = 0

    def begin(self) -> None:
        self.requests += 1
        self.link.send(self._request.frame)

    def on_answer(self, answer: memoryview) -> bool:
        for found in fetched(answer):
            assert found.error == 0, f"partition {found.partition} was answered with error {found.error}"
            if found.next_offset > self._offsets[found.partition]:
                self._offsets[found.partition] = found.next_offset
                self._request.move(found.partition, found.next_offset)
                if found.next_offset >= self._ends.get(found.partition, found.next_offset + 1):
                    del self._ends[found.partition]
        if not self._ends:
            return True
        self.begin()
        return False


def _figures(filled: Filled, readers: int, seconds: float) -> Figures:
    megabytes = readers * filled.megabytes
    others = {"mb_per_s": megabytes / seconds, "records_per_s": readers * filled.records / seconds}
    return Figures(rate=others["mb_per_s"], others=others, megabytes=megabytes)


def _fetch() -> Api:
    found = api(int(ApiKey.FETCH))
    assert found is not None
    return found
