"""Where a planned range went: retention, exports, deletions, damage. Bytes that filters spare. No Spark."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import pytest
from crc32c import crc32c
from pyarrow import parquet

from headrace.base.ids import Offset, TopicId
from headrace.base.ports import Objects
from headrace.cli.work.durable_views import merge
from headrace.net.client.batches import FetchedBatches
from headrace.net.client.errors import NoBrokerError
from headrace.spark.brokers import Brokers
from headrace.spark.options import parse_options
from headrace.spark.read.columns import Columns
from headrace.spark.read.extent import DataLoss, Sources, steady_catalog
from headrace.spark.read.filters import ALL, Wanted
from headrace.spark.read.plan import HotPart, Place, StorePart, Task, plan_tasks
from headrace.spark.read.reading import TaskReader, UnreachableError
from headrace.storage.objects import open_objects
from headrace.storage.tier.reader import DamagedHistory, Store
from headrace.wire.batches import (
    CRC_START,
    HEADER,
    HEADER_BYTES,
    LENGTH_END,
    encode_batch,
    iterate_headers,
    parse_header,
)
from headrace.wire.compression import Compression
from headrace.wire.records import Record, pack_records
from tests.spark.conftest import StoreBuilder
from tests.spark.world import LOOK_EVERY_S, TIME, Row, World, consumed, planned, random_batch, read, world


@pytest.fixture
def made(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path) as running:
        yield running


def fill(made: World, topic: str, count: int, seed: int = 3) -> None:
    random = Random(seed)
    made.produce(topic, [(0, random_batch(random)) for _ in range(count)])


def latest(rows: Sequence[Row]) -> dict[bytes | None, bytes]:
    """Of each key, unless it is deleted."""
    found: dict[bytes | None, bytes] = {}
    for row in sorted(rows, key=lambda row: row[2]):
        found.pop(row[5], None)
        if row[6] is not None:
            found[row[5]] = row[6]
    return found


def test_a_compacted_topic_has_the_last_value_of_every_key_in_history_too(tmp_path: Path) -> None:
    """Before its history is compacted and after; the log is by itself."""
    with world(tmp_path) as made:
        made.create(
            "t",
            segment_bytes="4096",
            cleanup_policy="compact",
            min_cleanable_dirty_ratio="0",
            durable_compacted_enable="true",
        )
        random = Random(5)
        made.produce("t", [(0, random_batch(random, keyed=True)) for _ in range(80)])
        end = made.exported("t", 40)
        told = latest(consumed(made.bootstrap, ["t"]))
        before = read(made.options("t"))
        assert latest(before) == told
        merged = asyncio.run(merge(made.bootstrap, "t", None, execute=True))
        assert (merged.problems, merged.after > 0) == ([], True)
        pause = threading.Event()
        while len(after := read(made.options("t"))) == len(before):  # until the mirror tells of it
            pause.wait(LOOK_EVERY_S)
        assert latest(after) == told
        assert {row[2] for row in after} < {row[2] for row in before}
        assert read(made.options("t", startingOffsets=json.dumps({"t": {"0": end}}))) == [
            row for row in after if row[2] >= end
        ]


# hot ranges


def test_only_what_lies_above_the_durable_frontier_is_asked_of_brokers(made: World) -> None:
    made.create("t", segment_bytes="8192")
    fill(made, "t", 60)
    frontier = made.exported("t", 1)
    parts = [part for task in planned(made.options("t")) for part in task.parts]
    hot = [part for part in parts if isinstance(part, HotPart)]
    assert [part.start for part in hot][:1] >= [frontier]
    assert max(part.end for part in parts if isinstance(part, StorePart)) == hot[0].start
    assert read(made.options("t")) == consumed(made.bootstrap, ["t"])


def test_a_planned_hot_range_is_found_in_the_segment_exported_since(tmp_path: Path) -> None:
    with world(tmp_path) as made:
        made.create("t", durable_enable="false", segment_bytes="8192")
        fill(made, "t", 60)
        options = made.options("t")
        tasks = planned(options)
        assert all(isinstance(part, HotPart) for task in tasks for part in task.parts)
        rows = consumed(made.bootstrap, ["t"])
        alter(made, "t", {"durable.enable": "true", "durable.export.max.lag.ms": "0"})
        made.exported("t", rows[-1][2] + 1)
        assert read(options, tasks) == rows
    assert read(options, tasks) == rows, "the brokers are gone, and the store has it all"


def alter(made: World, topic: str, configs: dict[str, str]) -> None:
    import confluent_kafka.admin as admin

    client = admin.AdminClient({"bootstrap.servers": made.bootstrap})
    entries = [
        admin.ConfigEntry(name, value, incremental_operation=admin.AlterConfigOpType.SET)
        for name, value in configs.items()
    ]
    resource = admin.ConfigResource(admin.ResourceType.TOPIC, topic, incremental_configs=entries)
    for future in client.incremental_alter_configs([resource]).values():
        future.result(150)


def test_with_no_broker_up_the_tail_is_named_and_history_is_served(tmp_path: Path) -> None:
    with world(tmp_path) as made:
        made.create("t", segment_bytes="8192")
        fill(made, "t", 60)
        frontier = made.exported("t", 1)
        rows = consumed(made.bootstrap, ["t"])
        options = made.options("t")
        tasks = planned(options)
    end = made.durable_end("t")
    assert end >= frontier
    with pytest.raises(UnreachableError, match=f"Offsets {end} to {rows[-1][2] + 1} .*topic 't', partition 0 cannot"):
        read(options, tasks)
    with pytest.raises(NoBrokerError, match="No broker answers"):
        planned(options)
    alone = {"store": made.store, "topic": "t", "includeHeaders": "true"}
    assert read(alone) == [row for row in rows if row[2] < end]


def test_what_is_truly_gone_stops_the_job_and_is_named(made: World) -> None:
    made.create("t", segment_bytes="8192", durable_enable="false")
    fill(made, "t", 60)
    rows = consumed(made.bootstrap, ["t"])
    tasks = planned(made.options("t"))
    made.delete_records("t", 50)
    with pytest.raises(DataLoss, match=r"Offsets 0 to 50 \(end exclusive\) of topic 't', partition 0 are gone"):
        read(made.options("t"), tasks)
    assert read(made.options("t", failOnDataLoss="false"), tasks) == [row for row in rows if row[2] >= 50]
    with pytest.raises(DataLoss, match="Offsets 10 to"):
        planned(made.options("t", startingOffsets='{"t": {"0": 10}}'))
    rest = read(made.options("t", startingOffsets='{"t": {"0": 10}}', failOnDataLoss="false"))
    assert rest == [row for row in rows if row[2] >= 50]


def test_a_topic_made_anew_is_not_read_in_place_of_the_old(made: World) -> None:
    made.create("t")
    fill(made, "t", 5)
    options = made.options("t")
    tasks = planned(options)
    stale = [task._replace(parts=tuple(renamed(part) for part in task.parts)) for task in tasks]
    with pytest.raises(DataLoss, match="it was deleted since, and made anew"):
        read(options, stale)


def renamed(part: Any) -> Any:
    return part._replace(place=part.place._replace(topic_id=UUID(int=5)))


def test_times_are_looked_up_by_brokers(made: World) -> None:
    """With no store: brokers give all. Times rise with offsets, so that the answer is known."""
    made.create("t", segment_bytes="4096")
    random = Random(6)
    numbers = range(0, 120, 6)
    batches = [encode_batch([record(random, each + at) for at in range(6)], base_offset=0) for each in numbers]
    made.produce("t", [(0, batch) for batch in batches])
    rows = consumed(made.bootstrap, ["t"])
    options = {name: value for name, value in made.options("t").items() if name != "store"}
    found = read({**options, "startingTimestamp": str(TIME + 33), "endingTimestamp": str(TIME + 71)})
    assert found == rows[33:71]
    assert read({**options, "startingTimestamp": "-5"}) == rows
    assert planned({**options, "startingTimestamp": str(TIME + 120)}) == []


def test_an_end_by_time_is_not_above_the_end_that_was_planned(made: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records come between the two questions."""
    made.create("t", durable_enable="false")
    made.produce("t", [(0, encode_batch([Record(0, TIME, b"k", b"v")]))])
    extents = Sources.extents

    def slow(self: Sources, *asked: Any) -> Any:
        found = extents(self, *asked)
        made.produce("t", [(0, encode_batch([Record(0, TIME + each, b"k", b"v")])) for each in (0, 50_000)])
        return found

    monkeypatch.setattr(Sources, "extents", slow)
    tasks = planned(made.options("t", endingTimestamp=str(TIME + 20_000)))
    assert [(part.start, part.end) for task in tasks for part in task.parts] == [(0, 1)]


class Silent(Brokers):
    """From offset 3 on the broker gives nothing whole, though its log goes on."""

    def fetch(
        self, topic: str, topic_id: TopicId, partition: int, offset: int, *, committed_only: bool = False
    ) -> Future[FetchedBatches]:
        found: Future[FetchedBatches] = Future()
        data = encode_batch([Record(at, TIME, b"k", b"v") for at in range(3)]) if offset == 0 else b""
        found.set_result(FetchedBatches(memoryview(data), Offset(10), "b:1"))
        return found


def test_what_a_broker_has_and_does_not_give_is_damage_and_no_loss(tmp_path: Path) -> None:
    tasks = [Task((HotPart(Place("t", TopicId(UUID(int=4)), 0), 0, 10),))]
    options = {"bootstrap": "127.0.0.1:1", "topic": "t", "includeHeaders": "true", "failOnDataLoss": "false"}
    with pytest.raises(DamagedHistory, match="No whole batch comes"):
        read(options, tasks, brokers=Silent("127.0.0.1:1"))
    table = tmp_path / "table"
    rows = read({**options, "mode": "PERMISSIVE", "quarantinePath": str(table)}, tasks, brokers=Silent("127.0.0.1:1"))
    assert [row[2] for row in rows] == [0, 1, 2]
    told = parquet.read_table(table).to_pylist()
    assert [(each["first_offset"], each["last_offset"]) for each in told] == [(3, 9)]


class Flipping(Brokers):
    """Brokers' answers with a byte changed in the batch that holds offset 30: at `at` of it."""

    at = 70

    def fetch(
        self, topic: str, topic_id: TopicId, partition: int, offset: int, *, committed_only: bool = False
    ) -> Future[FetchedBatches]:
        answer = super().fetch(topic, topic_id, partition, offset, committed_only=committed_only).result()
        data = bytearray(answer.data)
        for position, header in iterate_headers(answer.data):
            if header.base_offset <= 30 <= header.last_offset:
                data[position + self.at] ^= 0x10
        changed: Future[FetchedBatches] = Future()
        changed.set_result(answer._replace(data=memoryview(bytes(data))))
        return changed


@pytest.mark.parametrize("at", [70, 6, 24])  # a record; the base offset; the last offset delta
def test_damage_on_the_way_from_a_broker_is_named_and_gone_around(made: World, tmp_path: Path, at: int) -> None:
    made.create("t", durable_enable="false")
    random = Random(5)
    made.produce("t", [(0, encode_batch([record(random, each) for each in range(6)])) for _ in range(20)])
    rows = consumed(made.bootstrap, ["t"])
    options = made.options("t")
    with pytest.raises(
        DamagedHistory, match=f"partition 0 is damaged at offset 30 in object 'broker {made.bootstrap}'"
    ):
        read(options, brokers=flipping(made, at))
    permissive = {**options, "mode": "PERMISSIVE", "quarantinePath": str(tmp_path / "q")}
    found = read(permissive, brokers=flipping(made, at))
    (told,) = quarantined(tmp_path / "q")
    assert told["first_offset"] == 30
    assert told["last_offset"] == (35 if at == 70 else 119)
    assert found == [row for row in rows if not 30 <= row[2] <= told["last_offset"]]


def record(random: Random, at: int) -> Record:
    return Record(at, TIME + at, b"k", random.randbytes(50))


def flipping(made: World, at: int) -> Flipping:
    brokers = Flipping(made.bootstrap)
    brokers.at = at
    return brokers


# durable ranges


@pytest.fixture
def copy(store: StoreBuilder, tmp_path: Path) -> StoreBuilder:
    """Of the store that tests share: to be damaged."""
    shutil.copytree(store.root, tmp_path / "copy")
    built = StoreBuilder(tmp_path / "copy")
    built.segments, built.rows = store.segments, store.rows
    return built


def offsets(rows: list[Any], partition: int = 0) -> list[int]:
    return [row[2] for row in rows if row[1] == partition]


def test_an_object_that_the_catalog_still_names_is_damage_and_no_loss(copy: StoreBuilder) -> None:
    options = {"store": copy.url, "topic": "orders", "includeHeaders": "true"}
    segment = copy.segments["orders", 0][1]
    (copy.root / segment.key).unlink()
    for more in ({}, {"failOnDataLoss": "false"}):
        with pytest.raises(DamagedHistory, match=f"damaged at offset 200 in object '{segment.key}'"):
            read({**options, **more})


def test_what_retention_took_of_history_since_the_plan_is_named(made: World) -> None:
    made.create("t", segment_bytes="4096", durable_export_max_lag_ms="0")
    fill(made, "t", 40)
    rows = consumed(made.bootstrap, ["t"])
    made.exported("t", rows[-1][2] + 1)
    options = {"store": made.store, "topic": "t", "includeHeaders": "true"}
    tasks = planned(options)
    gone = next(part.segment for part in tasks[0].parts if isinstance(part, StorePart))
    made.delete_records("t", int(gone.next_offset))
    wait_for_start(made, int(gone.next_offset))
    Path(made.store.removeprefix("file://"), gone.key).unlink()  # a minute from now the broker would
    with pytest.raises(DataLoss, match=rf"Offsets 0 to {gone.next_offset} \(end exclusive\) of topic 't', partition 0"):
        read(options, tasks)
    left = [row for row in rows if row[2] >= gone.next_offset]
    assert read({**options, "failOnDataLoss": "false"}, tasks) == left
    assert read(options) == left


def wait_for_start(made: World, offset: int) -> None:
    store, pause = Store.open(made.store), threading.Event()
    topic = store.topic("t")
    while steady_catalog(store, topic, 0).readable_start < offset:
        pause.wait(LOOK_EVERY_S)


# damage


def quarantined(path: Path) -> list[dict[str, Any]]:
    rows = [row for file in path.glob("*.parquet") for row in parquet.read_table(file).to_pylist()]
    return sorted(rows, key=lambda row: (row["topic"], row["partition"], row["first_offset"]))


def spoil(copy: StoreBuilder, where: int, *, at: int, size: int = 1) -> tuple[str, int, int]:
    """Bytes of one batch of the second segment of orders-0; its object, and first and last offset."""
    segment = copy.segments["orders", 0][1]
    path = copy.root / segment.key
    whole = bytearray(path.read_bytes())
    position, header = list(iterate_headers(bytes(whole[: segment.batch_bytes])))[where]
    for each in range(size):
        whole[position + at + each] ^= 0x55
    path.write_bytes(whole)
    return segment.key, header.base_offset, header.last_offset


@pytest.mark.parametrize("more", [{}, {"maxBytesPerPartition": "500"}, {"startingOffsets": '{"orders": {"0": 285}}'}])
def test_permissive_reads_around_a_bad_batch_and_tells_of_it(
    copy: StoreBuilder, tmp_path: Path, more: dict[str, str]
) -> None:
    key, first, last = spoil(copy, 2, at=70)
    table = tmp_path / "quarantine"
    options = {"store": copy.url, "topic": "orders", "includeHeaders": "true", **more}
    with pytest.raises(DamagedHistory, match=f"partition 0 is damaged at offset {first} in object '{key}'"):
        read(options)
    for _ in range(2):  # a task that is repeated says the same once
        rows = read({**options, "mode": "PERMISSIVE", "quarantinePath": str(table)})
        start = 285 if "startingOffsets" in more else 0
        assert offsets(rows) == [at for at in range(start, 400) if not first <= at <= last]
        assert offsets(rows, 1) == list(range(200))
        (told,) = quarantined(table)
        assert (told["topic"], told["partition"], told["object"]) == ("orders", 0, key)
        assert (told["first_offset"], told["last_offset"]) == (max(first, start), last)
        assert "CRC32C" in told["reason"]


@pytest.mark.parametrize(("at", "size"), [(0, 8), (8, 4), (23, 4), (57, 4)])
def test_permissive_gives_no_wrong_row_whatever_of_a_batch_is_damaged(
    copy: StoreBuilder, tmp_path: Path, at: int, size: int
) -> None:
    """Where the frame is lost, up to where the index knows the next batch."""
    _, first, last = spoil(copy, 1, at=at, size=size)
    table = tmp_path / "quarantine"
    options = {"store": copy.url, "topic": "orders", "includeHeaders": "true", "mode": "PERMISSIVE"}
    rows = read({**options, "quarantinePath": str(table)})
    told = [(row["first_offset"], row["last_offset"]) for row in quarantined(table)]
    bad = {offset for low, high in told for offset in range(low, high + 1)}
    assert set(range(first, last + 1)) <= bad
    assert min(bad) == first
    assert offsets(rows) == [offset for offset in range(400) if offset not in bad]


def test_permissive_gives_no_row_of_a_batch_that_turns_out_to_be_malformed(tmp_path: Path) -> None:
    """Its checksums hold, and so does its first record: it was written so."""
    records = pack_records([Record(1, TIME, b"k", b"v")], 1, TIME) + b"\x01"
    header = parse_header(encode_batch([Record(at, TIME, b"k", b"v") for at in (1, 2)]))
    packed = HEADER.pack(*header._replace(batch_length=HEADER_BYTES - LENGTH_END + len(records)))
    checksum = crc32c(records, crc32c(packed[CRC_START:])).to_bytes(4, "big")
    bad = packed[: CRC_START - 4] + checksum + packed[CRC_START:] + records
    good = [encode_batch([Record(at, TIME, b"k", b"v")]) for at in (0, 3)]
    built = StoreBuilder(tmp_path / "store")
    built.topic("t", [[[good[0], bad, good[1]]]])
    options = {"store": built.url, "topic": "t", "includeHeaders": "true"}
    with pytest.raises(DamagedHistory, match="damaged at offset 1 in object"):
        read(options)
    rows = read({**options, "mode": "PERMISSIVE", "quarantinePath": str(tmp_path / "q")})
    assert offsets(rows) == [0, 3]
    assert [(row["first_offset"], row["last_offset"]) for row in quarantined(tmp_path / "q")] == [(1, 2)]


@pytest.mark.parametrize("cut", [True, False])
def test_permissive_tells_of_an_object_that_is_cut_or_gone(copy: StoreBuilder, tmp_path: Path, cut: bool) -> None:
    path = copy.root / copy.segments["orders", 0][0].key
    if cut:
        path.write_bytes(path.read_bytes()[:100])
    else:
        path.unlink()
    options = {"store": copy.url, "topic": "orders", "includeHeaders": "true", "mode": "PERMISSIVE"}
    rows = read({**options, "quarantinePath": str(tmp_path / "q")})
    assert offsets(rows) == list(range(200, 400))
    assert [(row["first_offset"], row["last_offset"]) for row in quarantined(tmp_path / "q")] == [(0, 199)]


# bytes that are not read


class Counting:
    """A store that counts the bytes which are asked of it, by object."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self.bytes: dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._objects, name)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        self.bytes[key] = self.bytes.get(key, 0) + length
        return self._objects.get_range(key, start, length)


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> StoreBuilder:
    """Four segments of 1 MB each; times rise by one with each offset, 1,000 records of 1 KB in each."""
    built = StoreBuilder(tmp_path_factory.mktemp("long"))
    random, segments = Random(2), []
    for segment in range(4):
        batches = []
        for at in range(0, 1000, 10):
            first = segment * 1000 + at
            records = [Record(first + each, TIME + first + each, b"k", random.randbytes(1000)) for each in range(10)]
            batches.append(encode_batch(records, compression=Compression.NONE))
        segments.append(batches)
    built.topic("long", [segments])
    return built


def counted(long: StoreBuilder, wanted: Wanted, **more: str) -> tuple[list[int], int, int]:
    """Offsets that come, bytes that were asked for, and objects that were touched."""
    options = parse_options({"store": long.url, "topic": "long", **more}, streaming=False)
    counting = Counting(open_objects(long.url))
    store = Store(counting, long.url)
    sources = Sources(options, store=store)
    tasks = plan_tasks(sources, sources.ranges(), wanted)
    found: list[int] = []
    for task in tasks:
        with TaskReader(options, Columns.select(["offset"], headers=False), store=store) as reader:
            for batch in reader.read(task):
                found += batch["offset"].to_pylist()
    return found, sum(counting.bytes.values()), len(counting.bytes)


STRETCH = 80_000
"""Of the index: at least 64 KiB, and a batch."""
FOOTER = 64 * 1024


def test_without_filters_all_is_read_once(long: StoreBuilder) -> None:
    found, size, objects = counted(long, ALL)
    assert found == list(range(4000))
    assert size == sum(each.batch_bytes for each in long.segments["long", 0])
    assert objects == 4


def test_offsets_spare_whole_segments_and_parts_of_them(long: StoreBuilder) -> None:
    found, size, objects = counted(long, Wanted(offsets=(2500, 2519)))
    assert found == list(range(2500, 2520))
    assert size <= 2 * STRETCH + FOOTER
    assert objects == 1
    again = counted(long, ALL, startingOffsets='{"long": {"0": 2500}}', endingOffsets='{"long": {"0": 2520}}')
    assert again == (found, size, 1)


def test_times_spare_whole_segments_and_parts_of_them(long: StoreBuilder) -> None:
    found, size, objects = counted(long, Wanted(time_from_ms=TIME + 3800))
    assert set(range(3800, 4000)) <= set(found)
    assert min(found) > 3600
    assert size <= 200 * 1100 + 2 * STRETCH + FOOTER
    assert objects == 1


@pytest.mark.parametrize("wanted", [Wanted(partitions=(1, 5)), Wanted(topics=frozenset()), Wanted(offsets=(5, 4))])
def test_what_cannot_be_wanted_costs_no_bytes(long: StoreBuilder, wanted: Wanted) -> None:
    assert counted(long, wanted) == ([], 0, 0)


def test_planning_many_segments_reads_none_of_their_bytes(long: StoreBuilder) -> None:
    options = parse_options({"store": long.url, "topic": "long"}, streaming=False)
    counting = Counting(open_objects(long.url))
    sources = Sources(options, store=Store(counting, long.url))
    assert plan_tasks(sources, sources.ranges())
    assert counting.bytes == {}
    assert json.dumps(sources.options.selection.topics) == '["long"]'
