"""Bugs to plant in the coordinators of groups, one at a time, to show that simulated clusters find them.

Each is the effect of a plausible mistake in one function, and is removed at the end of the `with`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import Any, Final
from unittest.mock import patch
from weakref import WeakKeyDictionary

import immutables

from headrace.base.ids import PartitionIndex, TopicPartition
from headrace.broker.cluster import membership
from headrace.broker.cluster.controller_service import ControllerService
from headrace.broker.cluster.transitions import BrokerTransitions
from headrace.broker.groups.service import OFFSETS_TOPIC, GroupService
from headrace.broker.groups.shard import GroupShard
from headrace.broker.kit.lease import Lease
from headrace.broker.shards.writes import Entry, batch
from headrace.controller.asks.brokers import Heartbeat
from headrace.controller.decision import Refusal
from headrace.coordinators.groups import offsets, rebalance
from headrace.coordinators.groups.consumer import heartbeats, model
from headrace.coordinators.groups.consumer.model import ConsumerGroup, ConsumerMember
from headrace.coordinators.groups.consumer.reconciliation import reconcile
from headrace.coordinators.groups.events import CommitOffsets, GroupFormed, Written
from headrace.coordinators.groups.model import Group
from headrace.coordinators.partitioning import partition_for
from headrace.metadata.values import BrokerImage
from headrace.wire.errors import ErrorCode


@contextmanager
def commit_acknowledged_when_appended() -> Iterator[None]:
    """An appended commit counts, whichever replicas have it."""

    def hasty(self: GroupShard, entries: list[Entry]) -> None:
        if not self.lost:
            self.partition.append(batch(entries, self._clock.now_ms()), needs_isr=True)
            for entry in entries:
                self.send(entry.name, Written(write=entry.write, error=ErrorCode.NONE))

    with patch.object(GroupShard, "_write", hasty):
        yield


@contextmanager
def generation_not_checked() -> Iterator[None]:
    """Any member may commit, whatever generation it believes in."""
    check = offsets._commit_error

    def lenient(group: Group, event: CommitOffsets) -> ErrorCode:
        error = check(group, event)
        return ErrorCode.NONE if error is ErrorCode.ILLEGAL_GENERATION else error

    with patch.object(offsets, "_commit_error", lenient):
        yield


@contextmanager
def any_older_epoch_commits() -> Iterator[None]:
    """A member of a consumer group may commit at any epoch that it has had, whoever reads the partition by now."""
    check = ConsumerGroup.check_commit

    def lenient(
        self: ConsumerGroup, member_id: str, epoch: int, instance_id: str | None, partitions: Iterable[TopicPartition]
    ) -> ErrorCode:
        member = self.members.get(member_id)
        had = member is not None and 0 < epoch < member.epoch
        return ErrorCode.NONE if had else check(self, member_id, epoch, instance_id, partitions)

    with patch.object(ConsumerGroup, "check_commit", lenient):
        yield


@contextmanager
def answers_while_loading() -> Iterator[None]:
    """A new coordinator answers from its state before that is loaded."""
    find = GroupService.shard

    def hasty(self: GroupService, group_id: str) -> GroupShard | ErrorCode:
        found = find(self, group_id)
        shard = self._shards.get(_index(self, group_id))
        return shard if found is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and shard is not None else found

    with patch.object(GroupService, "shard", hasty):
        yield


@contextmanager
def answers_after_its_leadership() -> Iterator[None]:
    """A former coordinator goes on answering from its old state."""
    find, lose = GroupService.shard, GroupShard.lose
    last: WeakKeyDictionary[GroupService, dict[PartitionIndex, GroupShard]] = WeakKeyDictionary()

    def stubborn(self: GroupService, group_id: str) -> GroupShard | ErrorCode:
        found, index = find(self, group_id), _index(self, group_id)
        known = last.setdefault(self, {})
        if isinstance(found, GroupShard):
            known[index] = found
        return known.get(index, found) if found is ErrorCode.NOT_COORDINATOR else found

    def keep(self: GroupShard) -> None:
        groups = dict(self.groups)
        lose(self)
        self.kept = groups

    with patch.object(GroupService, "shard", stubborn), patch.object(GroupShard, "lose", keep):
        yield


def _index(service: GroupService, group_id: str) -> PartitionIndex:
    topic = service._metadata.image.topic(OFFSETS_TOPIC)
    return PartitionIndex(-1 if topic is None else partition_for(group_id, len(topic.partitions)))


@contextmanager
def coordinator_never_in_doubt() -> Iterator[None]:
    """A broker that believes that it is the controller accepts heartbeats, and a coordinator trusts its lease without
    limit."""

    with quorum_not_asked_at_a_heartbeat(), patch.object(Lease, "is_held", True):
        yield


@contextmanager
def quorum_not_asked_at_a_heartbeat() -> Iterator[None]:
    """A broker that believes that it is the controller answers from its own image."""

    async def unasked(self: ControllerService, ask: Heartbeat) -> bool | Refusal:
        known = self._metadata.image.brokers.get(ask.broker_id)
        return known is not None and not known.fenced

    with patch.object(ControllerService, "_standing", unasked):
        yield


@contextmanager
def lease_not_limited_to_the_session() -> Iterator[None]:
    """The lease lasts as long as a follower may be behind."""
    with patch.object(membership, "lease_s", lambda session_s, lag_max_s: lag_max_s):
        yield


@contextmanager
def fenced_though_heard() -> Iterator[None]:
    """A broker that was silent when the controller looked is fenced, even if it is heard from before its turn."""
    fence = BrokerTransitions.fence

    async def all_the_same(self: BrokerTransitions, known: BrokerImage, **options: Any) -> Refusal | None:
        return await fence(self, known)

    with patch.object(BrokerTransitions, "fence", all_the_same):
        yield


@contextmanager
def generation_not_kept() -> Iterator[None]:
    """The log has the members of a group without their generation."""
    formed = rebalance.formed

    def forgetful(group: Group, assignments: Mapping[str, bytes]) -> GroupFormed:
        return replace(formed(group, assignments), generation=0)

    with patch.object(rebalance, "formed", forgetful):
        yield


@contextmanager
def given_before_released() -> Iterator[None]:
    """A consumer group's partition goes to its next owner as soon as it is assigned."""

    def at_once(member: ConsumerMember, **options: Any) -> ConsumerMember:
        return reconcile(member, **{**options, "owners": {}})

    def pass_on(owners: immutables.MapMutation[TopicPartition, str], _: object, after: ConsumerMember) -> None:
        owners.update(dict.fromkeys(after.assigned | after.revoking, after.id))

    with ExitStack() as patches:
        patches.enter_context(patch.object(heartbeats, "reconcile", at_once))
        for module in (heartbeats, model):
            patches.enter_context(patch.object(module, "pass_on", pass_on))
        yield


@contextmanager
def end_of_a_session_bumps_no_epoch() -> Iterator[None]:
    """A silent member is removed, and its partitions go to nobody until something else happens."""
    due = heartbeats.on_due

    def quiet(group: ConsumerGroup, now_ms: int) -> ConsumerGroup:
        return replace(due(group, now_ms), epoch=group.epoch)

    with patch.object(heartbeats, "on_due", quiet):
        yield


GROUP_PLANTS: Final[dict[str, Callable[[], AbstractContextManager[None]]]] = {
    "commit-acknowledged-when-appended": commit_acknowledged_when_appended,
    "generation-not-checked": generation_not_checked,
    "any-older-epoch-commits": any_older_epoch_commits,
    "answers-while-loading": answers_while_loading,
    "answers-after-its-leadership": answers_after_its_leadership,
    "coordinator-never-in-doubt": coordinator_never_in_doubt,
    "quorum-not-asked-at-a-heartbeat": quorum_not_asked_at_a_heartbeat,
    "lease-not-limited-to-the-session": lease_not_limited_to_the_session,
    "generation-not-kept": generation_not_kept,
    "given-before-released": given_before_released,
    "end-of-a-session-bumps-no-epoch": end_of_a_session_bumps_no_epoch,
}
"""Found by the groups' part of a seed (`groups.run.run_groups`)."""
