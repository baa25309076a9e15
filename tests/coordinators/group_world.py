"""A small world around the group machine: one partition of the offsets topic, its log and its timers. Laws are checked
after every step. It knows the machine only by its interface (events in, effects out)."""

from __future__ import annotations

import re
import uuid
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from headrace.base.ids import LeaderEpoch, Offset, PartitionIndex, TopicId, TopicPartition
from headrace.coordinators.groups import events as ev
from headrace.coordinators.groups import records
from headrace.coordinators.groups.configs import GroupConfig
from headrace.coordinators.groups.consumer.model import Partitions, Sight, TopicShape
from headrace.coordinators.groups.machine import step
from headrace.coordinators.groups.model import Group, Moment, NamedPartition, Protocol, TransactionalProducer
from headrace.coordinators.groups.replay import Replay
from headrace.wire.errors import ErrorCode

TOPIC_ID = TopicId(uuid.UUID(int=7))
WALL_AT_START_MS = 1_700_000_000_000
CONFIG = GroupConfig(group_initial_rebalance_delay_ms=0)


@dataclass(frozen=True)
class Cluster:
    """The topics that there are."""

    shapes: dict[str, TopicShape] = field(default_factory=dict)
    version: int = 1
    rights: Mapping[str, frozenset[str]] | None = None
    """The topics that each principal may describe; None: everybody may describe all."""

    def visible(self, sight: Sight) -> frozenset[str] | None:
        matching = self.matching(sight.pattern) or frozenset()
        if self.rights is None:
            return matching
        return None if sight.principal is None else matching & self.rights.get(sight.principal, frozenset())

    def shape(self, name: str) -> TopicShape | None:
        return self.shapes.get(name)

    def name(self, topic_id: TopicId) -> str | None:
        return next((name for name, shape in self.shapes.items() if shape.id == topic_id), None)

    def matching(self, pattern: str) -> frozenset[str] | None:
        try:
            return frozenset(name for name in self.shapes if re.fullmatch(pattern, name))
        except re.error:
            return None

    def having(self, **sizes: int) -> Cluster:
        """With these topics too, or with that many partitions; 0: without."""
        shapes = dict(self.shapes)
        for name, partitions in sizes.items():
            before = shapes.pop(name, None)
            if partitions:
                topic_id = (
                    TopicId(uuid.UUID(int=1000 + 10 * self.version + len(shapes))) if before is None else before.id
                )
                shapes[name] = TopicShape(topic_id, partitions)
        return replace(self, shapes=shapes, version=self.version + 1)

    def partitions(self, names: Iterable[str]) -> Partitions:
        return frozenset(
            TopicPartition(shape.id, PartitionIndex(index))
            for name, shape in self.shapes.items()
            if name in names
            for index in range(shape.partitions)
        )


@dataclass
class InFlight:
    group: str
    write: int
    """-1: a marker."""
    log_offset: int


@dataclass
class World:
    """Drives `step` as the broker's driver does. `log` is what was appended; the durable part ends at `durable`."""

    config: GroupConfig = CONFIG
    cluster: Cluster = field(default_factory=Cluster)
    autowrite: bool = True
    """Appends are durable at once."""
    groups: dict[str, Group] = field(default_factory=dict)
    log: list[tuple[bytes, bytes | None]] = field(default_factory=list)
    open: dict[int, int] = field(default_factory=dict)
    """The producers of transactional records, by their index in the log."""
    markers: dict[int, ev.TransactionEnded] = field(default_factory=dict)
    """By their index in the log, where an empty record has their place."""
    in_flight: deque[InFlight] = field(default_factory=deque)
    armed: dict[str, int] = field(default_factory=dict)
    replies: dict[int, ev.AnyReply] = field(default_factory=dict)
    asked: dict[int, str] = field(default_factory=dict)
    now_ms: int = 0
    refuse_next: ErrorCode = ErrorCode.NONE
    """With what the next append is refused."""
    effects_seen: list[ev.Effect] = field(default_factory=list)

    def waiter(self, group: str) -> int:
        number = len(self.asked)
        self.asked[number] = group
        return number

    @property
    def waiting(self) -> set[int]:
        return self.asked.keys() - self.replies.keys()

    def moment(self) -> Moment:
        return Moment(monotonic_ms=self.now_ms, wall_ms=WALL_AT_START_MS + self.now_ms)

    def send(self, group: str, event: ev.Event) -> None:
        after, effects = step(group, self.groups.get(group), event, self.moment(), self.config, self.cluster)
        if after is None:
            self.groups.pop(group, None)
        else:
            self.groups[group] = after
        self._carry_out(group, effects)
        self._check(group)
        while self.autowrite and self.in_flight:
            self.settle()

    def _carry_out(self, group: str, effects: list[ev.Effect]) -> None:
        self.effects_seen.extend(effects)
        refused: list[ev.Event] = []
        again: list[ev.Event] = []
        for effect in effects:
            match effect:
                case ev.Reply(waiter=waiter, reply=reply):
                    assert waiter not in self.replies, "answered twice"
                    self.replies[waiter] = reply
                case ev.Append(write=write, records=batch, producer=producer):
                    assert batch
                    if self.refuse_next is not ErrorCode.NONE:
                        refused.append(ev.WriteRefused(write=write, error=self.refuse_next))
                        self.refuse_next = ErrorCode.NONE
                        continue
                    self.in_flight.append(InFlight(group, write, len(self.log)))
                    if producer is not None:
                        self.open.update((len(self.log) + at, producer.id) for at in range(len(batch)))
                    self.log.extend(records.encode(record) for record in batch)
                case ev.Wake(at_ms=at_ms):
                    self.armed[group] = min(self.armed.get(group, at_ms), at_ms)
                case ev.SplitHeartbeats(heartbeats=heartbeats):
                    middle = len(heartbeats) // 2
                    halves = heartbeats[:middle], heartbeats[middle:]
                    again.extend(half[0] if len(half) == 1 else ev.ConsumerHeartbeats(half) for half in halves)
        for event in (*refused, *again):
            self.send(group, event)

    def _check(self, name: str) -> None:
        group = self.groups.get(name)
        if group is None:
            return
        group.validate()
        assert not group.is_nothing
        due = group.earliest_deadline_ms()
        assert due is None or self.armed[name] <= due, "a deadline that nobody is woken for"

    def settle(self, error: ErrorCode = ErrorCode.NONE) -> None:
        """The oldest append in flight is durable, if on fewer replicas than there should be."""
        done = self.in_flight.popleft()
        if done.write >= 0:
            self.send(done.group, ev.Written(write=done.write, error=error))
            return
        for name in list(self.groups):
            self.send(name, self.markers[done.log_offset])

    def advance(self, by_ms: int) -> None:
        """Let time pass, and wake whom it is time to wake, in order."""
        until = self.now_ms + by_ms
        while True:
            due = min(((at, name) for name, at in self.armed.items() if at <= until), default=None)
            if due is None:
                break
            at, name = due
            self.now_ms = max(self.now_ms, at)
            del self.armed[name]
            self.send(name, ev.Tick())
        self.now_ms = until

    @property
    def durable(self) -> int:
        return self.in_flight[0].log_offset if self.in_flight else len(self.log)

    def replayed(self, end: int | None = None) -> dict[str, Group]:
        replay = Replay(lambda _: self.config.consumer)
        for at, (key, value) in enumerate(self.log[:end]):
            if (marker := self.markers.get(at)) is not None:
                replay.end(marker.producer_id, is_committed=marker.is_committed)
            elif (producer_id := self.open.get(at)) is not None:
                replay.apply_open(producer_id, key, value)
            else:
                replay.apply(key, value)
        groups = replay.groups(self.moment())
        assert replay.passed_over == 0
        return groups

    def crash(self) -> None:
        """Lose everything that was not durable and start again from the log. Waiting requests get no answer."""
        left = self.durable
        del self.log[left:]
        self.open = {at: producer_id for at, producer_id in self.open.items() if at < left}
        self.markers = {at: marker for at, marker in self.markers.items() if at < left}
        self.in_flight.clear()
        self.armed.clear()
        for waiter in self.waiting:
            self.replies[waiter] = ev.HeartbeatReply(error=ErrorCode.NOT_COORDINATOR)
        self.groups = self.replayed()
        for name, group in self.groups.items():
            due = group.earliest_deadline_ms()
            if due is not None:
                self.armed[name] = due
            self._check(name)

    # requests, by their bare bones

    def join(
        self,
        group: str = "g",
        member_id: str = "",
        *,
        new_member_id: str = "",
        protocols: tuple[str, ...] = ("range",),
        known_id: bool = False,
        session_timeout_ms: int = 10_000,
        rebalance_timeout_ms: int = 60_000,
        metadata: bytes = b"topics",
        protocol_type: str = "consumer",
        instance_id: str | None = None,
        skips_assignment: bool = True,
    ) -> int:
        waiter = self.waiter(group)
        event = ev.Join(
            waiter=waiter,
            member_id=member_id,
            instance_id=instance_id,
            new_member_id=new_member_id or f"m{waiter}",
            require_known_id=known_id,
            client_id="client",
            client_host="/127.0.0.1",
            session_timeout_ms=session_timeout_ms,
            rebalance_timeout_ms=rebalance_timeout_ms,
            protocol_type=protocol_type,
            protocols=tuple(Protocol(name, metadata) for name in protocols),
            skips_assignment=skips_assignment,
        )
        self.send(group, event)
        return waiter

    def sync(
        self,
        member_id: str,
        generation: int,
        assignments: dict[str, bytes] | None = None,
        *,
        group: str = "g",
        instance_id: str | None = None,
    ) -> int:
        waiter = self.waiter(group)
        event = ev.Sync(
            waiter=waiter,
            member_id=member_id,
            instance_id=instance_id,
            generation=generation,
            assignments=assignments or {},
        )
        self.send(group, event)
        return waiter

    def heartbeat(
        self, member_id: str, generation: int, *, group: str = "g", instance_id: str | None = None
    ) -> ErrorCode:
        waiter = self.waiter(group)
        event = ev.Heartbeat(waiter=waiter, member_id=member_id, instance_id=instance_id, generation=generation)
        self.send(group, event)
        reply = self.replies[waiter]
        assert isinstance(reply, ev.HeartbeatReply)
        return reply.error

    def leave(self, *members: str | ev.Leaver, group: str = "g") -> tuple[ErrorCode, ...]:
        waiter = self.waiter(group)
        leavers = tuple(ev.Leaver(one) if isinstance(one, str) else one for one in members)
        self.send(group, ev.Leave(waiter=waiter, members=leavers))
        reply = self.replies[waiter]
        assert isinstance(reply, ev.LeaveReply)
        return reply.members

    def commit(
        self,
        offsets: dict[int, int],
        *,
        member_id: str = "",
        generation: int = -1,
        group: str = "g",
        metadata: str = "",
        topic: str = "t",
        topic_id: TopicId = TOPIC_ID,
        instance_id: str | None = None,
    ) -> int:
        waiter = self.waiter(group)
        new = tuple(
            ev.NewOffset(
                partition=NamedPartition(topic, index),
                topic_id=topic_id,
                offset=Offset(offset),
                leader_epoch=LeaderEpoch(3),
                metadata=metadata,
            )
            for index, offset in offsets.items()
        )
        event = ev.CommitOffsets(
            waiter=waiter, member_id=member_id, instance_id=instance_id, generation=generation, offsets=new
        )
        self.send(group, event)
        return waiter

    def commit_in_transaction(
        self,
        producer_id: int,
        offsets: dict[int, int],
        *,
        member_id: str = "",
        generation: int = -1,
        instance_id: str | None = None,
        metadata: str = "",
        topic_id: TopicId = TOPIC_ID,
        group: str = "g",
    ) -> int:
        waiter = self.waiter(group)
        new = tuple(
            ev.NewOffset(NamedPartition("t", index), topic_id, Offset(offset), LeaderEpoch(3), metadata)
            for index, offset in offsets.items()
        )
        producer = TransactionalProducer(producer_id, 0)
        self.send(group, ev.CommitInTransaction(waiter, producer, new, member_id, generation, instance_id))
        return waiter

    def end(self, producer_id: int, *, is_committed: bool) -> None:
        """Append a marker."""
        self.markers[len(self.log)] = ev.TransactionEnded(producer_id, is_committed)
        self.in_flight.append(InFlight("", -1, len(self.log)))
        self.log.append((b"", None))
        while self.autowrite and self.in_flight:
            self.settle()

    def delete(self, group: str = "g") -> int:
        waiter = self.waiter(group)
        self.send(group, ev.Delete(waiter=waiter))
        return waiter

    def delete_offsets(self, *partitions: NamedPartition, group: str = "g") -> ev.DeleteOffsetsReply:
        waiter = self.waiter(group)
        self.send(group, ev.DeleteOffsets(waiter=waiter, partitions=partitions))
        reply = self.replies[waiter]
        assert isinstance(reply, ev.DeleteOffsetsReply)
        return reply

    # answers

    def joined(self, waiter: int) -> ev.JoinReply:
        reply = self.replies[waiter]
        assert isinstance(reply, ev.JoinReply)
        return reply

    def synced(self, waiter: int) -> ev.SyncReply:
        reply = self.replies[waiter]
        assert isinstance(reply, ev.SyncReply)
        return reply

    def committed(self, waiter: int) -> tuple[ErrorCode, ...]:
        reply = self.replies[waiter]
        assert isinstance(reply, ev.CommitReply)
        return reply.errors

    def offset(self, index: int, group: str = "g") -> int:
        found = self.groups.get(group)
        commit = None if found is None else found.offsets.get(NamedPartition("t", index))
        return -1 if commit is None else commit.offset
