"""The groups of one partition of the offsets topic, rebuilt from its records in the order of the log.

Promises: the last record of each key counts. The result equals the machine's state when the last of these records
became durable, with two differences. Members have a full session, and ids handed out but not yet used (KIP-394) are
forgotten, as in Kafka. Only the last record of each key is decoded, because most of a log is outdated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import immutables

from headrace.coordinators.groups import records
from headrace.coordinators.groups.commits import CommitReader
from headrace.coordinators.groups.configs import ConsumerConfig
from headrace.coordinators.groups.consumer.machine import state_of
from headrace.coordinators.groups.consumer.model import ConsumerGroup
from headrace.coordinators.groups.consumer.replay import ConsumerReplay
from headrace.coordinators.groups.events import (
    GroupForgotten,
    GroupFormed,
    MemberRecord,
    OffsetCommitted,
    OffsetForgotten,
)
from headrace.coordinators.groups.model import (
    Commit,
    Group,
    GroupState,
    Member,
    Moment,
    NamedPartition,
    OpenCommit,
    OpenCommits,
    Protocol,
)
from headrace.coordinators.groups.subscriptions import CONSUMER
from headrace.wire.codec import DecodeError


class Replay:
    """Feed it the records, then take the groups."""

    def __init__(self, config_of: Callable[[str], ConsumerConfig] = lambda _: ConsumerConfig()) -> None:
        """`config_of` gives the config of a group by its name."""
        self._config_of = config_of
        self._last: dict[bytes, bytes] = {}
        self._open: dict[int, dict[bytes, tuple[int, bytes | None]]] = {}
        """The last records of open transactions, by producer id and key, each with its place among all of these."""
        self._place = 0
        self._commits = CommitReader()
        self._formed: dict[str, GroupFormed] = {}
        self._consumers: dict[str, ConsumerReplay] = {}
        self._offsets: dict[str, dict[NamedPartition, Commit]] = {}
        self._open_commits: dict[str, dict[int, dict[NamedPartition, OpenCommit]]] = {}
        self._grace_ms = 0
        self.passed_over = 0
        """Records that were damaged or of an unknown kind; counted by `groups`."""

    def apply(self, key: bytes, value: bytes | None) -> None:
        key = records.canonical(key)
        if self._open:
            self._outdate(key, self._place)
        if value is None:
            self._last.pop(key, None)
        else:
            self._last[key] = value

    def apply_open(self, producer_id: int, key: bytes, value: bytes | None) -> None:
        """As `apply`, for a record of a transaction, which counts once that is committed."""
        self._place += 1
        self._open.setdefault(producer_id, {})[records.canonical(key)] = self._place, value

    def end(self, producer_id: int, *, is_committed: bool) -> None:
        """A marker ends the producer's transaction."""
        own = self._open.pop(producer_id, {})
        for key, (place, value) in own.items() if is_committed else ():
            self._outdate(key, place)
            if value is None:
                self._last.pop(key, None)
            else:
                self._last[key] = value

    def _outdate(self, key: bytes, place: int) -> None:
        """Forget what open transactions have written under the key up to this place."""
        for own in self._open.values():
            known = own.get(key)
            if known is not None and known[0] <= place:
                del own[key]

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left of the records that it was fed."""
        return not self._last and not any(self._open.values())

    def groups(self, now: Moment, grace_ms: int = 0) -> dict[str, Group]:
        """All groups. Each with members needs a `Tick` by its earliest deadline. Call this once. `grace_ms`: time for
        which the previous coordinator may have prolonged sessions of consumer groups."""
        self._grace_ms = grace_ms
        for key, value in self._last.items():
            self._decode(key, value)
        for producer_id, own in self._open.items():
            for key, (place, written) in own.items():
                self._decode_open(producer_id, key, written, place)
        names = sorted(self._formed.keys() | self._offsets.keys() | self._consumers.keys() | self._open_commits.keys())
        groups = (self._group(name, now) for name in names)
        return {group.id: group for group in groups if not group.is_nothing}

    def _decode(self, key: bytes, value: bytes) -> None:
        try:
            committed = self._commits.read(key, value)
            record = records.decode(key, value) if committed is None else committed
        except DecodeError:
            record = None
        match record:
            case OffsetCommitted(group, partition, commit):
                self._offsets.setdefault(group, {})[partition] = commit
            case GroupFormed(group=group):
                self._formed[group] = record
            case None | OffsetForgotten() | GroupForgotten():
                self.passed_over += 1
            case _:
                self._consumers.setdefault(record.group, ConsumerReplay()).apply(record)

    def _decode_open(self, producer_id: int, key: bytes, value: bytes | None, place: int) -> None:
        try:
            record = None if value is None else records.decode(key, value)
        except DecodeError:
            record = None
        if isinstance(record, OffsetCommitted):
            own = self._open_commits.setdefault(record.group, {}).setdefault(producer_id, {})
            own[record.partition] = OpenCommit(place - self._place - 1, record.commit)
        else:
            self.passed_over += 1

    def _consumer(self, name: str, now: Moment) -> ConsumerGroup | None:
        found = self._consumers.get(name)
        return None if found is None else found.group(now.monotonic_ms, self._config_of(name), self._grace_ms)

    def _group(self, name: str, now: Moment) -> Group:
        offsets: immutables.Map[NamedPartition, Commit] = immutables.Map(self._offsets.get(name, {}))
        still_open = {each: OpenCommits(own) for each, own in self._open_commits.get(name, {}).items()}
        open_commits: immutables.Map[int, OpenCommits] = immutables.Map(still_open)
        record = self._formed.get(name)
        consumer = self._consumer(name, now)
        if consumer is not None:
            return Group(
                id=name,
                state=state_of(consumer),
                protocol_type=CONSUMER,
                since_ms=-1 if consumer.members else now.wall_ms,  # no record has the time, so offsets expire later
                consumer=consumer,
                offsets=offsets,
                open=open_commits,
                recorded=record is not None,
            )
        if record is None:
            return Group(id=name, offsets=offsets, open=open_commits)
        members = {member.id: _member(member, record, now) for member in record.members}
        group = Group(
            id=name,
            state=GroupState.STABLE if members else GroupState.EMPTY,
            generation=record.generation,
            protocol_type=record.protocol_type,
            protocol=record.protocol,
            leader=record.leader if record.leader in members else next(iter(members), None),
            members=members,
            offsets=offsets,
            open=open_commits,
            since_ms=record.since_ms,
            recorded=True,
        )
        if not members or record.leader is not None:
            return group
        # it was a consumer group, and the log ends before its members had joined again
        due = now.monotonic_ms + group.rebalance_timeout_ms
        return replace(group, state=GroupState.PREPARING, rebalance_deadline_ms=due)


def _member(record: MemberRecord, formed: GroupFormed, now: Moment) -> Member:
    """A member from its group's record, which keeps only the chosen protocol."""
    return Member(
        id=record.id,
        instance_id=record.instance_id,
        client_id=record.client_id,
        client_host=record.client_host,
        session_timeout_ms=record.session_timeout_ms,
        rebalance_timeout_ms=record.rebalance_timeout_ms,
        protocols=(Protocol(formed.protocol or "", record.subscription),),
        assignment=record.assignment,
        synced=True,
        deadline_ms=now.monotonic_ms + record.session_timeout_ms,
    )
