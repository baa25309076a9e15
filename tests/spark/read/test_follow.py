"""A stream's offsets: limits are kept to, all is read once, and what is gone is told. No Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.errors import UsageError
from headrace.base.ids import LeaderEpoch, Offset, PartitionIndex
from headrace.metadata.segments import PartitionCatalog
from headrace.spark.options import parse_options
from headrace.spark.read.extent import DataLoss
from headrace.spark.read.follow import Follower, Limits, shares
from headrace.spark.read.positions import StreamOffsets, TopicOffsets, formatted, merged, parsed
from headrace.storage.tier.export import ExportSource, export_segment
from headrace.storage.tier.following import followed
from headrace.storage.tier.reader import Store
from headrace.wire.batches import encode_batch
from headrace.wire.records import Record
from tests.spark.conftest import CLUSTER, StoreBuilder
from tests.spark.world import Row, World, consumed, random_batch, read, world


@pytest.fixture
def made(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path) as running:
        yield running


def fill(made: World, topic: str, count: int, *, partitions: int = 1, seed: int = 3) -> None:
    random = Random(seed)
    made.produce(topic, [(at % partitions, random_batch(random)) for at in range(count)])


@pytest.fixture
def follower() -> Iterator[Any]:
    opened: list[Follower] = []

    def follow(options: dict[str, str]) -> Follower:
        opened.append(Follower(parse_options(options, streaming=True)))
        return opened[-1]

    yield follow
    for each in opened:
        each.close()


def batches(follower: Follower, start: StreamOffsets, limits: Limits) -> Iterator[tuple[StreamOffsets, StreamOffsets]]:
    """Until there is nothing more."""
    while (end := follower.latest(start, limits)) != start:
        yield start, end
        start = end


def rows_between(follower: Follower, options: dict[str, str], start: StreamOffsets, end: StreamOffsets) -> list[Row]:
    kept = {name: value for name, value in options.items() if name != "startingOffsets"}
    return read(kept, follower.tasks(start, end))


@pytest.mark.parametrize("limits", [Limits(records=37), Limits(bytes=4_000), Limits(records=50, bytes=6_000), Limits()])
def test_micro_batches_read_all_once_within_their_limits(made: World, follower: Any, limits: Limits) -> None:
    made.create("t", 3, segment_bytes="8192")
    fill(made, "t", 120, partitions=3)
    made.exported("t", 1)
    options = made.options("t", startingOffsets="earliest")
    stream = follower(options)
    found: list[Row] = []
    for start, end in batches(stream, stream.initial(), limits):
        rows = rows_between(stream, options, start, end)
        if limits.records is not None:
            assert 0 < len(rows) <= limits.records
        if limits.bytes is not None:
            assert sum(len(row[5] or b"") + len(row[6] or b"") for row in rows) < 4 * limits.bytes
        found += rows
    assert sorted(found) == consumed(made.bootstrap, ["t"])


def test_a_stream_starts_at_the_end_and_goes_on_with_what_comes(made: World, follower: Any) -> None:
    made.create("t")
    fill(made, "t", 5)
    before = len(consumed(made.bootstrap, ["t"]))
    options = made.options("t")
    stream = follower(options)
    start = stream.initial()
    assert start == {"t": {"id": start["t"]["id"], "0": before}}
    assert stream.latest(start, Limits()) == start
    assert stream.tasks(start, start) == []
    fill(made, "t", 5)
    end = stream.latest(start, Limits())
    assert rows_between(stream, options, start, end) == consumed(made.bootstrap, ["t"])[before:]
    again = follower(options)  # as after a restart from a checkpoint
    assert rows_between(again, options, start, end) == consumed(made.bootstrap, ["t"])[before:]


def test_available_now_stops_at_what_was_there(made: World, follower: Any) -> None:
    made.create("t")
    fill(made, "t", 10)
    stream = follower(made.options("t", startingOffsets="earliest"))
    stream.stop_at_what_is_there()
    before = len(consumed(made.bootstrap, ["t"]))
    fill(made, "t", 10)
    start = stream.initial()
    ends = [end for _, end in batches(stream, start, Limits(records=7))]
    assert ends[-1]["t"]["0"] == before


def test_topics_that_come_later_are_read_from_their_start(made: World, follower: Any) -> None:
    made.create("law-a")
    options = made.options("", topicPattern="law-.*")
    stream = follower(options)
    start = stream.initial()
    made.create("law-b")
    fill(made, "law-b", 4)
    end = stream.latest(start, Limits(records=1000))
    assert rows_between(stream, options, start, end) == consumed(made.bootstrap, ["law-b"])


def test_what_a_checkpoint_names_and_is_gone_is_told(made: World, follower: Any) -> None:
    made.create("t", durable_enable="false")
    fill(made, "t", 60)
    end = {"t": {"0": len(consumed(made.bootstrap, ["t"]))}}
    made.delete_records("t", 40)
    with pytest.raises(DataLoss, match=r"Offsets 3 to .*topic 't', partition 0 are gone"):
        follower(made.options("t")).tasks({"t": {"0": 3}}, end)
    with pytest.raises(DataLoss, match="the log ends at"):
        follower(made.options("t")).latest({"t": {"0": 10**6}}, Limits())
    with pytest.raises(DataLoss, match="the log ends at 50"):  # as Spark 4.1 asks
        follower(made.options("t")).tasks({"t": {"0": 60}}, {"t": {"0": 50}})
    with pytest.raises(UsageError, match="names offset 3 of topic 't'"):
        follower(made.options("t", startingOffsets='{"t": {"0": 3}}')).initial()
    lenient = made.options("t", failOnDataLoss="false", startingOffsets='{"t": {"0": 3}}')
    assert follower(lenient).initial()["t"]["0"] == 40
    assert follower(lenient).latest({"t": {"0": 10**6}}, Limits())["t"]["0"] == 10**6
    rows = rows_between(follower(lenient), lenient, {"t": {"0": 3}}, end)
    assert [row[2] for row in rows] == list(range(40, end["t"]["0"]))


@pytest.mark.parametrize("now", [False, True])
@pytest.mark.parametrize("batches_anew", [3, 60])
def test_a_topic_made_anew_is_told_however_long_it_is(made: World, follower: Any, now: bool, batches_anew: int) -> None:
    made.create("t", durable_enable="false")
    fill(made, "t", 30)
    options = made.options("t", startingOffsets="earliest")
    stream = follower(options)
    start = stream.latest(stream.initial(), Limits())
    made.delete("t")
    made.create("t", durable_enable="false")
    with pytest.raises(DataLoss, match=r"topic 't', partition 0 .*made anew"):
        follower(options).tasks(stream.initial(), start)
    fill(made, "t", batches_anew, seed=7)
    again = follower(options)
    if now:
        again.stop_at_what_is_there()
    with pytest.raises(DataLoss, match=r"topic 't', partition 0 .*made anew"):
        again.latest(start, Limits())
    lenient = {**options, "failOnDataLoss": "false"}
    stream = follower(lenient)
    found: list[Row] = []
    for each in batches(stream, start, Limits(records=100)):
        found += rows_between(stream, lenient, *each)
    assert found == consumed(made.bootstrap, ["t"])


def test_a_checkpoint_without_ids_goes_on(made: World, follower: Any) -> None:
    """As earlier versions wrote it."""
    made.create("t", durable_enable="false")
    fill(made, "t", 10)
    options = made.options("t")
    stream = follower(options)
    start = {"t": {"0": 5}}
    end = stream.latest(start, Limits())
    assert rows_between(stream, options, start, end) == consumed(made.bootstrap, ["t"])[5:]


@pytest.mark.parametrize("seed", range(3))
def test_a_micro_batch_with_room_for_all_takes_all(made: World, follower: Any, seed: int) -> None:
    """Bytes of a range are no whole numbers: rounded down, they would leave its last record for a batch of its own."""
    topic, random = f"room{seed}", Random(seed)
    made.create(topic, 3, durable_enable="false")
    made.produce(topic, [(at % 3, random_batch(random)) for at in range(40)])
    stream = follower(made.options(topic, startingOffsets="earliest"))
    start = stream.initial()
    assert stream.latest(start, Limits(bytes=10**9)) == stream.latest(start, Limits())


@pytest.mark.parametrize("limits", [Limits(), Limits(records=20)])
def test_a_replay_reads_a_new_topic_from_where_it_was_first_read(made: World, follower: Any, limits: Limits) -> None:
    made.create("law-a", durable_enable="false")
    options = made.options("", topicPattern="law-.*")
    start = follower(options).initial()
    made.create("law-b", durable_enable="false")
    fill(made, "law-b", 10)
    made.delete_records("law-b", 2)
    stream = follower(options)
    end = stream.latest(start, limits)
    planned = stream.tasks(start, end)
    assert follower(options).tasks(start, end) == planned
    made.delete_records("law-b", 4)
    with pytest.raises(DataLoss, match=r"Offsets 2 to .*topic 'law-b', partition 0 are gone"):
        follower(options).tasks(start, end)


def test_a_replay_of_the_first_batch_begins_where_it_began(made: World, follower: Any) -> None:
    """Spark asks for the initial offsets again, for no checkpoint has them."""
    made.create("t", durable_enable="false")
    fill(made, "t", 3)
    options = made.options("t")
    stream = follower(options)
    start = stream.initial()
    fill(made, "t", 5)
    end = stream.latest(start, Limits())
    planned = stream.tasks(start, end)
    assert planned
    fill(made, "t", 5)
    again = follower(options)
    assert again.tasks(again.initial(), end) == planned
    assert "from" not in again.latest(end, Limits())["t"]


def test_a_store_alone_is_followed_as_segments_are_published(made: World, follower: Any) -> None:
    made.create("t", segment_bytes="4096", durable_export_max_lag_ms="0")
    fill(made, "t", 10)
    options = {"store": made.store, "topic": "t", "includeHeaders": "true", "startingOffsets": "earliest"}
    made.exported("t", len(consumed(made.bootstrap, ["t"])))
    stream = follower(options)
    start = stream.initial()
    middle = stream.latest(start, Limits())
    fill(made, "t", 30, seed=8)
    rows = consumed(made.bootstrap, ["t"])
    made.exported("t", len(rows))
    end = stream.latest(middle, Limits())
    found = [rows_between(stream, options, *each) for each in ((start, middle), (middle, end))]
    assert found[0] + found[1] == rows
    assert found[1]


class History:
    """Of the one partition of a topic, segment by segment, as a broker publishes and deletes it."""

    def __init__(self, root: Path) -> None:
        self.built = StoreBuilder(root)
        self.built.topic("t", [[]])
        self.url = self.built.url
        self._topic = Store.open(self.url).topic("t").topic_id
        self._catalog = PartitionCatalog.empty(self._topic, PartitionIndex(0))
        self._events = 1

    def publish(self, *starts: int) -> None:
        """Segments of ten records that begin there."""
        for start in starts:
            source = ExportSource(
                cluster_id=CLUSTER,
                topic_id=self._topic,
                topic="t",
                partition=PartitionIndex(0),
                leader_epoch=LeaderEpoch(0),
                start_offset=Offset(start),
                limit_offset=Offset(2**62),
            )
            batch = encode_batch([Record(start + at, at, None, b"v") for at in range(10)])
            self._catalog = self._catalog.published(export_segment(self.built.objects, source, [batch]))
        self._mirror()

    def delete(self, below: int) -> None:
        gone = tuple(each.sha256 for each in self._catalog.below(Offset(below)))
        self._catalog = self._catalog.deleted(Offset(below), gone)
        self._mirror()

    def _mirror(self) -> None:
        self._events += 1
        self.built.mirror.write_partition(self._topic, PartitionIndex(0), self._catalog, raft_index=self._events)


BEGUN: list[dict[str, str]] = [{"startingOffsets": "earliest"}, {}, {"startingOffsets": '{"t": {"0": -2}}'}]


@pytest.mark.parametrize("limits", [Limits(), Limits(records=4), Limits(bytes=100)])
@pytest.mark.parametrize("begun", BEGUN)
def test_what_was_never_in_history_is_no_loss(
    tmp_path: Path, follower: Any, begun: dict[str, str], limits: Limits
) -> None:
    """A stream of a store alone begins before anything is exported, and retention had cut the log by then."""
    history = History(tmp_path / "store")
    options = {"store": history.url, "topic": "t", "includeHeaders": "true", **begun}
    start = follower(options).initial()
    assert follower(options).latest(start, limits) == start
    history.publish(3000, 3010)
    stream = follower(options)  # as after a restart, too
    found: list[Row] = []
    for each in batches(stream, start, limits):
        found += rows_between(follower(options), options, *each)
    assert [row[2] for row in found] == [*range(3000, 3020)]


@pytest.mark.parametrize(
    ("events", "gone"),
    [
        ([("publish", 3000, 3010), ("delete", 3010)], "Offsets 0 to 3020 "),
        ([("publish", 3000, 3010), ("delete", 3004)], "Offsets 3000 to 3020 "),
        ([("publish", 3000), ("delete", 3010), ("publish", 3010)], "Offsets 0 to 3020 "),
        ([("publish", 3000, 3010), ("delete", 3020)], "Offsets 0 to 3020 "),
    ],
)
def test_what_was_in_history_and_is_deleted_is_a_loss(
    tmp_path: Path, follower: Any, events: list[Any], gone: str
) -> None:
    """Though the stream began before there was any."""
    history = History(tmp_path / "store")
    options = {"store": history.url, "topic": "t", "startingOffsets": "earliest"}
    start = follower(options).initial()
    for name, *offsets in events:
        getattr(history, name)(*offsets)
    stream = follower(options)
    with pytest.raises(DataLoss, match=f"{gone}.*topic 't', partition 0 are gone"):
        stream.tasks(start, stream.latest(start, Limits()))


@pytest.mark.parametrize(("first", "at"), [(0, 0), (0, 5), (3000, 3000), (3000, 2999)])
def test_what_a_stream_was_about_to_read_and_is_deleted_is_a_loss(
    tmp_path: Path, follower: Any, first: int, at: int
) -> None:
    """Also what lies before all history, where the checkpoint names it: somebody had it there."""
    history = History(tmp_path / "store")
    history.publish(first, first + 10, first + 20)
    if at >= first:
        history.delete(first + 10)
    stream = follower({"store": history.url, "topic": "t"})
    start = {"t": {"0": at}}
    with pytest.raises(DataLoss, match=f"Offsets {at} to {first + 30} .*topic 't', partition 0 are gone"):
        stream.tasks(start, stream.latest(start, Limits()))


def test_a_followed_catalog_is_the_whole_one(tmp_path: Path) -> None:
    """The catalog known by then may be any beginning of it, or all, or have entries that were deleted since."""
    built = StoreBuilder(tmp_path / "store")
    random = Random(4)
    at, segments = 0, []
    for _ in range(5):
        records = [random_batch(random)]
        segments.append([renumbered(records[0], at)])
        at += count_of(records[0])
    built.topic("t", [segments])
    store = Store.open(built.url)
    topic = store.topic("t")
    whole = store.catalog(topic, PartitionIndex(0))
    known = type(whole).empty(topic.topic_id, PartitionIndex(0))
    for entry in whole:
        assert followed(store, topic, PartitionIndex(0), known) == whole
        known = known.published(entry.descriptor)
    assert followed(store, topic, PartitionIndex(0), whole) == whole


def renumbered(batch: bytes, base: int) -> bytes:
    """Its base offset lies outside the checksum."""
    return base.to_bytes(8, "big") + batch[8:]


def count_of(batch: bytes) -> int:
    return int.from_bytes(batch[57:61], "big")


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=8), st.integers(1, 10**9))
def test_shares_are_exact_and_never_more_than_is_wanted(wanted: list[int], limit: int) -> None:
    found = shares(wanted, limit)
    assert sum(found) == min(limit, sum(wanted))
    assert all(0 <= share <= each for share, each in zip(found, wanted, strict=True))


@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=8), st.integers(16, 10**9))
def test_no_share_waits_for_a_large_one(wanted: list[int], limit: int) -> None:
    found = zip(shares(wanted, limit), wanted, strict=True)
    assert all(share >= min(each, limit // (2 * len(wanted))) > 0 for share, each in found)


def test_a_small_partition_is_read_beside_a_large_one(made: World, follower: Any) -> None:
    made.create("t", 2, durable_enable="false")
    random = Random(5)
    made.produce("t", [*((0, random_batch(random)) for _ in range(80)), (1, random_batch(random))])
    for limits in (Limits(records=4), Limits(bytes=400)):
        stream = follower(made.options("t", startingOffsets="earliest"))
        assert stream.latest(stream.initial(), limits)["t"]["1"] > 0


def test_a_stream_of_two_topics_of_one_name_is_refused(tmp_path: Path, follower: Any) -> None:
    built = StoreBuilder(tmp_path / "store")
    for _ in range(2):
        built.topic("t", [[[random_batch(Random(1))]]])
    ids = ",".join(str(topic.topic_id) for topic in Store.open(built.url).topics())
    with pytest.raises(UsageError, match="Two topics are called 't'"):
        follower({"store": built.url, "topic": ids}).initial()


def test_a_new_partition_is_begun_where_the_checkpoint_says() -> None:
    start = {"t": TopicOffsets("a", {0: 5}, {})}
    there = {"t": TopicOffsets("a", {0: 9, 1: 7}, {0: 0, 1: 3})}
    end = merged(start, there, first=False)
    assert end == {"t": TopicOffsets("a", {0: 9, 1: 7}, {1: 3})}
    assert parsed(formatted(end)) == end
