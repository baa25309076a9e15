"""One partition with all that it stands on: a log, its journal, and a disk in memory that fails when told to.

It notes whatever the partition tells others, in order. Nothing happens by itself: each step of a flush is an operation.
"""

from __future__ import annotations

import asyncio
import errno
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from headrace.base.ids import (
    BrokerEpoch,
    BrokerId,
    DirectoryId,
    LeaderEpoch,
    Offset,
    PartitionIndex,
    TopicId,
    TopicPartition,
)
from headrace.base.ports import Buffer, Space
from headrace.broker.kit.parking import ParkedFetch
from headrace.broker.partitions.disk_room import DiskRoom
from headrace.broker.partitions.flusher import Flusher
from headrace.broker.partitions.hot import KINDS
from headrace.broker.partitions.intake.repacking import Outcome, Repacker, Wanted
from headrace.broker.partitions.partition import Partition
from headrace.broker.partitions.settings import PartitionSettings
from headrace.native import Hot, Native
from headrace.replica.leader import Leader
from headrace.replica.producers import ProducerStates
from headrace.replica.transactions import Guard
from headrace.storage.engine.flushing import FlushRound, FlushTicket, Outcomes
from headrace.storage.engine.identity import LogConfig, LogIdentity
from headrace.storage.log.engine import LocalLogEngine
from headrace.storage.log.journal.journal import Journal, JournalSettings
from headrace.storage.log.partition import LocalLog
from headrace.wire.errors import ErrorCode
from headrace.wire.walking import Walked
from tests.broker.partitions.no_events import NoEvents
from tests.storage.log.memory_disk import MemoryDisk

ROOT: Final = Path("/data/logs")
JOURNAL: Final = JournalSettings(file_bytes=64 * 1024, files_max=3, after_rounds=1)
KEY: Final = bytes(range(16))
NODE: Final = BrokerId(1)
REPLICAS: Final = (NODE, BrokerId(2), BrokerId(3))
TOPIC: Final = TopicId(uuid.UUID(int=7))
IDENTITY: Final = LogIdentity(
    topic_name="t", topic_id=TOPIC, partition=PartitionIndex(0), directory_id=DirectoryId(uuid.UUID(int=9))
)
T = TypeVar("T")
Told = tuple[object, ...]


class Clock:
    """Moved by hand; both worlds have the same."""

    def __init__(self) -> None:
        self.ms = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return self.ms / 1000


class InlineLoop(asyncio.SelectorEventLoop):
    """Work in threads is done at once."""

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]
        done: asyncio.Future[T] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done


class FaultyDisk(MemoryDisk):
    """`breaks_in` operations from now one fails; with `stays_broken`, so do all after it."""

    breaks_in = 0
    stays_broken = False
    is_broken = False

    def step(self) -> None:
        super().step()
        if self.breaks_in:
            self.breaks_in -= 1
            if self.breaks_in == 0:
                self.is_broken = self.stays_broken
                raise OSError(errno.EIO, "broken")
        if self.is_broken:
            raise OSError(errno.EIO, "broken")

    def heal(self) -> None:
        self.full = self.is_broken = False
        self.breaks_in = 0
        self.fail_after(-1)


class BusyRepacker(Repacker):
    """Its workers are busy until `free` is set."""

    def __init__(self, on_bug: Callable[[BaseException], None]) -> None:
        super().__init__(on_bug)
        self.free: Final = asyncio.Event()

    async def repack(self, records: Buffer, wanted: Wanted) -> Outcome:
        await self.free.wait()
        return await super().repack(records, wanted)


class ByHand:
    """`Flusher`, whose steps are operations."""

    def __init__(self, told: list[Told]) -> None:
        self._told = told

    def request(self, _: object) -> None:
        self._told.append(("flush requested",))


class Events(NoEvents):
    """Notes what has consequences."""

    def __init__(self, told: list[Told]) -> None:
        self._told = told

    def propose(self, partition: Any, wanted: Any) -> None:
        self._told.append(("proposed", wanted))

    def suspect(self, replica: Any, offset: Any) -> bool:
        self._told.append(("suspected", offset))
        return False

    def on_failed(self, key: Any) -> None:
        self._told.append(("failed", key))


class Waiter:
    """A `Commit`."""

    def __init__(self, told: list[Told], name: str) -> None:
        self._told = told
        self._name = name

    def on_outcome(self, error: ErrorCode) -> None:
        self._told.append((self._name, error))


class Reader(ParkedFetch):
    """A fetch that waits for so many bytes, and for no time."""

    __slots__ = ("_left", "_partition", "_told", "number")

    def __init__(self, partition: Partition, told: list[Told], number: int, left: int) -> None:
        self._partition = partition
        self._told = told
        self.number = number
        self._left = left
        partition.watch(self)

    def on_visible(self, size: int, stable_size: int) -> None:
        self._told.append(("visible", self.number, size, stable_size))
        self._left -= size
        if self._left <= 0:
            self.wake()

    def wake(self) -> None:
        self._told.append(("woken", self.number))
        self.leave()

    def leave(self) -> None:
        self._partition.unwatch(self)


class Feed:
    """A `FollowerFeed`. It notes how far the log has been written, too."""

    def __init__(self, told: list[Told], number: int) -> None:
        self._told = told
        self.number = number

    def on_appended(self, partition: Partition) -> None:
        log = partition.log
        self._told.append(("appended", self.number, log.log_end_offset, log.flushed_end, partition.high_watermark))

    def on_news(self, partition: Partition) -> None:
        self._told.append(("news", self.number, partition.high_watermark, partition.log.log_start_offset))

    def on_epoch_end(self, partition: Partition) -> None:
        self._told.append(("epoch end", self.number))


class Counted:
    """The native road, and how often it took a batch."""

    def __init__(self, hot: Hot) -> None:
        self._hot = hot
        self.examined = self.appended = 0

    def examine(self, records: Any, /) -> Any:
        found = self._hot.examine(records)
        self.examined += found is not None
        return found

    def append(self, records: Any, needs_isr: bool, walked: tuple[int, int, bool], /) -> Any:
        taken = self._hot.append(records, needs_isr, walked)
        self.appended += taken is not None
        return taken

    def take(self, records: Any, needs_isr: bool, /) -> Any:
        taken = self._hot.take(records, needs_isr)
        self.appended += taken is not None
        return taken

    def durable(self, end: int, appended_bytes: int, /) -> None:
        self._hot.durable(end, appended_bytes)


class World:
    """See the module. `native` None: all in Python."""

    repacks = True

    def __init__(
        self,
        seed: int,
        clock: Clock,
        loop: InlineLoop,
        *,
        native: Native | None,
        config: LogConfig,
        settings: PartitionSettings,
        replicas: int,
        has_journal: bool,
        index: int = 0,
    ) -> None:
        self.key: Final = TopicPartition(TOPIC, PartitionIndex(index))
        self.clock = clock
        self.loop = loop
        self.told: list[Told] = []
        self.disk = disk = FaultyDisk(seed)
        disk.make_directory(ROOT)
        self.journal = Journal(disk, ROOT.parent / "journal", KEY, JOURNAL) if has_journal else None
        self.engine = LocalLogEngine(disk, ROOT, journal=self.journal)
        self.engine.start()
        self.log: LocalLog = self.engine.open(IDENTITY, config)
        self.room = DiskRoom(lambda: Space(2**40, 2**39), lambda: 0, self._on_bug, lambda _: None)
        self.repacker = BusyRepacker(self._on_bug)
        self.partition = self._led(settings, replicas)
        self.counted: Counted | None = None
        self.partition.hot = None
        if native is not None:
            self.counted = Counted(native.HotPartition(self.partition, KINDS))
            self.partition.hot = self.counted
        self.position = Offset(0)
        """Where a reader stands that reads on and on."""
        self.ticket: FlushTicket | None = None
        self.round: FlushRound | None = None
        self.outcomes: Outcomes | None = None
        self.readers: dict[int, Reader] = {}
        self.feeds: dict[int, Feed] = {}
        self.guards: dict[int, Guard] = {}
        self.examined: deque[tuple[bytes, Walked]] = deque(maxlen=4)
        self.pending_of_others = 0
        """Bytes that the journal counts as collected for other logs."""

    def _led(self, settings: PartitionSettings, replicas: int) -> Partition:
        members = REPLICAS[:replicas]
        self.log.assign_epoch(LeaderEpoch(0))
        leader = Leader.elected(
            node=NODE,
            epoch=LeaderEpoch(0),
            isr=members,
            flushed_end=self.log.flushed_end,
            high_watermark=Offset(0),
            log_end=self.log.log_end_offset,
            replicas=members,
            now=self.clock.monotonic(),
        )
        return Partition(
            leader=leader,
            repacker=self.repacker,
            topic="t",
            topic_partition=self.key,
            partition_log=self.log,
            producers=ProducerStates(),
            settings=settings,
            flusher=cast("Flusher", ByHand(self.told)),
            clock=self.clock,
            room=self.room,
            is_internal=False,
            events=Events(self.told),
            has_store=False,
        )

    def _on_bug(self, error: BaseException) -> None:
        raise AssertionError from error

    def in_loop(self, work: Callable[[], T]) -> T:
        """Do this on the event loop."""

        async def done() -> T:
            return work()

        return self.loop.run_until_complete(done())

    def let_go_on(self, until: Callable[[], bool]) -> None:
        """Let the loop turn."""

        async def turned() -> None:
            for _ in range(1_000):
                if until():
                    return
                await asyncio.sleep(0)
            raise AssertionError("it hangs")

        self.loop.run_until_complete(turned())

    @property
    def followers(self) -> Sequence[tuple[BrokerId, BrokerEpoch]]:
        return [(each, BrokerEpoch(each * 10)) for each in self.partition.isr.leader.replicas if each != NODE]
