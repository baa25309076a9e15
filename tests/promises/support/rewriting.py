"""A broker with topics of random batches by each writer or rewriter of record batches.

These are compaction, log append time, recompression, merges and compaction of history, Spark's writer (also
`replay`'s), our producer, coordinators of groups, and older versions.
"""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

import confluent_kafka
import pyarrow as pa
import pytest

from headrace.base.addresses import Address
from headrace.broker.partitions.intake import admission
from headrace.net.client.admin import Admin
from headrace.net.client.cluster import Cluster
from headrace.net.client.durable import DurableLink
from headrace.net.client.producer import Producer
from headrace.spark.read.columns import HEADERS_TYPE
from headrace.spark.write import writing
from headrace.spark.write.packing import Stamp
from headrace.spark.write.sink import parse_write_options
from headrace.storage import keeping
from headrace.storage.disk import LocalDisk
from headrace.storage.log.checkpoints import Compacted, decode_compacted, decode_fields, encode_fields
from headrace.storage.log.compaction import runners
from headrace.storage.log.compaction.runners import thread_runner
from headrace.storage.tier.format import decode_footer
from headrace.storage.tier.packed import batches_of
from headrace.storage.tier.reader import Store
from headrace.testing import BrokerThread
from headrace.wire.batches import encode_batch
from headrace.wire.compression import Compression
from headrace.wire.records import Record
from tests.broker import data_path
from tests.broker.group_broker import QUICK, RawClient
from tests.interop.support.kafka_batches import Row
from tests.interop.support.shapes import COMMIT, Shape, large_records, random_records
from tests.promises.support.load import QUIET
from tests.spark.world import World
from tests.wire.emptied import PACKED, as_left_by_older, unreadable, unreadable_in

LOOK_EVERY_S: Final = 0.02
BATCHES: Final = 70
"""Of a partition."""
LARGE_BYTES: Final = 300_000
HOT: Final[list[bytes | None]] = [b"hot %d" % at for at in range(5)]
FOREVER: Final = str(2**63 - 1)
KEPT: Final = {"retention_ms": "-1", "message_timestamp_after_max_ms": FOREVER}
COMPACT: Final = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0", "delete_retention_ms": "0"}
AT_HOME: Final = {"durable_enable": "false"}
SMALL: Final = {"segment_bytes": "16384"}
CODECS: Final = {codec: "uncompressed" if codec is Compression.NONE else codec.name.lower() for codec in Compression}
INTERNAL: Final = "__consumer_offsets"

COMPACTED: Final = ("rw-compacted", "rw-stamped", *(f"rw-packed-{name}" for name in CODECS.values()))
"""Compacted by their logs."""
HISTORY: Final = ("rw-history", "rw-older-history")
"""Compacted as durable segments; the logs are lost."""
OLDER: Final = ("rw-older-served", "rw-older-mended")
"""Of older versions. The first one is no longer compacted, so that it stays as it is."""
PLAIN: Final = ("rw-recompressed", "rw-merged", "rw-spark", "rw-produced")
"""Topics that lack no record."""
TOPICS: Final = (*COMPACTED, *HISTORY, *OLDER, *PLAIN)


@dataclass
class Rewriting:
    """The broker, and what was written, as rows without their time's type; `stop` and `start` in between."""

    root: Path
    partitions: int
    written: dict[tuple[str, int, int], Row] = field(default_factory=dict)
    """By place, where that is known."""
    placed: dict[str, list[tuple[Any, ...]]] = field(default_factory=dict)
    """By topic where it is not: time, key, value, headers."""

    def start(self) -> None:
        store = f"file://{self.root / 'store'}"
        configs = {**QUICK, "log.cleaner.backoff.ms": "20", "durable.url": store, "offsets.topic.num.partitions": "1"}
        configs["flush.policy"] = "os"  # the written bytes are equal
        self._thread = BrokerThread(configs=configs, data=self.root / "data")
        self.world = World(self._thread.start().bootstrap, store)

    def stop(self) -> None:
        writing.Producer.forget()
        self._thread.stop()

    def log_of(self, topic: str, partition: int = 0) -> Path:
        return self.root / "data" / "logs" / f"{topic}-{partition}"

    def logs_of(self, topic: str) -> list[Path]:
        return [self.log_of(topic, each) for each in range(self.partitions)]

    def create(self, topic: str, **configs: str) -> None:
        self.world.create(topic, self.partitions, **{**KEPT, **SMALL, **configs})

    def alter(self, topic: str, **configs: str) -> None:
        async def alter() -> None:
            async with Cluster(self.world.bootstrap) as cluster:
                chosen = {name.replace("_", "."): value for name, value in configs.items()}
                await Admin(cluster).alter_topic_configs(topic, set_=chosen)

        asyncio.run(alter())

    async def produce(self, client: RawClient, topic: str, partition: int, shape: Shape) -> None:
        answer = await data_path.produce(client, topic, shape.batch, partition=partition)
        assert answer.error_code == 0, (topic, answer)
        if shape.records == [COMMIT]:
            return
        for record in shape.records:
            place = (topic, partition, answer.base_offset + record.offset)
            self.written[place] = (*place, record.timestamp, 0, record.key, record.value, record.headers)

    def fill(self, topic: str, random: Random, shapes: Callable[[Random, int], Shape], count: int = BATCHES) -> None:
        async def fill() -> None:
            async with RawClient(self.world.bootstrap) as client:
                for partition in range(self.partitions):
                    for number in range(count):
                        await self.produce(client, topic, partition, shapes(random, number))

        asyncio.run(fill())

    # waiting

    def until(self, holds: Callable[[], bool]) -> None:
        """The test's own timeout ends a wait in vain."""
        pause = threading.Event()
        while not holds():
            pause.wait(LOOK_EVERY_S)

    def is_clean(self, topic: str) -> bool:
        """Up to the segments that are written to."""
        return all(note_of(log).clean_to == int(files_of(log)[-1].stem) for log in self.logs_of(topic))

    def is_served(self, topic: str) -> bool:
        async def first() -> list[int]:
            async with RawClient(self.world.bootstrap) as client:
                each = range(self.partitions)
                return [(await data_path.offset_at(client, topic, -2, partition=at)).error_code for at in each]

        return not any(asyncio.run(first()))

    def end_of(self, topic: str, partition: int) -> int:
        async def end() -> int:
            async with RawClient(self.world.bootstrap) as client:
                return int((await data_path.offset_at(client, topic, -1, partition=partition)).offset)

        return asyncio.run(end())

    def export_all(self, topic: str) -> None:
        for partition in range(self.partitions):
            self.world.exported(topic, self.end_of(topic, partition), partition)

    def merge(self, topic: str) -> None:
        """As `headrace durable merge`."""

        async def merge() -> dict[str, Any]:
            host, _, port = self.world.bootstrap.rpartition(":")
            async with DurableLink(Address(host, int(port))) as link:
                topic_id = Store.open(self.world.store).topic(topic).topic_id
                return await link.merge(topic_id, None, execute=True)

        before = self.objects(topic)
        told = asyncio.run(merge())
        assert not told.get("problems"), told
        self.until(lambda: self.objects(topic) != before)

    def objects(self, topic: str) -> list[bytes]:
        """The batches of each durable segment of it, as the mirror names them."""
        store = Store.open(self.world.store)
        found = store.topic(topic)
        catalogs = [store.catalog(found, each) for each in range(self.partitions)]  # type: ignore[arg-type]
        entries = [entry.descriptor for catalog in catalogs for entry in catalog]
        place = self.root / "store"
        bodies = ((place / each.key).read_bytes() for each in entries)
        return [bytes(batches_of(body, decode_footer(body))) for body in bodies]


def note_of(log: Path) -> Compacted:
    note = log / "compaction.json"
    return decode_compacted(note.read_bytes()) if note.exists() else Compacted()


def files_of(log: Path) -> list[Path]:
    return sorted(log.glob("*.log"))


# writing


def any_shape(random: Random, number: int, keyless: int = 0) -> Shape:
    """All of a batch is replaced later, or some, or none of it; the first ones have records without keys."""
    match random.randrange(4):
        case 0:
            keys = HOT
        case 1:
            keys = [b"own %d" % number]
        case _:
            keys = [*HOT, b"own %d" % number, b"other %d" % number]
    keys = [*keys, None] if number < keyless else keys
    records = large_records(random, keys, LARGE_BYTES) if number == 5 else distinct(random_records(random, keys))
    return packed(records, random.choice(list(Compression)), random.getrandbits(40) if random.random() < 0.5 else -1)


def packed(records: list[Record], codec: Compression, producer: int) -> Shape:
    """By a producer of this one batch, or none."""
    sequence = 0 if producer >= 0 else -1
    batch = encode_batch(
        records, compression=codec, producer_id=producer, producer_epoch=sequence, base_sequence=sequence
    )
    return Shape(batch, records)


def distinct(records: list[Record]) -> list[Record]:
    """With values of which none is another's by chance: what replaces a record is told from it."""
    return [
        record if record.value is None else record._replace(value=b"%d " % record.offset + record.value)
        for record in records
    ]


def older_shape(random: Random, number: int) -> Shape:
    """Compressed, and by producers that are remembered; of every second batch nothing is left."""
    keys: list[bytes | None] = HOT if number % 2 else [b"own %d" % number, *HOT]
    records = random_records(random, keys, count=3)
    records[0] = records[0]._replace(key=keys[0])
    return packed(records, PACKED[number % len(PACKED)], random.getrandbits(40))


def with_markers(random: Random, number: int) -> Shape:
    if random.random() < 0.2:
        return Shape(encode_batch([COMMIT], control=True), [COMMIT])
    return any_shape(random, number)


def compacted(here: Rewriting, random: Random) -> None:
    """The first half while records without keys are taken yet."""
    for topic in COMPACTED:
        codec = topic.removeprefix("rw-packed-")
        more = {"compression_type": codec} if codec != topic else {}
        here.create(
            topic, **AT_HOME, **more, **({"message_timestamp_type": "LogAppendTime"} if topic == "rw-stamped" else {})
        )
    for topic in COMPACTED:
        here.fill(topic, random, lambda random, number: any_shape(random, number, keyless=9), BATCHES // 2)
        here.alter(topic, **COMPACT)
    for topic in COMPACTED:
        here.fill(topic, random, with_markers if topic == "rw-compacted" else any_shape)
    here.until(lambda: all(map(here.is_clean, COMPACTED)))


def older(here: Rewriting, random: Random) -> None:
    """To be made older when the broker is stopped."""
    for topic in OLDER:
        here.create(topic, **COMPACT, **AT_HOME)
        here.fill(topic, random, older_shape)
    here.until(lambda: all(map(here.is_clean, OLDER)))
    here.alter("rw-older-served", cleanup_policy="delete")


def history(here: Rewriting, random: Random, patch: pytest.MonkeyPatch) -> None:
    exporting = {"durable_export_max_lag_ms": "0"}
    for topic in HISTORY:
        here.create(topic, **COMPACT, **exporting, durable_compacted_enable="true")
        here.fill(topic, random, older_shape if topic == "rw-older-history" else with_markers)
    here.create("rw-merged", **exporting, segment_bytes="4096")
    here.fill("rw-merged", random, any_shape)
    for topic in (*HISTORY, "rw-merged"):
        here.export_all(topic)
    here.merge("rw-history")
    here.merge("rw-merged")
    with patch.context() as as_before:
        as_before.setattr(keeping, "emptied", lambda header: unreadable(header, header.compression))
        here.merge("rw-older-history")


def recompressed(here: Rewriting, random: Random) -> None:
    """Into each codec from each."""
    here.create("rw-recompressed")
    for name in CODECS.values():
        here.alter("rw-recompressed", compression_type=name)
        here.fill("rw-recompressed", random, any_shape, 12)


def by_clients(here: Rewriting, random: Random) -> None:
    """By Spark's writer, which is `replay`'s too, and by ours, in each codec."""
    here.create("rw-spark")
    here.create("rw-produced")
    for codec in Compression:
        records = random_records(random, [None, b"", *HOT], count=60) + large_records(random, HOT, LARGE_BYTES)
        records = [record._replace(timestamp=max(record.timestamp, 0)) for record in records]
        for topic, write in (("rw-spark", by_spark), ("rw-produced", by_producer)):
            write(here, topic, codec, records)
            told = here.placed.setdefault(topic, [])
            told += [(each.timestamp, each.key, each.value, each.headers) for each in records]


def by_spark(here: Rewriting, topic: str, codec: Compression, records: list[Record]) -> None:
    schema = pa.schema(
        {"key": pa.binary(), "value": pa.binary(), "timestamp": pa.timestamp("us", tz="UTC"), "headers": HEADERS_TYPE}
    )
    rows = [
        {
            "key": record.key,
            "value": record.value,
            "timestamp": record.timestamp * 1000,
            "headers": [{"key": name, "value": value} for name, value in record.headers],
        }
        for record in records
    ]
    options = {"bootstrap": here.world.bootstrap, "topic": topic, "compression": codec.name.lower()}
    parsed = parse_write_options(options, streaming=False)
    stamp = Stamp("a query", "0", "0")
    writing.TaskWriter(parsed, {}, stamp).write([pa.RecordBatch.from_pylist(rows, schema)])


def by_producer(here: Rewriting, topic: str, codec: Compression, records: list[Record]) -> None:
    async def send() -> None:
        async with Cluster(here.world.bootstrap) as cluster, Producer(cluster, compression=codec) as producer:
            for record in records:
                await producer.send(
                    topic,
                    key=record.key,
                    value=record.value,
                    headers=record.headers,
                    timestamp_ms=record.timestamp,
                )

    asyncio.run(send())


def groups(here: Rewriting) -> None:
    """Commits over and over, and members: what coordinators write."""
    about = {"bootstrap.servers": here.world.bootstrap, "enable.auto.commit": False, **QUIET}
    for group in ("one", "other"):
        consumer = confluent_kafka.Consumer({**about, "group.id": group, "auto.offset.reset": "earliest"})
        consumer.subscribe(["rw-spark"])
        assert consumer.poll(60) is not None
        for offset in range(10):
            consumer.commit(offsets=[confluent_kafka.TopicPartition("rw-spark", 0, offset)], asynchronous=False)
        consumer.close()


# leftovers of older versions


def make_older(log: Path) -> None:
    """While the broker is stopped."""
    found = 0
    for number, file in enumerate(files_of(log)):
        older = as_left_by_older(file.read_bytes(), PACKED[number % len(PACKED)])
        found += unreadable_in(older)
        file.write_bytes(older)
    assert found, f"{log.name} has emptied batches"
    note = decode_fields((log / "compaction.json").read_bytes())
    del note["is_mended"]
    (log / "compaction.json").write_bytes(encode_fields(note))


def unreadable_on_disk(here: Rewriting, topic: str) -> int:
    return sum(unreadable_in(file.read_bytes()) for log in here.logs_of(topic) for file in files_of(log))


@contextmanager
def rewriting(root: Path, *, seed: int, partitions: int) -> Iterator[Rewriting]:
    """All of it, served."""
    random, here = Random(seed), Rewriting(root, partitions)
    with pytest.MonkeyPatch.context() as patch:
        # control batches, as a coordinator of transactions will write them
        patch.setattr(admission, "UNUSUAL", 0)
        patch.setattr(runners, "run_in_child", thread_runner(LocalDisk()))
        here.start()
        try:
            compacted(here, random)
            older(here, random)
            history(here, random, patch)
            recompressed(here, random)
            by_clients(here, random)
            groups(here)
            here.stop()
            for topic in (*HISTORY, "rw-merged"):
                for log in here.logs_of(topic):
                    shutil.rmtree(log)
            for topic in OLDER:
                for log in here.logs_of(topic):
                    make_older(log)
            here.start()
            here.until(lambda: all(map(here.is_served, TOPICS)))
            here.until(lambda: all(note_of(log).is_mended for log in here.logs_of("rw-older-mended")))
            yield here
        finally:
            here.stop()
