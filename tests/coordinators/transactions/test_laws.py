"""Laws of transactions under random requests, late copies of them, slow and refused writes, lost markers and failovers.

The judge is dumb and knows nothing of the machine. It reads durable records, the markers that were sent and written,
and the answers. From these it says which transactions there were, how each ended, and which answers are true.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from headrace.base.ids import NO_PRODUCER_ID
from headrace.base.values import replaced
from headrace.coordinators.transactions import events as ev
from headrace.coordinators.transactions import records
from headrace.coordinators.transactions.model import (
    NO_PRODUCER_EPOCH,
    NO_TIMEOUT_MS,
    Producer,
    Standing,
    Terms,
    Transaction,
    TransactionState,
    TransactionVersion,
)
from headrace.coordinators.values import NamedPartition
from headrace.wire.errors import ErrorCode
from tests.coordinators.transactions.world import CONFIG, OK, TV0, TV1, TV2, World, at
from tests.tiers import examples

NAMES = ("t", "u")
PARTITIONS = ("a0", "a1", "b0")
DECIDED = (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)
ENDED = (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)
TIMEOUT_MS = 1_000


@dataclass
class History:
    """One id so far, as the log tells."""

    stands: Standing | None = None
    decision: Standing | None = None
    """The decision whose end is not durable yet."""
    number: int = -1
    """Of the markers that were sent for it last."""
    marked: set[NamedPartition] = field(default_factory=set)
    """Partitions that have its marker, or are gone."""
    ends: dict[Producer, set[bool]] = field(default_factory=dict)
    """How the transactions of each producer ended: the client's, as it was before the end."""
    raised: set[Producer] = field(default_factory=set)
    """Producers whose epoch rose with the decision, so that they have no further one."""


@dataclass
class Judge:
    histories: dict[str, History] = field(default_factory=dict)
    read: int = 0
    """Records that it has read."""
    granted: dict[str, Producer] = field(default_factory=dict)
    """The newest producer that a client was given."""
    producers: list[Producer] = field(default_factory=list)
    """All that were given out."""
    owners: dict[Producer, int] = field(default_factory=dict)
    """The client that each of them was given to."""

    def appended(self, name: str, record: ev.TransactionRecord, cause: ev.Event) -> None:
        """A record is appended. Only the client itself ends its transaction without being fenced."""
        if isinstance(record, ev.TransactionForgotten) or record.standing.state not in DECIDED:
            return
        before, after = self.of(name).stands, record.standing
        assert before is not None
        if not isinstance(cause, ev.EndTransaction):
            assert client_of(after) > client_of(before), "fenced without another epoch"
        if isinstance(cause, ev.Tick):
            assert before.timeout_ms != NO_TIMEOUT_MS, "two-phase commit timed out"

    def of(self, name: str) -> History:
        return self.histories.setdefault(name, History())

    def read_log(self, log: Sequence[tuple[bytes, bytes | None]]) -> None:
        """Read what has become durable. Everything that was read is read once."""
        for key, value in log[self.read :]:
            record = records.decode(key, value)
            assert record is not None
            if isinstance(record, ev.TransactionForgotten):
                assert self.of(record.id).decision is None, "a decided transaction is forgotten"
                self.histories[record.id] = History(ends=self.of(record.id).ends)
            else:
                self._judge(self.of(record.id), record.standing)
        self.read = max(self.read, len(log))

    def _judge(self, history: History, after: Standing) -> None:
        before = history.stands
        if before is not None:
            assert client_of(before) <= client_of(after), "an epoch went back"
        if after.state in DECIDED:
            assert history.decision is None, "decided twice"
            assert before is not None
            assert after.partitions == before.partitions
            was = client_of(before)
            history.decision, history.marked = after, set()
            commit = after.state is TransactionState.PREPARE_COMMIT
            history.ends.setdefault(was, set()).add(commit)
            if after.client_version is TV2:
                assert was not in history.raised, "one epoch, two decisions"
                history.raised.add(was)
        elif after.state in ENDED:
            decision = history.decision
            assert decision is not None, "an end without a decision"
            assert after.state - decision.state == 2, "the end is another than was decided"
            assert history.marked >= decision.partitions, "the end came before all markers"
            history.decision = None
        else:
            assert history.decision is None, "a decided transaction came to no end"
            if before is not None and before.state is after.state is TransactionState.ONGOING:
                assert after.partitions >= before.partitions, "a partition got lost"
        history.stands = after

    def sent(self, name: str, effect: ev.SendMarkers) -> None:
        decision = self.of(name).decision
        assert decision is not None, "a marker before the decision is durable"
        assert effect.commit == (decision.state is TransactionState.PREPARE_COMMIT)
        assert effect.producer == decision.producer
        assert effect.partitions <= decision.partitions
        self.of(name).number = effect.number

    def marker_settled(self, name: str, number: int, partition: NamedPartition) -> None:
        """A marker was written. It counts for the decision that it was sent for."""
        if number == self.of(name).number:
            self.of(name).marked.add(partition)

    def answered(self, name: str, request: ev.Request, reply: ev.AnyReply) -> None:
        """An answer is given. It acknowledges only things that are durable now."""
        if reply.error is not OK or isinstance(reply, ev.VerifyReply):
            return
        history = self.of(name)
        stands = history.stands
        assert stands is not None, "acknowledged, and nothing is durable"
        if isinstance(reply, ev.InitReply):
            assert isinstance(request, ev.InitProducer)
            assert reply.producer == client_of(stands)
            goes_on = request.expected is not None and request.expected in self.owners
            self.grant(name, reply.producer, self.owners[request.expected] if goes_on and request.expected else None)
        elif isinstance(request, ev.AddPartitions):
            assert request.producer == client_of(stands), "a zombie added partitions"
            assert request.partitions <= stands.partitions
        elif isinstance(request, ev.EndTransaction) and isinstance(reply, ev.EndReply):
            assert request.commit in history.ends.get(request.producer, set()), "acknowledged, and not decided so"
            if reply.producer_id >= 0:
                after = Producer(reply.producer_id, reply.producer_epoch)
                assert after > request.producer
                self.grant(name, after, self.owners.get(request.producer))

    def grant(self, name: str, producer: Producer, owner: int | None) -> None:
        """A client gets a producer. `owner`: the client that went on with an earlier one; None: a new client."""
        assert self.granted.get(name, producer) <= producer, "an older producer is given out"
        owner = len(self.owners) if owner is None else owner
        assert self.owners.setdefault(producer, owner) == owner, "two clients have the same epoch"
        self.granted[name] = producer
        self.producers.append(producer)


def client_of(standing: Standing) -> Producer:
    """The producer that the client has to show (KIP-939)."""
    if standing.next_producer_epoch >= 0:
        return Producer(standing.next_producer_id, standing.next_producer_epoch)
    return Producer(standing.producer_id, standing.producer_epoch)


@dataclass
class JudgedWorld(World):
    judge: Judge = field(default_factory=Judge)
    asked: dict[int, ev.Request] = field(default_factory=dict)
    cause: ev.Event = field(default_factory=ev.Tick)

    def send(self, name: str, event: ev.Event) -> None:
        self.cause = event
        super().send(name, event)

    def _carry_out(self, name: str, effects: list[ev.Effect]) -> list[ev.Event]:
        self.judge.read_log(self.log[: self.durable])
        for effect in effects:
            if isinstance(effect, ev.SendMarkers):
                self.judge.sent(name, effect)
            elif isinstance(effect, ev.Reply) and effect.waiter in self.asked:
                self.judge.answered(name, self.asked[effect.waiter], effect.reply)
                if isinstance(self.cause, ev.Written) and self.cause.error is not OK:
                    assert effect.reply.error is not OK, "too few replicas, and acknowledged"
            elif isinstance(effect, ev.Append):
                self.judge.appended(name, effect.record, self.cause)
        return super()._carry_out(name, effects)

    def mark(self, index: int = 0, error: ErrorCode = OK, *, gone: bool = False) -> None:
        marker = self.markers[index]
        if gone or error is OK:
            self.judge.marker_settled(marker.name, marker.number, marker.partition)
        super().mark(index, error, gone=gone)


class Transactions(RuleBasedStateMachine):
    """Clients with late requests, and a coordinator whose log and markers are slow, refuse and fail over."""

    def __init__(self) -> None:
        super().__init__()
        self.world = JudgedWorld()
        self.asked: dict[int, tuple[str, ev.Request]] = {}
        self.dropped: set[int] = set()
        self.client_version = TV2

    @initialize(server=st.sampled_from((TV0, TV1, TV2)), client=st.sampled_from((TV0, TV2)))
    def begin(self, server: TransactionVersion, client: TransactionVersion) -> None:
        self.world.terms = Terms(coordinator_epoch=1, version=server, config=CONFIG)
        self.client_version = client

    @property
    def version(self) -> TransactionVersion:
        return self.world.terms.version.spoken_by(self.client_version)

    # --- clients ---

    def ask(self, name: str, request: ev.Request) -> None:
        self.asked[request.waiter] = (name, request)
        self.world.asked[request.waiter] = request
        self.world.send(name, request)

    def producer(self, data: st.DataObject, name: str) -> Producer | None:
        """Most often the newest one of this id, else one that was given out before."""
        granted = self.world.judge.granted.get(name)
        if granted is not None and data.draw(st.integers(0, 7)):
            return granted
        given = self.world.judge.producers
        return data.draw(st.sampled_from(given)) if given else None

    @rule(
        data=st.data(), name=st.sampled_from(NAMES), goes_on=st.booleans(), keep=st.booleans(), two_phase=st.booleans()
    )
    def init(self, data: st.DataObject, name: str, goes_on: bool, keep: bool, two_phase: bool) -> None:
        request = ev.InitProducer(
            waiter=next(self.world.waiters),
            timeout_ms=TIMEOUT_MS,
            expected=self.producer(data, name) if goes_on else None,
            two_phase_commit=two_phase,
            keep_prepared=keep and self.version is TV2,
        )
        self.ask(name, request)

    @rule(data=st.data(), name=st.sampled_from(NAMES), partitions=st.sets(st.sampled_from(PARTITIONS)))
    def add(self, data: st.DataObject, name: str, partitions: set[str]) -> None:
        who = self.producer(data, name)
        if who is not None:
            request = ev.AddPartitions(
                waiter=next(self.world.waiters),
                producer=who,
                partitions=at(*partitions),
                client_version=self.client_version,
            )
            self.ask(name, request)

    @rule(data=st.data(), name=st.sampled_from(NAMES), commit=st.booleans())
    def end(self, data: st.DataObject, name: str, commit: bool) -> None:
        who = self.producer(data, name)
        if who is not None:
            request = ev.EndTransaction(
                waiter=next(self.world.waiters), producer=who, commit=commit, client_version=self.client_version
            )
            self.ask(name, request)

    @rule(data=st.data())
    def late_copy(self, data: st.DataObject) -> None:
        """A request arrives again: the client has sent it twice, or the network was slow."""
        if self.asked:
            name, request = self.asked[data.draw(st.sampled_from(sorted(self.asked)))]
            self.ask(name, replaced(request, waiter=next(self.world.waiters)))

    @rule(data=st.data(), name=st.sampled_from(NAMES))
    def verify(self, data: st.DataObject, name: str) -> None:
        who = self.producer(data, name)
        if who is None:
            return
        reply = self.world.verify(who, *PARTITIONS, name=name)
        stands = self.world.judge.of(name).stands
        for partition, error in zip(sorted(at(*PARTITIONS)), reply.partitions, strict=False):
            assert stands is not None
            assert (error is OK) == (partition in stands.partitions)
            assert who == stands.client

    # --- the log, the partitions, time ---

    @rule(writes=st.booleans(), marks=st.booleans())
    def haste(self, writes: bool, marks: bool) -> None:
        """The log or the partitions become fast, so that much happens, or slow, so that things meet."""
        self.world.autowrite, self.world.automark = writes, marks
        while writes and self.world.in_flight:
            self.world.settle()
        while marks and self.world.markers:
            self.world.mark()

    @rule(data=st.data())
    def late_outcome(self, data: st.DataObject) -> None:
        """The outcome of an earlier decision's marker is told again."""
        epoch = self.world.terms.coordinator_epoch
        owed = {(marker.name, marker.partition) for marker in self.world.markers}
        told = [marker for marker in self.world.marked if marker.coordinator_epoch == epoch]
        told = [marker for marker in told if (marker.name, marker.partition) in owed] or told
        if told:
            marker = data.draw(st.sampled_from(told))
            if marker.name in self.world.transactions:
                outcome = ev.MarkersSettled(number=marker.number, errors={marker.partition: OK})
                self.world.send(marker.name, outcome)

    @rule(data=st.data(), name=st.sampled_from(NAMES), partitions=st.sets(st.sampled_from(PARTITIONS), min_size=1))
    def transact(self, data: st.DataObject, name: str, partitions: set[str]) -> None:
        """A client of good manners: begins if need be, adds, and ends."""
        if name not in self.world.judge.granted:
            self.init(data, name, goes_on=False, keep=False, two_phase=False)
            self.add(data, name, partitions)
        self.end(data, name, commit=data.draw(st.booleans()))

    @rule(error=st.sampled_from((OK, OK, OK, ErrorCode.COORDINATOR_NOT_AVAILABLE)))
    def settle(self, error: ErrorCode) -> None:
        if self.world.in_flight:
            self.world.settle(error)

    @rule()
    def refuse(self) -> None:
        self.world.refuse_next = ErrorCode.COORDINATOR_NOT_AVAILABLE

    @rule(data=st.data(), outcome=st.sampled_from((OK, OK, OK, ErrorCode.NOT_LEADER_OR_FOLLOWER, None)))
    def mark(self, data: st.DataObject, outcome: ErrorCode | None) -> None:
        if not self.world.markers:
            return
        index = data.draw(st.integers(0, len(self.world.markers) - 1))
        self.world.mark(index, outcome or OK, gone=outcome is None)

    @rule(by_ms=st.sampled_from((1, 200, TIMEOUT_MS, 2 * CONFIG.transactional_id_expiration_ms)))
    def advance(self, by_ms: int) -> None:
        self.world.advance(by_ms)

    @rule(has=st.booleans())
    def producer_ids(self, has: bool) -> None:
        self.world.has_producer_ids = has

    @rule(name=st.sampled_from(NAMES))
    def expire(self, name: str) -> None:
        self.world.send(name, ev.Expire())

    @rule()
    def fail_over(self) -> None:
        """Waiting clients get no answer. All that was acknowledged is still true."""
        waiting = self.asked.keys() - self.world.replies.keys()
        self.dropped |= waiting
        self.the_state_is_what_the_log_replays_to()
        self.world.fail_over()

    # --- the laws ---

    def the_state_is_what_the_log_replays_to(self) -> None:
        replayed = self.world.replayed(self.world.durable)
        version = self.world.terms.version
        live = [settled(found, version) for found in self.world.transactions.values() if not found.standing.is_new]
        assert replayed == {found.id: found for found in live}

    def teardown(self) -> None:
        """Once log and partitions are well, everybody is answered and every decided transaction ends."""
        self.world.refuse_next = OK
        self.world.has_producer_ids = True
        for _ in range(100):
            while self.world.in_flight:
                self.world.settle()
            while self.world.markers:
                self.world.mark()
            self.world.advance(100)
            if not self.world.in_flight and not self.world.markers:
                break
        assert self.asked.keys() <= self.world.replies.keys() | self.dropped
        for found in self.world.transactions.values():
            assert not found.is_busy, "a decided transaction does not end"
        self.the_state_is_what_the_log_replays_to()


def settled(found: Transaction, version: TransactionVersion) -> Transaction:
    """The id as its newest record has it, in the form that this version writes."""
    standing = replaced(found.standing, last_producer_epoch=NO_PRODUCER_EPOCH)
    if version is TV0:
        standing = replaced(standing, previous_producer_id=NO_PRODUCER_ID)
    return Transaction(id=found.id, standing=standing)


Transactions.TestCase.settings = settings(deadline=None, stateful_step_count=40, max_examples=examples(160))
TestTransactions = Transactions.TestCase
