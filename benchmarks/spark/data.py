"""The records that both sides read: the very same record batches, made once and sent to both brokers.

Values are JSON of so many bytes, words and random digits, so that compression finds what it finds in logs. A batch has
as many records as fit in 16 KB after compression, which is what a Java producer fills with its default settings. Some
batches are made, and each partition is sent them over and over, in order, by one connection.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from random import Random
from typing import Final

from benchmarks.load.cases import MEGABYTE, Entrant, make_topic
from benchmarks.load.raw.raw_client import batch_frame, check_produced
from benchmarks.load.raw.raw_links import Link, drive, log_ends
from benchmarks.load.rivals import Headrace
from headrace.base.ids import PartitionIndex
from headrace.storage.tier.reader import Store
from headrace.wire.batches import encode_batch
from headrace.wire.compression import Compression
from headrace.wire.records import Record

PARTITIONS: Final = 4
BATCH_BYTES: Final = 16 * 1024
BATCHES: Final = 64
"""That are different."""
SEGMENT_BYTES: Final = 64 * MEGABYTE
EXPORT_LAG_MS: Final = 2_000
EXPORT_TIMEOUT_S: Final = 120.0
"""In which nothing more is exported."""
LOOK_EVERY_S: Final = 0.05
FIRST_TIMESTAMP_MS: Final = 1_760_000_000_000
STORED: Final = "headrace-store"
"""Our broker's name in the results."""


class HeadraceWithStore(Headrace):
    """`headrace up --durable`, to a directory beside its data."""

    def __init__(self, directory: Path) -> None:
        self._objects: Final = directory.resolve() / "store"
        self.store: Final = f"file://{self._objects}"
        super().__init__(directory, name=STORED, configs={"durable.url": self.store})

    def remove_history(self, topic: str) -> None:
        """Of one that is to be deleted, at once: the broker would keep it for an hour, and nobody has so much room."""
        ids = {str(each.topic_id) for each in Store.open(self.store).topics() if each.name == topic}
        for place in self._objects.glob("clusters/*/topics/*"):
            if place.name in ids:
                shutil.rmtree(place)


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """A topic of PARTITIONS partitions, made and filled on each rival when it is asked for first."""

    name: str
    records: int
    record_bytes: int
    compression: Compression
    _on: set[str] = field(default_factory=set, compare=False)
    """Rivals that have it."""

    @property
    def topic(self) -> str:
        return f"spark-{self.name}-data"

    @property
    def megabytes(self) -> float:
        return self.records * self.record_bytes / MEGABYTE

    def fill(self, entrant: Entrant) -> None:
        """On return all records are on the rival, and, where it has a store, in that."""
        rival = entrant.rival
        if rival.name in self._on:
            return
        ours = isinstance(rival, HeadraceWithStore)
        more = {"segment.bytes": str(SEGMENT_BYTES), "durable.export.max.lag.ms": str(EXPORT_LAG_MS)} if ours else {}
        make_topic(entrant, self.topic, PARTITIONS, {"retention.ms": "-1", **more})
        made = Batches(self)
        fillers = [Filler(Link(rival.bootstrap), self.topic, at, made.of(at)) for at in range(PARTITIONS)]
        drive(fillers)
        ends = log_ends(fillers[0].link, self.topic, range(PARTITIONS))
        for filler in fillers:
            filler.link.close()
        assert sum(ends.values()) == self.records, f"{self.topic} holds {sum(ends.values())} records"
        if isinstance(rival, HeadraceWithStore):
            await_export(rival.store, self.topic, ends)
        self._on.add(rival.name)


class Batches:
    """The batches of a topic's partitions, equal for every rival."""

    def __init__(self, data: Data) -> None:
        self._data = data
        random = Random(data.name)
        self._values = [value(random, data.record_bytes) for _ in range(10_000)]
        self._encoded = partial(encoded, compression=data.compression)
        self._size = self._fitting(random)
        self._random = random

    @cached_property
    def _templates(self) -> Sequence[bytes]:
        return [self._encoded(self._random.choices(self._values, k=self._size)) for _ in range(BATCHES)]

    def _fitting(self, random: Random) -> int:
        """Records of a batch."""
        size = max(1, BATCH_BYTES // self._data.record_bytes)
        for _ in range(2):
            size = max(1, size * BATCH_BYTES // len(self._encoded(random.choices(self._values, k=size))))
        return size

    def of(self, partition: int) -> Iterator[bytes]:
        """Its batches, in order; together the partitions have the records of the data."""
        left = self._data.records // PARTITIONS + (partition < self._data.records % PARTITIONS)
        for at in range(left // self._size):
            yield self._templates[at % BATCHES]
        if left % self._size:
            yield self._encoded(self._values[: left % self._size])


class Filler:
    """An `Actor` that sends batches to one partition, one in flight."""

    def __init__(self, link: Link, topic: str, partition: int, batches: Iterator[bytes]) -> None:
        self.link = link
        self._frame = partial(batch_frame, topic, [partition])
        self._batches = batches

    def begin(self) -> None:
        self._send()

    def on_answer(self, answer: memoryview) -> bool:
        check_produced(answer)
        return not self._send()

    def _send(self) -> bool:
        batch = next(self._batches, None)
        if batch is not None:
            self.link.send(self._frame(batch))
        return batch is not None


def value(random: Random, size: int) -> bytes:
    """JSON of exactly so many bytes."""
    city = random.choice(("Lisbon", "Nairobi", "Osaka", "Quito", "Tromso"))
    state = random.choice(("new", "paid", "sent", "returned"))
    amount = random.randrange(10**6) / 100
    made = f'{{"id":{random.randrange(10**12)},"city":"{city}","amount":{amount},"state":"{state}"'
    while len(made) < size - 40:
        made += f',"{random.choice(("speed", "height", "weight", "pulse"))}":{random.randrange(10**9)}'
    digits = "".join(random.choices("0123456789", k=size))
    return f'{made},"reference":"{digits}'.encode()[: size - 2] + b'"}'


def encoded(values: Sequence[bytes], compression: Compression) -> bytes:
    """As one batch, a record each millisecond."""
    records = [Record(at, FIRST_TIMESTAMP_MS + at, None, each) for at, each in enumerate(values)]
    return encode_batch(records, compression=compression)


def await_export(store: str, topic: str, ends: dict[int, int]) -> None:
    """Until durable history ends where the logs do, however long that takes."""
    opened, known, deadline = Store.open(store), -1, 0.0
    while (found := sum(durable_end(opened, topic, partition) for partition in ends)) < sum(ends.values()):
        if found > known:
            known, deadline = found, time.monotonic() + EXPORT_TIMEOUT_S
        assert time.monotonic() < deadline, f"no more of {topic} is exported than {known} records"
        time.sleep(LOOK_EVERY_S)


def durable_end(store: Store, topic: str, partition: int) -> int:
    found = [each for each in store.topics() if each.name == topic]
    return store.catalog(found[0], PartitionIndex(partition)).next_offset if found else 0
