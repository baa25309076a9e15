"""A small world around the machine of transactions: one partition of `__transaction_state`, its log, timers, and the
partitions that get markers. Laws are checked after every step. It knows the machine only by its interface."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import count

from headrace.base.ids import ProducerEpoch, ProducerId
from headrace.coordinators.transactions import events as ev
from headrace.coordinators.transactions import records
from headrace.coordinators.transactions.machine import step, wants_producer_id
from headrace.coordinators.transactions.model import (
    Producer,
    Standing,
    Terms,
    Transaction,
    TransactionConfig,
    TransactionState,
    TransactionVersion,
)
from headrace.coordinators.transactions.replay import Replay
from headrace.coordinators.values import Moment, NamedPartition
from headrace.wire.errors import ErrorCode

WALL_AT_START_MS = 1_700_000_000_000
MONOTONIC_AT_START_MS = 5_000
TV0, TV1, TV2 = TransactionVersion
OK = ErrorCode.NONE
CONFIG = TransactionConfig(transaction_two_phase_commit_enable=True)


def at(*names: str) -> frozenset[NamedPartition]:
    """Partitions by short names: "a0" is partition 0 of the topic a."""
    return frozenset(NamedPartition(name[:-1], int(name[-1])) for name in names)


def producer(number: int, epoch: int) -> Producer:
    return Producer(ProducerId(number), ProducerEpoch(epoch))


@dataclass
class InFlight:
    name: str
    write: int
    log_offset: int


@dataclass(frozen=True)
class Marker:
    """A marker that is owed to a partition."""

    name: str
    number: int
    partition: NamedPartition
    producer: Producer
    commit: bool
    coordinator_epoch: int


@dataclass
class World:
    """Drives `step` as the broker's driver does. `log` is what was appended; the durable part ends at `durable`."""

    terms: Terms = field(default_factory=lambda: Terms(coordinator_epoch=7, config=CONFIG))
    autowrite: bool = True
    """Appends are durable at once."""
    automark: bool = True
    """Markers are written at once."""
    has_producer_ids: bool = True
    transactions: dict[str, Transaction] = field(default_factory=dict)
    log: list[tuple[bytes, bytes | None]] = field(default_factory=list)
    in_flight: deque[InFlight] = field(default_factory=deque)
    markers: list[Marker] = field(default_factory=list)
    """Markers whose outcome is owed."""
    marked: list[Marker] = field(default_factory=list)
    """Markers that were written, in order."""
    armed: dict[str, int] = field(default_factory=dict)
    replies: dict[int, ev.AnyReply] = field(default_factory=dict)
    now_ms: int = 0
    refuse_next: ErrorCode = OK
    """With what the next append is refused."""
    refuse_all: ErrorCode = OK
    """With what every append is refused."""
    ids: count[int] = field(default_factory=lambda: count(1000))
    waiters: count[int] = field(default_factory=count)
    effects_seen: list[ev.Effect] = field(default_factory=list)

    def moment(self) -> Moment:
        return Moment(monotonic_ms=MONOTONIC_AT_START_MS + self.now_ms, wall_ms=WALL_AT_START_MS + self.now_ms)

    def send(self, name: str, event: ev.Event) -> None:
        before = self.transactions.get(name)
        fresh = None
        if self.has_producer_ids and wants_producer_id(before, event):
            fresh = ProducerId(next(self.ids))
        after, effects = step(name, before, event, self.moment(), self.terms, fresh)
        if after is None:
            self.transactions.pop(name, None)
        else:
            self.transactions[name] = after
        refused = self._carry_out(name, effects)
        self.check(name)
        for each in refused:
            self.send(name, each)
        while self.autowrite and self.in_flight:
            self.settle()
        while self.automark and self.markers:
            self.mark()

    def _carry_out(self, name: str, effects: list[ev.Effect]) -> list[ev.Event]:
        self.effects_seen.extend(effects)
        refused: list[ev.Event] = []
        for effect in effects:
            match effect:
                case ev.Reply(waiter, reply):
                    assert waiter not in self.replies, "answered twice"
                    self.replies[waiter] = reply
                case ev.Append(write, record, version):
                    refusal = self.refuse_all if self.refuse_next is OK else self.refuse_next
                    self.refuse_next = OK
                    if refusal is not OK:
                        refused.append(ev.WriteRefused(write=write, error=refusal))
                        continue
                    self.in_flight.append(InFlight(name, write, len(self.log)))
                    self.log.append(records.encode(record, version))
                case ev.SendMarkers():
                    assert effect.coordinator_epoch == self.terms.coordinator_epoch
                    owed = {(marker.name, marker.number, marker.partition) for marker in self.markers}
                    for partition in sorted(effect.partitions):
                        assert (name, effect.number, partition) not in owed, "sent while one is under way"
                        epoch = effect.coordinator_epoch
                        marker = Marker(name, effect.number, partition, effect.producer, effect.commit, epoch)
                        self.markers.append(marker)
                case ev.Wake(at_ms):
                    self.armed[name] = min(self.armed.get(name, at_ms), at_ms)
                case ev.Noted():
                    pass
        return refused

    def check(self, name: str) -> None:
        found = self.transactions.get(name)
        if found is None:
            return
        found.validate()
        assert not found.is_nothing
        due = found.deadline_ms(self.moment())
        assert due is None or self.armed[name] <= due, "a deadline that nobody is woken for"

    def settle(self, error: ErrorCode = OK) -> None:
        """The oldest append in flight is durable, if on fewer replicas than there should be."""
        done = self.in_flight.popleft()
        self.send(done.name, ev.Written(write=done.write, error=error))

    def mark(self, index: int = 0, error: ErrorCode = OK, *, gone: bool = False) -> None:
        """One owed marker has an outcome."""
        marker = self.markers.pop(index)
        if error is OK and not gone:
            self.marked.append(marker)
        errors = {} if gone else {marker.partition: error}
        parts = frozenset({marker.partition} if gone else set())
        self.send(marker.name, ev.MarkersSettled(number=marker.number, errors=errors, gone=parts))

    def advance(self, by_ms: int) -> None:
        """Let time pass, and wake what it is time to wake, in order."""
        until = self.now_ms + by_ms
        while True:
            limit = MONOTONIC_AT_START_MS + until
            due = min(((at_ms, name) for name, at_ms in self.armed.items() if at_ms <= limit), default=None)
            if due is None:
                break
            at_ms, name = due
            self.now_ms = max(self.now_ms, at_ms - MONOTONIC_AT_START_MS)
            del self.armed[name]
            self.send(name, ev.Tick())
        self.now_ms = until

    @property
    def durable(self) -> int:
        return self.in_flight[0].log_offset if self.in_flight else len(self.log)

    def replayed(self, end: int | None = None) -> dict[str, Transaction]:
        replay = Replay()
        for key, value in self.log[:end]:
            replay.apply(key, value)
        transactions = replay.transactions()
        assert replay.passed_over == 0
        return transactions

    def fail_over(self) -> None:
        """Another coordinator takes over: what was not durable is lost, waiting requests get no answer, and outcomes of
        markers come to nobody. Markers under way may still be written; the caller decides that before."""
        del self.log[self.durable :]
        self.in_flight.clear()
        self.armed.clear()
        self.markers.clear()
        epoch = self.terms.coordinator_epoch + 1
        self.terms = Terms(coordinator_epoch=epoch, version=self.terms.version, config=self.terms.config)
        self.transactions = self.replayed()
        for name in list(self.transactions):
            self.send(name, ev.Loaded())

    # requests, by their bare bones

    def init(
        self,
        name: str = "t",
        expected: Producer | None = None,
        *,
        timeout_ms: int = 60_000,
        two_phase_commit: bool = False,
        keep: bool = False,
    ) -> int:
        waiter = next(self.waiters)
        event = ev.InitProducer(
            waiter=waiter,
            timeout_ms=timeout_ms,
            expected=expected,
            two_phase_commit=two_phase_commit,
            keep_prepared=keep,
        )
        self.send(name, event)
        return waiter

    def add(self, who: Producer, *names: str, name: str = "t", version: TransactionVersion = TV2) -> int:
        waiter = next(self.waiters)
        event = ev.AddPartitions(waiter=waiter, producer=who, partitions=at(*names), client_version=version)
        self.send(name, event)
        return waiter

    def verify(self, who: Producer, *names: str, name: str = "t") -> ev.VerifyReply:
        waiter = next(self.waiters)
        self.send(name, ev.VerifyPartitions(waiter=waiter, producer=who, partitions=tuple(sorted(at(*names)))))
        reply = self.replies[waiter]
        assert isinstance(reply, ev.VerifyReply)
        return reply

    def end(self, who: Producer, *, commit: bool = True, name: str = "t", version: TransactionVersion = TV2) -> int:
        waiter = next(self.waiters)
        self.send(name, ev.EndTransaction(waiter=waiter, producer=who, commit=commit, client_version=version))
        return waiter

    # answers

    def initialised(self, waiter: int) -> ev.InitReply:
        reply = self.replies[waiter]
        assert isinstance(reply, ev.InitReply)
        return reply

    def begun(self, name: str = "t", **options: bool | int) -> Producer:
        """Initialise, which must succeed."""
        reply = self.initialised(self.init(name, **options))  # type: ignore[arg-type]
        assert reply.error is OK
        return reply.producer

    def error(self, waiter: int) -> ErrorCode:
        return self.replies[waiter].error

    def ended(self, waiter: int) -> ev.EndReply:
        reply = self.replies[waiter]
        assert isinstance(reply, ev.EndReply)
        return reply

    def standing(self, name: str = "t") -> Standing:
        return self.transactions[name].standing

    def state(self, name: str = "t") -> TransactionState:
        return self.standing(name).state
