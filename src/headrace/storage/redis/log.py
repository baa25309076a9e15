"""One partition's log in Redis: a `PartitionLog` whose newest batches are in memory, and all flushed ones in a Stream.

Promises: offsets are given at once; a batch counts as flushed once Redis has acknowledged it. Nothing is sent outside
a flush round, but for look-ups by worker threads. Readers of older batches get them by NotAtHand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final

from headrace.base.errors import NoRoom, StorageFailure
from headrace.base.ids import LAST_OFFSET, NO_EPOCH, LeaderEpoch, Offset
from headrace.base.limits import REDIS_CALLS_AHEAD_MAX, REDIS_UNFLUSHED_BYTES_MAX
from headrace.base.ports import Buffer
from headrace.storage.engine.appending import Appended
from headrace.storage.engine.cutting import Range
from headrace.storage.engine.epochs import LeaderEpochs
from headrace.storage.engine.faults import Damage, Diverged, Fenced, NotAtHand, Overloaded, Unreachable
from headrace.storage.engine.flushing import FlushTicket
from headrace.storage.engine.identity import LogConfig, LogIdentity, held_locally
from headrace.storage.engine.placing import place, place_in_time
from headrace.storage.engine.reading import EpochEnd, FoundOffset, Walked
from headrace.storage.redis.aborted import RedisAborted
from headrace.storage.redis.ahead import SentAhead
from headrace.storage.redis.cleaning import CleanedStream, RedisCleanable
from headrace.storage.redis.errors import RedisFailure
from headrace.storage.redis.flushing import Pending, Ticket, append_of, in_calls, lost
from headrace.storage.redis.ranges import Ranges, range_bytes_of
from headrace.storage.redis.server_side.functions import Call, CleaningTry, PartitionFunctions, Status
from headrace.storage.redis.stored import StoredBatches
from headrace.storage.redis.tail import Tail
from headrace.wire.batches import BatchHeader, parse_header
from headrace.wire.codec import new

if TYPE_CHECKING:
    from headrace.storage.redis.engine import Found, RedisEngine


class RedisLog:
    """Made by `RedisEngine.begin_open`."""

    copying: Final = None
    examining: Final = None
    files: Final = None
    is_open_to_native: Final = False
    read_only: Final = None
    damages: Final[Sequence[Damage]] = ()
    knows_gaps: Final = True
    lacks_room: Final = False
    sealed_in: Final = None

    def __init__(self, engine: RedisEngine, identity: LogIdentity, config: LogConfig, found: Found) -> None:
        self.identity: Final = identity
        self.config = config
        self.failed = False
        self.on_failed: Callable[[StorageFailure], object] | None = None
        self.on_stored: Callable[[], object] | None = None
        self.flushed_copies = 1
        self.log_start_offset = found.start
        self.flushed_end = found.start
        self.log_end_offset = self.stored_end = self.known_end = found.end
        self.is_confirmed = found.claimed == NO_EPOCH
        """Whether a flush has ended, or is under way, that covers the records with which the log was opened. An earlier
        leader may have left them before they were durable."""
        self.claimed_epoch = found.claimed
        self.owner: Final = engine.owner
        self.birth: Final = identity.created_index
        self.keys: Final = engine.keys.partition(identity.topic_name, identity.partition)
        self._engine = engine
        self._epoch = found.claimed
        self._leader_epochs = LeaderEpochs(found.epochs)
        self._ranges = Ranges(found.marks, size=found.size, trimmed=found.trimmed, newest_ms=found.open_timestamp)
        self.gaps_below = found.clean_to
        self.is_cleaning = False
        self._cleaned = found.cleaned
        entries = partial(engine.entries, self.keys.stream)
        self.cleaning: Final = RedisCleanable(self, entries, engine.blocking.run, engine.cleaner)
        self._in_redis: Final = StoredBatches(identity.name, entries, lambda: self.known_end)
        self._tail = Tail(engine.budget, found.end)
        self._pending: list[Pending] = []
        self._trims: list[tuple[Offset, int]] = []
        self._snapshot: tuple[Offset, bytes] | None = None
        self._ahead: list[SentAhead] = []
        """Calls that have left for the first of the pending batches."""
        self._sent = 0
        """Pending batches that have left."""
        self.sent_end = found.end
        """Everything that has left ahead of its round ends here."""
        self.aborted: Final = RedisAborted(found.aborted)
        self._ticket: Ticket | None = None

    # state

    @property
    def size_bytes(self) -> int:
        return self._ranges.size - self._ranges.trimmed

    @property
    def copies(self) -> int:
        found = 1 + self._engine.servers.of(self.keys.stream).look.replicas
        if found < self.config.min_insync_replicas:
            self._engine.servers.miss_replica()
        return found

    @property
    def copies_wanted(self) -> int:
        """Copies of Redis's replicas for which a flush waits: those that are asked for, as far as there are any."""
        wanted = self.config.min_insync_replicas - 1
        return min(wanted, self._engine.servers.of(self.keys.stream).look.replicas) if wanted else 0

    @property
    def storing(self) -> RedisLog:
        return self

    def note_stored(self, end: Offset) -> None:
        """Redis has answered that it has everything below `end`. Whether it is durable is not known yet."""
        if end > self.stored_end and not self.failed:
            self.stored_end = end
            if self.on_stored is not None:
                self.on_stored()

    def reconfigure(self, config: LogConfig) -> None:
        self.config = config

    def close(self, *, clean: bool = True) -> None:
        try:
            if clean and self._has_work and not (self.failed or self._engine.is_given_up):
                self._close_cleanly()
        finally:
            self._engine.release(self, self._tail, self._unflushed)

    def _close_cleanly(self) -> None:
        if (ticket := self.begin_flush()) is None:
            return
        try:
            for call in ticket.calls(again=True):
                if (outcome := ticket.outcome_of(call, self._engine.blocking.run(call))) is not None:
                    raise outcome
        except RedisFailure as error:
            self._engine.wait_for_no_other()
            raise StorageFailure(f"The log of {self.identity.name} cannot be closed cleanly: {error}") from error
        self.finish_flush(ticket)

    # appending

    def append(
        self,
        batches: Buffer,
        headers: Sequence[tuple[int, BatchHeader]],
        *,
        leader_epoch: LeaderEpoch,
        now_ms: int,
        at_once: bool = False,
    ) -> Appended:
        if self.failed:
            raise StorageFailure(f"The log of {self.identity.name} has failed.")
        if self._engine.budget.unflushed + len(batches) > REDIS_UNFLUSHED_BYTES_MAX:
            raise Overloaded("Too much waits for Redis; try again.")
        if leader_epoch != self._epoch:
            self.assign_epoch(leader_epoch)
        base, stamped = self.log_end_offset, self.config.log_append_time
        if stamped:
            placed = place_in_time(batches, headers, base, leader_epoch, now_ms)
        else:
            placed = place(batches, headers, base, leader_epoch)
        at = base
        for number, header in enumerate(placed.headers):
            data = b"".join(placed.buffers[2 * number : 2 * number + 2])
            end = Offset(at + header.last_offset_delta + 1)
            self._add(at, end, data, leader_epoch, header.max_timestamp, now_ms)
            at = end
        return Appended(base, placed.end, now_ms if stamped else -1)

    def _add(self, base: Offset, end: Offset, data: bytes, epoch: LeaderEpoch, timestamp: int, now_ms: int) -> None:
        self.log_end_offset = end
        added = self._ranges.add(end, len(data), timestamp if timestamp >= 0 else now_ms, self.config)
        self._pending.append(new(Pending, (base, end, data, epoch, *added)))
        self._tail.add(end, data)
        if self._engine.ahead.is_on:
            self._engine.ahead.note(self)

    def roll(self) -> None:
        self._ranges.roll(self.log_end_offset, self.log_start_offset)

    def assign_epoch(self, epoch: LeaderEpoch) -> None:
        self._epoch = epoch
        self._leader_epochs.assign(epoch, self.log_end_offset)

    # reading

    def read(self, start: Offset, max_bytes: int, end: Offset, *, at_least_one: bool) -> memoryview:
        end = min(end, self.log_end_offset)
        if start >= end:
            return memoryview(b"")
        assert start >= self.log_start_offset, "the caller answers OFFSET_OUT_OF_RANGE"
        batches = self._tail.batches
        if start < batches.base_offset:
            raise NotAtHand(partial(self._engine.fetch, self.keys.stream, start))
        return batches.read(start, max_bytes, end, at_least_one=at_least_one)

    def batches_from(self, start: Offset, end: Offset = LAST_OFFSET) -> Iterator[Walked]:
        for batch in self._in_redis.since(max(start, self.log_start_offset)):
            header = parse_header(batch)
            if header.base_offset >= end:
                return
            yield Walked(header, batch if header.is_control else b"")

    # looking up

    @property
    def epochs(self) -> Sequence[tuple[LeaderEpoch, Offset]]:
        return tuple(self._leader_epochs.entries)

    def epoch_at(self, offset: Offset) -> LeaderEpoch:
        return self._leader_epochs.at(offset)

    def end_offset_for_epoch(self, epoch: LeaderEpoch) -> EpochEnd:
        return self._leader_epochs.end_of(epoch, self.log_end_offset)

    def offset_for_timestamp(self, timestamp: int) -> FoundOffset | None:
        return self._in_redis.first_at(timestamp, self._ranges.marks, self.log_start_offset, self.flushed_end)

    def max_timestamp(self) -> FoundOffset | None:
        return self._in_redis.newest(self._ranges.marks, self.log_start_offset, self.flushed_end)

    # flushing

    @property
    def needs_flush(self) -> bool:
        if self.failed or self._epoch == NO_EPOCH:
            return False
        return self._has_work or not self.is_confirmed

    @property
    def _has_work(self) -> bool:
        """Whether Redis lacks something of it."""
        return bool(self._pending or self._trims or self._snapshot) or self._epoch != self.claimed_epoch

    def count_again(self) -> None:
        self.is_confirmed = False

    def write_out(self) -> None:
        """There is nowhere else to write to."""

    def unsent(self) -> list[tuple[Call, int]]:
        """Calls that may leave ahead of their round, with the number of batches of each. There are none where a
        claim goes before them, or where an answer alone does not say that they are durable."""
        room = REDIS_CALLS_AHEAD_MAX - len(self._ahead)
        if room <= 0 or self.failed or not self.is_confirmed or self._epoch != self.claimed_epoch:
            return []
        seen = self._engine.servers.of(self.keys.stream)
        if seen.waits_for_aof or self.copies_wanted:
            return []
        functions = PartitionFunctions(self.keys, self.identity.topic_id, self._epoch)
        parts = islice(in_calls(self._pending[self._sent :]), room)
        return [(append_of(functions, part), len(part)) for part in parts]

    def on_sent_ahead(self, sent: SentAhead) -> None:
        self._ahead.append(sent)
        self._sent += sent.batches
        self.sent_end = self._pending[self._sent - 1].end

    def begin_flush(self) -> Ticket | None:
        if self._ticket is not None or not self.needs_flush:
            return None
        is_repeat = any(each.turn != self._engine.ahead.turn for each in self._ahead)
        self._ticket = Ticket(
            self,
            self.keys,
            self._pending,
            end=self.log_end_offset,
            epoch=self._epoch,
            trims=self._trims,
            snapshot=self._snapshot,
            aborted=[] if self._snapshot is None else self.aborted.unsaved(self._snapshot[0]),
            ahead=self._ahead,
            is_repeat=is_repeat,
        )
        self._pending, self._trims, self._snapshot = [], [], None
        self._ahead, self._sent = [], 0
        self._ticket_epoch, self.is_confirmed = self._epoch, True
        return self._ticket

    def finish_flush(self, ticket: FlushTicket) -> Offset:
        done = self._taken(ticket)
        self.claimed_epoch = self._ticket_epoch
        self.flushed_end = self.known_end = done.end
        self.stored_end = max(self.stored_end, done.end)
        self.flushed_copies = 1 + done.copies
        if done.snapshot is not None:
            self.aborted.saved(done.snapshot[0])
        self._tail.flushed(done.end, sum(len(each.data) for each in done.pending))
        self._engine.budget.shrink()
        return self.flushed_end

    def fail_flush(self, ticket: FlushTicket) -> None:
        self._pending = [*self._taken(ticket).pending, *self._pending]
        self._fail()

    def _fail(self) -> None:
        self.failed = True
        self.log_end_offset = self.stored_end = self.known_end
        self._leader_epochs.cut_from(self.known_end)
        self._tail.batches.cut_from(self.known_end)
        self._engine.release(self, self._tail, self._unflushed, is_read=True)
        self._pending, self._ahead, self._sent = [], [], 0

    def look(self, topic: str, epoch: int, end: int) -> None:
        """Compare with what Redis has, after a failover or a restart; called on the loop. A flush under way does that
        by itself."""
        if self.failed or self._ticket is not None:
            return
        if topic != str(self.identity.topic_id) or end < self.known_end:
            end = end if topic == str(self.identity.topic_id) else 0
            if end >= self.known_end:
                return
            cause: Diverged | Fenced = lost(self.identity, end, self.known_end)
        elif epoch > self.claimed_epoch:
            cause = Fenced(f"Epoch {epoch} of {self.identity.name} has begun.")
        else:
            return
        self._fail()
        if self.on_failed is not None:
            self.on_failed(cause)

    def _taken(self, ticket: FlushTicket) -> Ticket:
        assert self._ticket is not None
        assert ticket is self._ticket, "a flush ends once, and it is the one under way"
        done, self._ticket = self._ticket, None
        return done

    @property
    def _unflushed(self) -> int:
        return sum(len(each.data) for each in self._pending)

    # retention

    def ranges(self) -> list[Range]:
        return self._ranges.all(self.log_start_offset, self.log_end_offset, self.flushed_end)

    def apply_retention(
        self,
        now_ms: int,
        up_to: Offset,
        *,
        local: bool = False,
        by_start_alone: bool = False,
        before_drop: Callable[[], None] | None = None,
    ) -> Offset:
        if self.is_cleaning:
            return self.log_start_offset
        config = held_locally(self.config) if local else self.config
        retention_ms = -1 if by_start_alone else config.retention_ms
        retention_bytes = -1 if by_start_alone else config.retention_bytes
        oldest_ms = now_ms - retention_ms if retention_ms >= 0 else -1
        if self.log_end_offset <= up_to and 0 <= self._ranges.open_newest_ms < oldest_ms:
            self.roll()
        last, size = None, self.size_bytes
        for mark, part in self._ranges.closed():
            if mark.end > min(up_to, self.flushed_end):
                break
            is_surplus = retention_bytes >= 0 and size - part >= retention_bytes
            if not (mark.timestamp < oldest_ms or is_surplus or mark.end <= self.log_start_offset):
                break
            size -= part
            last = mark
        if last is not None:
            if before_drop is not None:
                before_drop()
            self._trim(last.end)
        return self.log_start_offset

    def delete_records_before(self, offset: Offset) -> Offset:
        if self.log_start_offset < offset <= self.log_end_offset:
            self._trim(offset)
        return self.log_start_offset

    def _trim(self, start: Offset) -> None:
        """Move the start up, one range after the other: a call that removes much would hold the server. Bytes are
        counted as deleted with their whole range, and not while a cleaning counts them."""
        gone = [] if self.is_cleaning else self._ranges.drop_below(start)
        self._trims += [(mark.end, mark.position) for mark in gone if mark.end > self.log_start_offset]
        if gone or start > self.log_start_offset:
            self.log_start_offset = max(self.log_start_offset, start)
            self.aborted.drop_below(self.log_start_offset)
            self._trims.append((self.log_start_offset, self._ranges.trimmed))

    # compaction

    @property
    def marked(self) -> Ranges:
        """Its ranges, as this leader knows them."""
        return self._ranges

    @property
    def range_bytes(self) -> int:
        return range_bytes_of(self.config)

    def begin_cleaning(self) -> CleaningTry:
        """A cleaning begins."""
        assert not self.is_cleaning, "one cleaning at a time"
        self.is_cleaning = True
        return CleaningTry(self._cleaned + 1, next(self._engine.cleaning_tries))

    def install(self, cleaned: CleanedStream) -> None:
        """Redis has the cleaned Stream in the log's place."""
        self._ranges.replace(cleaned.clean_to, cleaned.removed, cleaned.index)
        self.gaps_below = max(self.gaps_below, cleaned.clean_to)
        self._tail.forget_below(cleaned.clean_to)
        self.aborted.drop(frozenset(cleaned.bare))
        self._cleaned += 1

    def end_cleaning(self) -> None:
        """The cleaning is over, complete or not."""
        self.is_cleaning = False
        self._trim(self.log_start_offset)

    def doubt(self, reason: str) -> None:
        """It is not known what Redis has: the log is to be opened again, in a later epoch. Called on the loop."""
        if not self.failed and self._ticket is None:
            self._fail()
        if self.on_failed is not None:
            self.on_failed(Diverged(reason))

    # beginning elsewhere, and what its leader remembers

    def settle_empty(self, producers: bytes | None) -> None:
        raise StorageFailure(f"The log of {self.identity.name} is in Redis, where none is handed over.")

    def give_way(self, offset: Offset, *, epoch: LeaderEpoch = NO_EPOCH, producers: bytes = b"") -> str | None:
        assert self._ticket is None, "no flush is under way"
        if self.failed:
            raise StorageFailure(f"The log of {self.identity.name} has failed.")
        if not all(each.is_answered for each in self._ahead):
            raise NoRoom(f"The log of {self.identity.name} cannot begin at {offset} now: Redis has not answered yet.")
        had = self.log_end_offset > self.log_start_offset
        functions = PartitionFunctions(self.keys, self.identity.topic_id, self.claimed_epoch)
        try:
            answer = self._engine.blocking.run(functions.restart(offset, before=epoch, producers=producers))
        except RedisFailure as error:  # once more it answers the same, whether or not it was done
            raise NoRoom(f"The log of {self.identity.name} cannot begin at {offset} now: {error}") from error
        if answer.status is not Status.DONE:
            raise Fenced(f"The log of {self.identity.name} cannot begin at {offset}: {answer}.")
        self._begin_at(offset, epoch)
        return self.keys.aside(self.claimed_epoch) if had else None

    def _begin_at(self, offset: Offset, before: LeaderEpoch) -> None:
        self._engine.drop(self._tail, self._unflushed)
        self._tail = Tail(self._engine.budget, offset)
        self._pending, self._trims, self._snapshot = [], [], None
        self._ahead, self._sent = [], 0
        self.log_start_offset = self.log_end_offset = self.flushed_end = self.stored_end = self.known_end = offset
        self.sent_end = offset
        self._leader_epochs = LeaderEpochs([(before, Offset(offset - 1))] if before >= 0 else ())
        self._ranges = Ranges((), size=0, trimmed=0, newest_ms=-1)
        self.gaps_below = Offset(0)
        self.aborted.clear()

    def write_producer_snapshot(self, data: bytes, offset: Offset) -> None:
        self._snapshot = (offset, data)

    def latest_producer_snapshot(self, end: Offset = LAST_OFFSET) -> tuple[Offset, bytes] | None:
        try:
            found = self._engine.blocking.call("HMGET", self.keys.producers, "offset", "state", key=self.keys.producers)
        except RedisFailure as error:
            raise Unreachable(f"The log of {self.identity.name} cannot be read: {error}") from error
        if found[0] is None or found[1] is None or int(found[0]) > end:
            return None
        return Offset(int(found[0])), found[1]

    def mark_sealed(self, epoch: LeaderEpoch) -> None:
        """Logs are not handed over by seals here: any broker reaches them."""

    def forget_seal(self) -> None:
        """As `mark_sealed`."""
