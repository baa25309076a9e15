"""Consumer groups rebuilt from the last record under each of their keys, in any order of these.

Promises: the result equals the group that wrote the records, except that all timers restart. Members have a full
session and a full rebalance timeout to give up partitions. Records without a group (in a log that ends between
tombstones) are left out. If a partition had two owners, which no log of ours has, the first by id would keep it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import immutables

from headrace.coordinators.groups.configs import ConsumerConfig
from headrace.coordinators.groups.consumer.changes import (
    ConsumerEpoch,
    ConsumerJoined,
    ConsumerRecord,
    Current,
    Forgotten,
    PatternResolved,
    Target,
    TargetEpoch,
)
from headrace.coordinators.groups.consumer.heartbeats import session_ms
from headrace.coordinators.groups.consumer.model import (
    NO_PARTITIONS,
    ConsumerGroup,
    ConsumerMember,
    MemberState,
    Partitions,
)


@dataclass(slots=True)
class ConsumerReplay:
    """The records of one group."""

    epoch: ConsumerEpoch | None = None
    target_epoch: int = 0
    members: dict[str, ConsumerMember] = field(default_factory=dict)
    targets: dict[str, Partitions] = field(default_factory=dict)
    currents: dict[str, ConsumerMember] = field(default_factory=dict)
    patterns: dict[str, frozenset[str]] = field(default_factory=dict)

    def apply(self, record: ConsumerRecord) -> None:
        match record:
            case ConsumerEpoch():
                self.epoch = record
            case ConsumerJoined(member=member):
                self.members[member.id] = member
            case PatternResolved(pattern=pattern, topics=topics):
                self.patterns[pattern] = topics
            case TargetEpoch(epoch=epoch):
                self.target_epoch = epoch
            case Target(member_id=member_id, partitions=partitions):
                self.targets[member_id] = partitions
            case Current(member=member):
                self.currents[member.id] = member
            case Forgotten():
                raise AssertionError("only the last word on a key is read")

    def group(self, now_ms: int, config: ConsumerConfig, grace_ms: int = 0) -> ConsumerGroup | None:
        """The group; None where there is none. `grace_ms`: time for which another coordinator may have prolonged a
        session."""
        if self.epoch is None:
            return None
        from_ms = now_ms + grace_ms
        group = ConsumerGroup(
            epoch=self.epoch.epoch,
            metadata_hash=self.epoch.metadata_hash,
            target_epoch=self.target_epoch,
            targets=immutables.Map(
                (member_id, share) for member_id, share in self.targets.items() if member_id in self.members
            ),
            patterns=immutables.Map(self.patterns),
            sessions=immutables.Map(
                (member_id, from_ms + session_ms(member, config)) for member_id, member in self.members.items()
            ),
        )
        for member_id, wants in sorted(self.members.items()):
            group = group.put(self._member(member_id, wants, group))
        return replace(
            group,
            revocations=immutables.Map(
                (member.id, from_ms + member.rebalance_timeout_ms)
                for member in group.members.values()
                if member.state is MemberState.UNREVOKED_PARTITIONS and member.classic is None
            ),
        )

    def _member(self, member_id: str, wants: ConsumerMember, group: ConsumerGroup) -> ConsumerMember:
        follows = self.currents.get(member_id)
        if follows is None:
            return wants
        revoking = frozenset(each for each in follows.revoking if each not in group.owners)
        unrevoked = follows.state is MemberState.UNREVOKED_PARTITIONS
        assigned = frozenset(each for each in follows.assigned if each not in group.owners) - revoking
        revoking = revoking if unrevoked else NO_PARTITIONS
        return replace(
            wants,
            state=MemberState.UNRELEASED_PARTITIONS if unrevoked and not revoking else follows.state,
            epoch=follows.epoch,
            previous_epoch=follows.previous_epoch,
            assigned=assigned,
            revoking=revoking,
            since=immutables.Map((each, follows.since[each]) for each in assigned | revoking),
        )
