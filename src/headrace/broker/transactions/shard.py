"""One partition of `__transaction_state` and the transactional ids that it keeps: the driver of their machine.

Promises, beside those of every shard: an id that needs a new producer id gets one that nobody has. Nothing is answered
that rests on a record which is not committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, Protocol, TypeAlias, assert_never

from headrace.base.ids import ProducerId
from headrace.base.limits import TRANSACTION_ANSWER_MS_MAX, TRANSACTIONAL_IDS_PER_SHARD_MAX
from headrace.base.ports import Clock
from headrace.broker.kit.lease import Lease
from headrace.broker.kit.tasks import OnBug, started
from headrace.broker.partitions.partition import Partition
from headrace.broker.shards.loading import read
from headrace.broker.shards.shard import Shard
from headrace.broker.shards.writes import Entry
from headrace.controller.decision import Refusal
from headrace.coordinators.transactions import records
from headrace.coordinators.transactions.events import (
    AnyReply,
    Append,
    Effect,
    Event,
    Expire,
    Loaded,
    MarkersSettled,
    Noted,
    Reply,
    SendMarkers,
    Tick,
    Wake,
    WriteRefused,
    Written,
)
from headrace.coordinators.transactions.machine import step, wants_producer_id
from headrace.coordinators.transactions.model import Terms, Transaction
from headrace.coordinators.transactions.replay import Replay
from headrace.logs import get_logger
from headrace.wire.apis import EncodeError
from headrace.wire.errors import ErrorCode

log = get_logger(__name__)

Told: TypeAlias = AnyReply | ErrorCode
"""The coordinator's own answer, or why it cannot be asked here."""
NewProducerId: TypeAlias = Callable[[], Awaitable[ProducerId | Refusal]]


class Markers(Protocol):
    """Has markers written."""

    def send(
        self, effect: SendMarkers, settled: Callable[[MarkersSettled], None], is_over: Callable[[], bool]
    ) -> None: ...


class Put(NamedTuple):
    """An event, with a producer id where one may be needed for it."""

    event: Event
    fresh: ProducerId | None = None


class TransactionShard(Shard[Transaction, Put]):
    """See the module."""

    NOUN = "transactional id"

    def __init__(
        self,
        partition: Partition,
        *,
        terms: Callable[[], Terms],
        clock: Clock,
        lease: Lease,
        markers: Markers,
        new_producer_id: NewProducerId,
        on_lost: Callable[[TransactionShard], None],
        on_bug: OnBug,
    ) -> None:
        super().__init__(
            partition, clock=clock, lease=lease, timeout_ms=TRANSACTION_ANSWER_MS_MAX, on_lost=lambda: on_lost(self)
        )
        self._terms: Final = terms
        self._markers: Final = markers
        self._new_producer_id: Final = new_producer_id
        self._on_bug: Final = on_bug
        self._fetches: set[asyncio.Task[None]] = set()
        self._wait_for_rest: dict[str, list[asyncio.Future[None]]] = {}
        """By transactional id: requests that wait until no transition is under way."""

    # asking

    def ask(self, transactional_id: str, build: Callable[[int], Event]) -> asyncio.Future[Told]:
        """Put a request to a transactional id. `build` gets the waiter's number and returns the event."""
        waiting: asyncio.Future[Told] = self._loop.create_future()
        if len(self.kept) >= TRANSACTIONAL_IDS_PER_SHARD_MAX and transactional_id not in self.kept:
            waiting.set_result(ErrorCode.POLICY_VIOLATION)
        else:
            self.put(transactional_id, build(self.registered(waiting)))
        return waiting

    def at_rest(self, transactional_id: str) -> asyncio.Future[None] | None:
        """Return a future that is done once no transition of the id is under way, or the shard is lost. It is the
        caller's own. None: none is under way now."""
        found = self.kept.get(transactional_id)
        if found is None or not found.is_busy:
            return None
        rest: asyncio.Future[None] = self._loop.create_future()
        self._wait_for_rest.setdefault(transactional_id, []).append(rest)
        return rest

    def put(self, transactional_id: str, event: Event) -> None:
        """Put one event to one id. Where it may need a producer id, that is fetched first."""
        if self.lost:
            return
        if wants_producer_id(self.kept.get(transactional_id), event):
            fetch = started(self._put_with_id(transactional_id, event), "a producer id", self._on_bug)
            self._fetches.add(fetch)
            fetch.add_done_callback(self._fetches.discard)
        else:
            self.send(transactional_id, Put(event))

    async def _put_with_id(self, transactional_id: str, event: Event) -> None:
        taken = await self._new_producer_id()
        self.send(transactional_id, Put(event, None if isinstance(taken, Refusal) else taken))

    def _step(self, name: str, event: Put) -> None:
        after, effects = step(name, self.kept.get(name), event.event, self._now(), self._terms(), event.fresh)
        if after is None:
            self.kept.pop(name, None)
            self._timers.disarm(name)
        else:
            self.kept[name] = after
        for effect in effects:
            self._carry_out(name, effect)
        if name in self._wait_for_rest and (after is None or not after.is_busy):
            self._wake_at_rest(self._wait_for_rest.pop(name))

    def _wake_at_rest(self, waiting: list[asyncio.Future[None]]) -> None:
        for each in waiting:
            if not each.done():
                each.set_result(None)

    # carrying out

    def _carry_out(self, name: str, effect: Effect) -> None:
        match effect:
            case Reply(waiter=waiter, reply=reply):
                self._waiters.answer(waiter, reply)
            case Append():
                self._append(name, effect)
            case SendMarkers():
                self._markers.send(effect, lambda settled: self.put(name, settled), lambda: self.lost)
            case Wake(at_ms=at_ms):
                self._timers.arm(name, at_ms)
            case Noted(text=text):
                log.info(text, transactional_id=name)
            case _:
                assert_never(effect)

    def _append(self, name: str, append: Append) -> None:
        if self.lost:
            return
        try:
            pair = records.encode(append.record, append.version)
        except EncodeError as error:
            log.warning("a transactional id's record cannot be written", reason=str(error))
            self._refuse(name, append.write, ErrorCode.INVALID_REQUEST)
            return
        self._entries.append(Entry(name, append.write, [pair]))
        self._write_entries()

    def _wake(self, name: str) -> None:
        if self.partition.availability is not ErrorCode.NONE:
            self.lose()
        else:
            self.put(name, Tick())

    def _written(self, write: int, error: ErrorCode) -> Put:
        return Put(Written(write=write, error=error))

    def _refused(self, write: int, error: ErrorCode) -> Put:
        return Put(WriteRefused(write=write, error=error))

    def told_as(self, error: ErrorCode) -> ErrorCode:
        if error in (ErrorCode.NONE, ErrorCode.INVALID_REQUEST):
            return error
        if error is ErrorCode.MESSAGE_TOO_LARGE:
            return ErrorCode.UNKNOWN_SERVER_ERROR
        return ErrorCode.COORDINATOR_NOT_AVAILABLE

    def _let_go(self) -> None:
        for fetch in self._fetches:
            fetch.cancel()
        for waiting in self._wait_for_rest.values():
            self._wake_at_rest(waiting)
        self._wait_for_rest.clear()

    # loading

    async def load(self) -> None:
        """Read the log, and go on with what it leaves undone."""
        replay = Replay()
        await read(self.partition, self._end, replay, lambda: self.lost)
        found = {} if replay.is_empty else await self._loop.run_in_executor(None, replay.transactions)
        if replay.passed_over:
            log.warning("records of transactions were passed over", records=replay.passed_over, **self._place)
        if self.lost:
            return
        self.kept = found
        self.loaded = True
        if found:
            log.info("transactional ids loaded", transactional_ids=len(found), **self._place)
        await self.sweep(lambda _: Put(Loaded()))

    async def expire(self) -> None:
        """Forget ids that nobody has used for `transactional.id.expiration.ms`."""
        await self.sweep(lambda _: Put(Expire()))
