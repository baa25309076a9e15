"""The law of the seam where both sides are compacted.

A reader reads a topic's log, or its durable history and the log behind that. It reads all or from anywhere, at one time
or while both are compacted. It gets the last record of every key, and no deleted key.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.base.ids import ClusterId, LeaderEpoch, Offset, TopicPartition
from headrace.broker.partitions import bounds
from headrace.broker.partitions.replica import Replica
from headrace.broker.partitions.settings import PartitionSettings
from headrace.metadata.segments import PartitionCatalog
from headrace.replica.producers import ProducerStates
from headrace.storage.tier.export import ExportSource, export_segment
from headrace.wire.errors import ErrorCode
from tests.broker.local_logs import local
from tests.broker.partitions.no_events import NoEvents
from tests.broker.rooms import a_room
from tests.storage.log.compaction.test_log_compaction import CONFIG, World, read_from, world
from tests.storage.log.log_world import flush
from tests.tier.test_compact import TOPIC, ZERO, History, Read, table
from tests.tiers import examples

RETENTION_MS = CONFIG.delete_retention_ms
SETTINGS = PartitionSettings(
    max_message_bytes=1_000_000,
    min_insync_replicas=1,
    codec=None,
    times=None,
    durable=True,
    compact=True,
    delete=False,
    durable_lag_ms_max=-1,
)
Batch = Sequence[tuple[bytes, bytes | None]]


class Idle:
    """A flusher, a clock: nothing of them is wanted."""

    def request(self, replica: Replica) -> None:
        """The test flushes."""

    def now_ms(self) -> int:
        return 0


class Held(Replica):
    """A copy that is whole and committed."""

    @property
    def leader_epoch(self) -> LeaderEpoch:
        return LeaderEpoch(0)

    @property
    def high_watermark(self) -> Offset:
        return self.log.flushed_end

    def check_position(self, offset: Offset, believed: int) -> ErrorCode:
        return ErrorCode.NONE

    def _on_flush_done(self, flushed_end: Offset) -> None:
        """Nobody waits for it."""


class Both(History):
    """A log and its history, as a broker keeps them: `log` is all that was written, `held` what there is of it."""

    def __init__(self) -> None:
        super().__init__()
        self.held: World = world()
        self.mirror = self.catalog
        """The state that readers of the store use."""
        idle: Any = Idle()
        self.role = Held(
            topic="t",
            topic_partition=TopicPartition(TOPIC, ZERO),
            partition_log=self.held.log,
            producers=ProducerStates(),
            settings=SETTINGS,
            flusher=idle,
            clock=idle,
            room=a_room(),
            is_internal=False,
            events=NoEvents(),
            has_store=True,
        )

    def show(self) -> None:
        self.mirror = self.catalog

    def write(self, batches: Iterable[Batch]) -> None:
        for batch in batches:
            self.held.append(batch)
            self.log += [Read(len(self.log) + at, key, value) for at, (key, value) in enumerate(batch)]
            flush(self.held.log)

    def export(self, count: int) -> None:
        """The next closed segments. The mirror names the one before by then."""
        for segment in local(self.held.log).closed_segments():
            if count and segment.next_offset > self.catalog.next_offset and self.role.is_exported:
                count -= 1
                self.mirror = self.catalog
                self._publish(segment.next_offset)

    def _publish(self, end: Offset) -> None:
        start, chunks = self.catalog.next_offset, []
        source = ExportSource(
            cluster_id=ClusterId("cluster"),
            topic_id=TOPIC,
            topic="t",
            partition=ZERO,
            leader_epoch=LeaderEpoch(0),
            start_offset=start,
            limit_offset=end,
            producers={},
        )
        chunks.append(bytes(self.held.log.read(start, 1 << 20, end, at_least_one=True)))
        self.catalog = self.catalog.published(export_segment(self.shelf, source, chunks))  # type: ignore[arg-type]
        self.role.on_history(self.catalog)

    def clean(self, keys_max: int, only: int) -> None:
        """The log, as the cleaner does."""
        self.held.now_ms = self.now_ms
        role = self.role
        self.held.clean(
            keys_max=keys_max, only=only, up_to=role.cleanable_end, tombstones_from=bounds.tombstones_kept_from(role)
        )
        flush(self.held.log)

    def keep_house(self) -> None:
        """Remove segments of which nothing is left from the log; history then begins where the log does
        (`HistoryKeeper`)."""
        self.role.keep_house(self.now_ms, producers_since_ms=0)
        if self.role.is_exported and self.role.is_read_alone and self.role.differs_from is None:
            start = min(self.held.log.log_start_offset, self.catalog.next_offset)
            self.catalog = self.catalog.deleted(start, (f"{start:064x}",))
        self.role.on_history(self.catalog)
        flush(self.held.log)

    def consumed(self, start: int) -> Iterator[Read]:
        """As brokers give it."""
        start = max(start, self.role.start_offset)
        if self.role.is_in_history(Offset(start)):
            yield from self.read(start, self.held.log.log_start_offset)
            start = self.held.log.log_start_offset
        yield from self.logged(start)

    def logged(self, start: int) -> Iterator[Read]:
        start = max(start, self.held.log.log_start_offset)
        found = read_from(self.held.log, start) if start < self.held.log.log_end_offset else {}
        return (Read(offset, *each) for offset, each in found.items() if offset >= start)

    def planned(self, start: int, catalog: PartitionCatalog) -> Iterator[Read]:
        """History by a catalog, and then the log behind its end."""
        if start < catalog.next_offset and catalog.entries:
            yield from self.read(max(start, catalog.readable_start), catalog.next_offset, catalog)
        yield from self.logged(max(start, catalog.next_offset))

    def expected(self, start: int) -> dict[bytes | None, bytes | None]:
        return table(each for each in self.log if each.offset >= start)


@dataclass
class Reader:
    """One who is on the way."""

    here: Both
    start: int
    how: str
    at: int = field(init=False)
    seen: list[Read] = field(default_factory=list)
    plan: PartitionCatalog = field(init=False)
    since_ms: int = field(init=False)

    def __post_init__(self) -> None:
        self.at, self.plan, self.since_ms = self.start, self.here.mirror, self.here.now_ms

    def go_on(self, count: int = 1 << 30) -> None:
        here = self.here
        match self.how:
            case "log":
                rest = here.consumed(self.at)
            case "store":
                rest = here.planned(self.at, self.plan)
            case _:
                rest = here.planned(self.at, here.mirror)
        for each in rest:
            if not count:
                return
            count -= 1
            assert each == here.log[each.offset]
            assert each.offset >= self.at
            self.seen.append(each)
            self.at = each.offset + 1

    def judge(self) -> None:
        """A reader that takes no longer than tombstones are kept knows all deletions."""
        self.go_on()
        assert self.here.now_ms - self.since_ms <= RETENTION_MS
        assert table(self.seen) == self.here.expected(self.start), (self.how, self.start)


KEYS = 16
Step = tuple[str, Any, Any]


def rounds(chance: Random) -> Iterator[list[Step]]:
    """So that some keys are written again and again, and others lie far behind."""
    for _ in range(chance.randint(1, 6)):
        yield [
            ("write", [_batch(chance) for _ in range(chance.randint(3, 8))], None),
            ("export", chance.choice([0, 1, 100]), None),
            ("begin", chance.choice([0, 0, chance.randrange(60)]), chance.randrange(20)),
            _compaction(chance),
            ("wait", chance.choice([10, 400, RETENTION_MS + 1]), None),
            _compaction(chance),
            (chance.choice(["mirror", "keep house"]), None, None),
            ("go on", chance.randint(1, 5), None),
        ]


def _batch(chance: Random) -> Batch:
    keys = [b"key %d" % chance.randrange(KEYS) for _ in range(chance.randint(1, 2))]
    return [(key, None if chance.random() < 0.5 else b"%d" % chance.randrange(1000) + b"." * 70) for key in keys]


def _compaction(chance: Random) -> Step:
    """With how many keys, and how much of it."""
    return chance.choice(["clean", "compact"]), chance.choice([1, 2, 100]), chance.choice([100, 100, 100, 1, 3])


def step(here: Both, readers: list[Reader], what: str, one: Any, other: Any) -> None:
    match what:
        case "write":
            here.write(one)
        case "export":
            here.export(one)
        case "mirror":
            here.show()
        case "clean":
            here.clean(one, other)
        case "compact":
            here.compact(retention_ms=RETENTION_MS, keys_max=one, stops_after=other)
            here.role.on_history(here.catalog)
        case "keep house":
            here.keep_house()
        case "begin":
            begun = [Reader(here, one, how) for how in ("log", "store", "follow")]
            readers += begun
            for reader in begun:
                reader.go_on(other)
        case "go on":
            for reader in readers:
                reader.go_on(one)
        case _:
            end = here.now_ms + one - RETENTION_MS
            for reader in [each for each in readers if each.since_ms < end]:
                reader.judge()
                readers.remove(reader)
            here.now_ms += one


@settings(max_examples=examples(150))
@example(4194305)  # a mirror that was late: a tombstone's time begins once readers are shown that its values are gone
@given(st.integers(0, 1 << 32))
def test_nobody_has_a_key_that_was_deleted_nor_lacks_one_that_was_not(seed: int) -> None:
    here, readers = Both(), list[Reader]()
    for steps in rounds(Random(seed)):
        for what, one, other in steps:
            step(here, readers, what, one, other)
        for start in range(0, len(here.log), 3):
            for how in ("log", "store"):
                Reader(here, start, how).judge()
    for reader in readers:
        reader.judge()
    here.check()
