"""Chooses the operations of one case. Most are sound and usual, so that the case gets far; each case has its own
leaning, so that unusual ones come together.

It looks at the world that runs in Python alone, and changes nothing but the clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Final, TypeAlias, TypeVar

from headrace.base.ids import PRODUCER_EPOCH_MAX, LeaderEpoch, Offset, PartitionEpoch, PartitionIndex
from headrace.base.limits import JOURNAL_LOG_BYTES_MAX, NEWEST_UNREAD_BYTES_MAX
from headrace.base.ports import Buffer
from headrace.base.reading import LONG_MAX
from headrace.broker.partitions.disk_room import UNKNOWN
from headrace.broker.partitions.settings import PartitionSettings, TimeBounds
from headrace.metadata.moves import Move, StorageStateSealed
from headrace.metadata.values import PartitionImage
from headrace.storage.engine.identity import LogConfig
from headrace.wire.batches import SEQUENCE_MAX, TRANSACTIONAL
from headrace.wire.compression import Compression
from headrace.wire.errors import ErrorCode
from tools.partition_fuzz import operations as do
from tools.partition_fuzz.batches import NO_PRODUCER, Bodies, Made, made, mistaken
from tools.partition_fuzz.world import NODE, REPLICAS, World

PRODUCERS: Final = (11, 12, 13, 14)
_OF_ANOTHER: Final = StorageStateSealed(
    last_committed_offset=Offset(-1),
    log_start_offset=Offset(0),
    leader_epoch=LeaderEpoch(0),
    broker_id=REPLICAS[1],
    timestamp_ms=0,
    epochs=(),
    producers="",
)
SEALED: Final = Move(source=REPLICAS[1], target=NODE, state=_OF_ANOTHER)
LEANINGS: Final = (0.2, 1.0, 1.0, 3.0)
SENT_AGAIN_MAX: Final = 12
"""Batches that may be sent again: more than are remembered of one producer."""
T = TypeVar("T")
Operation: TypeAlias = partial[object]


def settings_of(chance: Random, *, fsync: bool, is_narrow: bool, replicas: int) -> tuple[PartitionSettings, LogConfig]:
    """Configs of a topic. `is_narrow`: with bounds that are met often."""

    def some(usual: T, *others: T) -> T:
        return chance.choice(others) if is_narrow and chance.random() < 0.35 else usual

    times = some(TimeBounds(LONG_MAX, 3_600_000), TimeBounds(1_000, 1_000), TimeBounds(LONG_MAX, LONG_MAX), None)
    compact = some(False, True)
    min_insync = some(chance.choice((1, 1, min(2, replicas))), 1, 2, 3)
    settings = PartitionSettings(
        max_message_bytes=some(1_048_588, 300, 1_000),
        min_insync_replicas=min_insync,
        codec=some(None, None, Compression.NONE, Compression.LZ4, Compression.GZIP),
        times=times,
        durable=False,
        compact=compact,
        validate_records=some(True, False),
        delete=True,
        durable_lag_ms_max=-1,
    )
    config = LogConfig(
        segment_bytes=some(20_000, 600, 3_000, 1 << 30),
        segment_ms=some(7 * 24 * 3_600_000, 1_000, 10_000),
        segment_jitter_ms=some(0, 500, 10_000),
        segment_index_bytes=some(10 * 1024 * 1024, 24, 64, 200),
        retention_ms=some(-1, 5_000),
        retention_bytes=some(-1, 5_000),
        index_interval_bytes=some(400, 0, 150, 4_096),
        fsync=fsync,
        compact=compact,
        min_insync_replicas=min_insync,
        log_append_time=times is None,
    )
    return settings, config


def to(how: Callable[..., object], **arguments: object) -> Operation:
    return partial(how, **arguments)


def plainly(how: Callable[[World], object]) -> Callable[[Chooser], Operation]:
    """An operation without arguments."""
    return lambda _: to(how)


class Chooser:
    """The operations of one case, on a world that runs in Python alone."""

    def __init__(
        self, chance: Random, bodies: Bodies, world: World, *, fsync: bool, transactions: float | None = None
    ) -> None:
        """`transactions`: how often these come, times what is usual; None: in a quarter of all cases."""
        self._chance = chance
        self._bodies = bodies
        self._world = world
        self._fsync = fsync
        self._sent: deque[Made] = deque(maxlen=SENT_AGAIN_MAX)
        self._number, self._flushes_first = 0, chance.choice((0, 2, 4, 4))
        kinds = _KINDS
        if chance.random() < 0.35:
            kinds += _FAULTS
        if transactions is not None:
            kinds += tuple((kind, weight * transactions) for kind, weight in _TRANSACTIONS)
        elif chance.random() < 0.25:
            kinds += _TRANSACTIONS
        self._mistakes = chance.choice((0.0, 0.05, 0.2))
        self._is_narrow = chance.random() < 0.6
        self._kinds: Sequence[Callable[[Chooser], Operation]] = [each for each, _ in kinds]
        self._weights = [
            weight * (1.0 if each in _APPENDS else chance.choice(LEANINGS)) for each, weight in kinds
        ]  # fmt: skip

    def next(self) -> Operation:
        self._number += 1
        if self._number < self._flushes_first:
            return self.flush()
        world = self._world
        if (world.disk.full or world.partition.lacks_room) and self.is_so(0.1):
            return self.heal()
        if world.log.read_only is not None and self.is_so(0.1):
            return self.only_read()
        [kind] = self._chance.choices(self._kinds, self._weights)
        return kind(self)

    def one(self, *of: T) -> T:
        return self._chance.choice(of)

    def is_so(self, probability: float) -> bool:
        return self._chance.random() < probability

    # batches

    def batch(self) -> Made:
        chance = self._chance
        if self._sent and self.is_so(0.08):
            return self.one(*self._sent)
        body = self._bodies.choose(chance)
        base_ms = self._world.clock.ms + self.one(0, 0, 0, 0, 0, -500, 500, -1_500, 5_000, -(10**9), -(10**13))
        producer = NO_PRODUCER if self.is_so(0.45) else self.producer()
        batch = made(body, base_ms, producer)
        self._sent.append(batch)
        if not self.is_so(self._mistakes):
            return batch
        wrong = mistaken(batch, chance)
        return wrong if self._bodies.are_walked_alike(wrong.data) else batch

    def producer(self, *of: int) -> tuple[int, int, int]:
        """Id, epoch and sequence."""
        number = self.one(*(of or PRODUCERS))
        state = self._world.partition.producers._states.get(number)
        if state is None:
            return number, self.one(0, 0, 1), self.one(0, 0, 0, 5, SEQUENCE_MAX, SEQUENCE_MAX - 5)
        epoch, sequence = state.epoch, state.next_sequence
        if self.is_so(0.85):
            return number, epoch, sequence
        match kind := self._chance.randrange(6):
            case 0:
                return number, epoch, (sequence + self.one(1, 5, 100, -1, -3)) & SEQUENCE_MAX
            case 1:
                return number, min(epoch + 1, PRODUCER_EPOCH_MAX), self.one(0, 0, 3)
            case 2:
                return number, max(epoch - 1, -1), self.one(0, sequence)
            case _ if state.batches:
                again = self.one(*state.batches)
                return number, epoch, again.first_sequence if kind != 5 else again.last_sequence
        return number, epoch, 0

    def transactional(self) -> Made:
        asked = self._world.partition.producers._asked if self.is_so(0.7) else ()
        number, epoch, sequence = self.producer(*asked)
        body = self._bodies.choose(self._chance)
        return made(body, self._world.clock.ms, (number, epoch, sequence), attributes=TRANSACTIONAL)

    def buffer(self) -> type[Buffer]:
        kinds: Sequence[type[Buffer]] = (memoryview, memoryview, bytes, bytearray)
        return self.one(*kinds)

    # operations

    def append_plain(self) -> Operation:
        return self._append(do.append_plain)

    def examine_and_append(self) -> Operation:
        return self._append(do.examine_and_append)

    def append(self) -> Operation:
        return self._append(do.append)

    def take(self) -> Operation:
        return self._append(do.take)

    def _append(self, how: Callable[..., object], batch: Made | None = None) -> Operation:
        return to(
            how,
            batch=self.batch() if batch is None else batch,
            kind=self.buffer(),
            needs_isr=self.is_so(0.85 if self._world.log.config.fsync else 0.5),
            parks=self.is_so(0.5),
        )

    def append_of_transaction(self) -> Operation:
        return self._append(self.one(do.append_plain, do.take), self.transactional())

    def examine(self) -> Operation:
        return to(do.examine, batch=self.batch(), kind=self.buffer())

    def append_examined(self) -> Operation:
        return to(do.append_examined, needs_isr=self.is_so(0.7))

    def verify(self) -> Operation:
        """Seldom more than one at a time: while any is under way, the native road takes no batch of a producer."""
        if self._world.partition.producers._asked and self.is_so(0.8):
            return self.append_of_transaction()
        return to(do.verify, batch=self.transactional(), bumps_epochs=self.is_so(0.3))

    def grant(self) -> Operation:
        return to(do.grant, producer=self.one(*(self._world.guards or PRODUCERS)))

    def mark(self) -> Operation:
        producers = self._world.partition.producers
        number = self.one(*(producers._open or PRODUCERS))
        state = producers._states.get(number)
        epoch = 0 if state is None else max(state.epoch + self.one(0, 0, 0, 1, -1), 0)
        return to(do.mark, producer=number, epoch=epoch, coordinator=self.one(0, 0, 1), is_committed=self.is_so(0.5))

    def append_part(self) -> Operation:
        return to(do.append_part, batch=self.transactional())

    def expire(self) -> Operation:
        return to(do.expire, before_ms=self._world.clock.ms - self.one(0, 5_000, 100_000))

    def read(self) -> Operation:
        partition, log = self._world.partition, self._world.log
        ends = (log.log_start_offset, partition.high_watermark, log.log_end_offset, partition.high_watermark - 1)
        at = self.one(*ends, self._chance.randint(log.log_start_offset, max(log.log_start_offset, log.log_end_offset)))
        return to(
            do.read,
            offset=max(at, 0),
            bytes_max=self.one(1, 200, 4_096, 1 << 20),
            committed_only=self.is_so(0.3),
            at_least_one=self.is_so(0.7),
        )

    def read_on(self) -> Operation:
        return to(do.read_on, bytes_max=self.one(200, 4_096, 1 << 20, 1 << 20))

    def read_tail(self) -> Operation:
        log = self._world.log
        at = self._chance.randint(log.log_start_offset, log.log_end_offset)
        return to(do.read_tail, offset=at, bytes_max=self.one(200, 4_096, 1 << 20))

    def look_up(self) -> Operation:
        return to(do.look_up, time_ms=self._world.clock.ms - self.one(0, 500, 1_500, 10**6))

    def park_fetch(self) -> Operation:
        return to(do.park_fetch, number=self._chance.randrange(3), left=self.one(1, 200, 5_000))

    def flush(self) -> Operation:
        return to(do.flush)

    def step_of_flush(self) -> Operation:
        """The next one, mostly: else one out of turn."""
        world = self._world
        if self.is_so(0.1):
            return to(self.one(do.tidy_up, do.keep_up, do.begin_flush, do.sync, do.finish_flush))
        if world.ticket is None:
            return to(self.one(do.begin_flush, do.begin_flush, do.tidy_up, do.keep_up))
        return to(do.finish_flush if world.outcomes is not None else do.sync)

    def collect_for_others(self) -> Operation:
        if self._world.pending_of_others and self.is_so(0.4):
            return to(do.forget_others)
        return to(do.collect_for_others, size=JOURNAL_LOG_BYTES_MAX - self.one(0, 100, 10_000))

    def pass_time(self) -> Operation:
        later = self._world.clock.ms + self.one(1, 1, 100, 1_000, 2_000, 11_000, 400_000)
        return to(do.pass_time, now_ms=later)

    def configure(self) -> Operation:
        fsync = self._fsync if self.is_so(0.7) else not self._fsync
        settings, config = settings_of(
            self._chance,
            fsync=fsync,
            is_narrow=self._is_narrow,
            replicas=len(self._world.partition.isr.leader.isr),
        )
        return to(do.configure, settings=settings, config=config)

    def snapshot_soon(self) -> Operation:
        due = len(made(self.one(*self._bodies.single), 0).data)  # perhaps exactly with the next batch
        return to(do.snapshot_soon, size=self.one(0, 1, due, due, 1_000))

    def much_unread(self) -> Operation:
        return to(do.much_unread, unread=NEWEST_UNREAD_BYTES_MAX - self.one(0, 70, 100, 500, 5_000))

    def keep_house(self) -> Operation:
        return to(do.keep_house, producers_since_ms=self._world.clock.ms - self.one(5_000, 10**6, 10**6))

    def delete_records(self) -> Operation:
        partition, log = self._world.partition, self._world.log
        low, high = log.log_start_offset, partition.high_watermark
        before = self.one(low, high, self._chance.randint(low, max(low, high)), (low + high) // 2)
        return to(do.delete_records, before=before)

    def watch(self) -> Operation:
        return to(do.watch, number=self._chance.randrange(2))

    def report(self) -> Operation:
        return to(
            do.report,
            which=self._chance.randrange(2),
            behind=self.one(0, 0, 0, 1, 5),
            may_join=self.is_so(0.8),
        )

    def check_isr(self) -> Operation:
        return to(do.check_isr, lag_max_s=self.one(0.5, 5.0, 60.0))

    def refuse_proposal(self) -> Operation:
        return to(do.refuse_proposal, doubts=self.is_so(0.3))

    def lead(self) -> Operation:
        leader = self._world.partition.isr.leader
        replicas = REPLICAS[: self.one(*[len(leader.replicas)] * 4, 1, 2, 3)]
        isr = tuple(each for each in replicas if each == NODE or self.is_so(0.8))
        if leader.proposed is not None and self.is_so(0.7):
            isr = tuple(each for each in leader.proposed if each in replicas)
        is_later = self.is_so(0.35)
        image = PartitionImage(
            index=PartitionIndex(0),
            leader=NODE,
            leader_epoch=LeaderEpoch(leader.epoch + (self.one(1, 1, 3) if is_later else 0)),
            partition_epoch=PartitionEpoch(leader.partition_epoch + self.one(1, 1, 0)),
            replicas=replicas,
            isr=isr,
            is_unclean=self.is_so(0.05),
            move=SEALED if self.is_so(0.06) else None,
        )
        return to(do.lead, image=image)

    def gate(self) -> Operation:
        gate = self._world.partition.gate
        if gate.is_proposed:
            return self.lead()
        if gate.is_stopped:
            return to(self.one(do.go_on_writing, do.go_on_writing, do.propose_seal))
        return to(do.stop_writing) if self.is_so(0.3) else to(do.go_on_writing)

    def doubt(self) -> Operation:
        return to(do.doubt, is_doubted=self.is_so(0.4))

    def only_read(self) -> Operation:
        return to(do.only_read, is_so=self._world.log.read_only is None)

    def share(self) -> Operation:
        return to(do.share, left=self.one(-1, 0, 100, 1_000, UNKNOWN, UNKNOWN, UNKNOWN))

    def end(self) -> Operation:
        return to(do.end, error=self.one(ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))

    # faults

    def fill_disk(self) -> Operation:
        return to(do.fill_disk, is_full=self.is_so(0.6))

    def break_disk(self) -> Operation:
        return to(do.break_disk, breaks_in=self.one(1, 1, 2, 3, 8), stays_broken=self.is_so(0.3))

    def fail_syncs(self) -> Operation:
        return to(do.fail_syncs, after=self.one(0, 0, 1, 2, 4))

    def heal(self) -> Operation:
        return to(do.heal)


_APPENDS: Final[Sequence[Callable[[Chooser], Operation]]] = (
    Chooser.append_plain, Chooser.examine_and_append, Chooser.append, Chooser.take
)  # fmt: skip
_KINDS: Final[tuple[tuple[Callable[[Chooser], Operation], float], ...]] = (
    (Chooser.append_plain, 36),
    (Chooser.examine_and_append, 9),
    (Chooser.append, 3),
    (Chooser.take, 9),
    (Chooser.examine, 1),
    (Chooser.append_examined, 1),
    (plainly(do.unpacked), 3),
    (Chooser.expire, 0.3),
    (Chooser.read, 2),
    (Chooser.read_on, 5),
    (Chooser.read_tail, 1),
    (plainly(do.stable), 0.5),
    (Chooser.look_up, 0.3),
    (Chooser.park_fetch, 2),
    (Chooser.flush, 6),
    (Chooser.step_of_flush, 10),
    (Chooser.collect_for_others, 0.4),
    (plainly(do.close_file), 0.5),
    (Chooser.pass_time, 2),
    (Chooser.configure, 1.2),
    (Chooser.snapshot_soon, 0.7),
    (Chooser.much_unread, 0.4),
    (plainly(do.snapshot), 0.3),
    (plainly(do.roll), 0.4),
    (Chooser.keep_house, 0.4),
    (Chooser.delete_records, 0.5),
    (Chooser.watch, 0.7),
    (Chooser.report, 4),
    (Chooser.check_isr, 0.3),
    (Chooser.refuse_proposal, 0.7),
    (plainly(do.propose_again), 0.3),
    (Chooser.lead, 1),
    (Chooser.gate, 0.5),
    (Chooser.doubt, 0.4),
    (plainly(do.own_appends_visible), 0.3),
    (Chooser.share, 0.4),
    (Chooser.only_read, 0.05),
    (Chooser.end, 0.04),
)
"""How often each comes, before the case's leaning."""
_TRANSACTIONS: Final[tuple[tuple[Callable[[Chooser], Operation], float], ...]] = (
    (Chooser.append_of_transaction, 6),
    (Chooser.verify, 4),
    (Chooser.grant, 4),
    (Chooser.mark, 5),
    (Chooser.append_part, 1),
)
_FAULTS: Final[tuple[tuple[Callable[[Chooser], Operation], float], ...]] = (
    (Chooser.fill_disk, 1),
    (Chooser.break_disk, 0.25),
    (Chooser.fail_syncs, 0.15),
    (Chooser.heal, 2),
)
