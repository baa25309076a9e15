"""The groups of one partition of the offsets topic, rebuilt from its records in the order of the log.

Promises: the last word on each key stands; what comes out equals what the machine held when the last of these records
was durable, save that members have a full session before them and that ids given out but not yet used (KIP-394) are
forgotten, as in Kafka.
"""

from __future__ import annotations

from typing import assert_never

import immutables

from headrace.coordinators.groups.events import (
    GroupForgotten,
    GroupFormed,
    GroupRecord,
    MemberRecord,
    OffsetCommitted,
    OffsetForgotten,
)
from headrace.coordinators.groups.model import Commit, Group, GroupState, Member, Moment, NamedPartition, Protocol


class Replay:
    """Feed it records, then take the groups."""

    def __init__(self) -> None:
        self._formed: dict[str, GroupFormed] = {}
        self._offsets: dict[str, dict[NamedPartition, Commit]] = {}

    def apply(self, record: GroupRecord) -> None:
        match record:
            case OffsetCommitted(group=group, partition=partition, commit=commit):
                self._offsets.setdefault(group, {})[partition] = commit
            case OffsetForgotten(group=group, partition=partition):
                self._offsets.get(group, {}).pop(partition, None)
            case GroupFormed():
                self._formed[record.group] = record
            case GroupForgotten(group=group):
                self._formed.pop(group, None)
            case _:
                assert_never(record)

    def groups(self, now: Moment) -> dict[str, Group]:
        """All groups that there are. Each with members needs a `Tick` by its earliest deadline."""
        names = sorted(self._formed.keys() | self._offsets.keys())
        groups = (self._group(name, now) for name in names)
        return {group.id: group for group in groups if not group.is_nothing}

    def _group(self, name: str, now: Moment) -> Group:
        offsets: immutables.Map[NamedPartition, Commit] = immutables.Map(self._offsets.get(name, {}))
        record = self._formed.get(name)
        if record is None:
            return Group(id=name, offsets=offsets)
        members = {member.id: _member(member, record, now) for member in record.members}
        return Group(
            id=name,
            state=GroupState.STABLE if members else GroupState.EMPTY,
            generation=record.generation,
            protocol_type=record.protocol_type,
            protocol=record.protocol,
            leader=record.leader if record.leader in members else next(iter(members), None),
            members=members,
            offsets=offsets,
            since_ms=record.since_ms,
            recorded=True,
        )


def _member(record: MemberRecord, formed: GroupFormed, now: Moment) -> Member:
    """A member as its group's record has it: of its protocols only the chosen one is kept there."""
    return Member(
        id=record.id,
        client_id=record.client_id,
        client_host=record.client_host,
        session_timeout_ms=record.session_timeout_ms,
        rebalance_timeout_ms=record.rebalance_timeout_ms,
        protocols=(Protocol(formed.protocol or "", record.subscription),),
        assignment=record.assignment,
        synced=True,
        deadline_ms=now.monotonic_ms + record.session_timeout_ms,
    )
