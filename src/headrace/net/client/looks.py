"""Snapshots of a whole cluster, and their comparison: rates, lagging replicas, progress of groups, and silent brokers.

Promises: a look asks each live leader for the ends of its partitions, LOOK_PARTITIONS_PER_ASK_MAX at once. It asks each
broker for its groups and their committed offsets. It waits for no answer longer than LOOK_MS_MAX. A broker that does
not answer is part of the result, not a failure. Raises ClientError where no broker answers at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final, NamedTuple, TypeAlias

from headrace.base.ids import NO_LEADER, BrokerId
from headrace.base.limits import LOOK_GROUPS_MAX, LOOK_MS_MAX, LOOK_PARTITIONS_PER_ASK_MAX
from headrace.net.client.cluster import Cluster
from headrace.net.client.errors import ClientError
from headrace.net.client.members import BrokerView, Members
from headrace.net.client.offsets import CONSUMER_REPLICA_ID, LATEST
from headrace.net.client.view import ClusterView, PartitionView
from headrace.wire.apis import ApiKey
from headrace.wire.messages import list_groups, offset_fetch
from headrace.wire.messages import list_offsets as wire

Place: TypeAlias = tuple[str, int]
"""A topic and a partition."""
OFFSET_FETCH_VERSION: Final = 8
"""Version with many groups at once, and topics by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLook:
    """A group at one moment."""

    state: str
    kind: str
    committed: Mapping[Place, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A cluster at one moment. `at` is in monotonic seconds."""

    at: float
    view: ClusterView
    brokers: tuple[BrokerView, ...]
    ends: Mapping[Place, int]
    """High watermarks of the partitions whose leaders answered."""
    groups: Mapping[str, GroupLook] = field(default_factory=dict)
    """Groups by name, at most LOOK_GROUPS_MAX of each coordinator that answered."""

    def partitions(self) -> dict[Place, PartitionView]:
        return {(topic.name, part.index): part for topic in self.view.topics.values() for part in topic.partitions}


async def look(cluster: Cluster, *, at: float) -> Look:
    """Take one look. Raises ClientError where no broker answers."""
    members = Members(cluster)
    view = await members.metadata()
    brokers = await members.brokers()
    by_leader: dict[BrokerId, dict[str, list[PartitionView]]] = {}
    for topic in view.topics.values():
        for part in topic.partitions:
            if part.leader != NO_LEADER:
                by_leader.setdefault(part.leader, {}).setdefault(topic.name, []).append(part)
    groups = asyncio.gather(*(_groups(cluster, broker.id) for broker in brokers if not broker.fenced))
    answers = await asyncio.gather(*(_ends(cluster, leader, topics) for leader, topics in by_leader.items()))
    return Look(
        at=at,
        view=view,
        brokers=brokers,
        ends={place: end for answer in answers for place, end in answer},
        groups={name: group for answer in await groups for name, group in answer},
    )


async def _groups(cluster: Cluster, coordinator: int) -> list[tuple[str, GroupLook]]:
    """The groups that a broker coordinates, and their committed offsets."""
    try:
        async with asyncio.timeout(LOOK_MS_MAX / 1000):
            connection = await cluster.broker_connection(BrokerId(coordinator))
            listing = list_groups.ListGroupsRequest()
            listed = (await connection.request(ApiKey.LIST_GROUPS, listing, timeout_ms=LOOK_MS_MAX)).groups
            listed = sorted(listed, key=lambda one: str(one.group_id))[:LOOK_GROUPS_MAX]
            if not listed:
                return []
            asked = tuple(offset_fetch.OffsetFetchRequestGroup(group_id=one.group_id, topics=None) for one in listed)
            fetch = offset_fetch.OffsetFetchRequest(groups=asked)
            response = await connection.request(
                ApiKey.OFFSET_FETCH, fetch, version=OFFSET_FETCH_VERSION, timeout_ms=LOOK_MS_MAX
            )
    except (ClientError, TimeoutError):
        return []
    committed = {group.group_id: group for group in response.groups if not group.error_code}
    return [
        (
            one.group_id,
            GroupLook(
                state=one.group_state,
                kind=one.group_type.lower(),
                committed={
                    (topic.name, part.partition_index): part.committed_offset
                    for topic in committed[one.group_id].topics
                    for part in topic.partitions
                    if part.committed_offset >= 0 and not part.error_code
                },
            ),
        )
        for one in listed
        if one.group_id in committed
    ]


async def _ends(
    cluster: Cluster, leader: BrokerId, topics: Mapping[str, list[PartitionView]]
) -> list[tuple[Place, int]]:
    """The ends that the leader tells in time. It is asked for some of them at once: a long question holds its event
    loop.
    """
    wanted = [(name, part) for name, parts in topics.items() for part in parts]
    found: list[tuple[Place, int]] = []
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(LOOK_MS_MAX / 1000) as patience:
            connection = await cluster.broker_connection(leader)
            for first in range(0, len(wanted), LOOK_PARTITIONS_PER_ASK_MAX):
                request = _question(wanted[first : first + LOOK_PARTITIONS_PER_ASK_MAX])
                response = await connection.request(ApiKey.LIST_OFFSETS, request, timeout_ms=LOOK_MS_MAX)
                patience.reschedule(loop.time() + LOOK_MS_MAX / 1000)
                found += [
                    ((topic.name, part.partition_index), part.offset)
                    for topic in response.topics
                    for part in topic.partitions
                    if not part.error_code
                ]
    except (ClientError, TimeoutError):
        return found
    return found


def _question(wanted: Sequence[tuple[str, PartitionView]]) -> wire.ListOffsetsRequest:
    """For the ends of these partitions, which are in the order of their topics."""
    return wire.ListOffsetsRequest(
        replica_id=CONSUMER_REPLICA_ID,
        topics=tuple(
            wire.ListOffsetsTopic(
                name=name,
                partitions=tuple(
                    wire.ListOffsetsPartition(
                        partition_index=part.index, current_leader_epoch=part.leader_epoch, timestamp=LATEST
                    )
                    for _, part in parts
                ),
            )
            for name, parts in groupby(wanted, key=lambda each: each[0])
        ),
    )


class Progress(NamedTuple):
    """The progress of a group."""

    lag: int
    """Uncommitted records in those partitions that the group has committed something of, and whose leaders answered."""
    rate: float
    """Records committed per second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """The comparison of two looks. Rates are in records per second."""

    seconds: float
    topics: Mapping[str, float]
    brokers: Mapping[int, float]
    """By the present leader."""
    behind: Mapping[Place, tuple[int, ...]]
    """Under-replicated partitions, with the replicas that are out of sync."""
    offline: tuple[Place, ...]
    """Partitions without a leader."""
    silent: tuple[Place, ...]
    """Partitions whose leader did not answer."""
    groups: Mapping[str, Progress]


def traffic(before: Look, now: Look) -> Traffic:
    """Compare two looks. New partitions and groups count from the look that first has them."""
    seconds = max(now.at - before.at, 1e-9)
    topics = dict.fromkeys(now.view.topics, 0.0)
    brokers = dict.fromkeys((broker.id for broker in now.brokers), 0.0)
    partitions = now.partitions()
    for (topic, index), end in now.ends.items():
        rate = max(0, end - before.ends.get((topic, index), end)) / seconds
        topics[topic] += rate
        leader = int(partitions[topic, index].leader)
        brokers[leader] = brokers.get(leader, 0.0) + rate
    behind = {
        place: tuple(int(replica) for replica in part.replicas if replica not in part.isr)
        for place, part in partitions.items()
    }
    led = {place for place, part in partitions.items() if part.leader != NO_LEADER}
    return Traffic(
        seconds=seconds,
        topics=topics,
        brokers=brokers,
        behind={place: missing for place, missing in behind.items() if missing},
        offline=tuple(sorted(partitions.keys() - led)),
        silent=tuple(sorted(led - now.ends.keys())),
        groups={name: _progress(before, now, name, seconds) for name in sorted(now.groups)},
    )


def _progress(before: Look, now: Look, name: str, seconds: float) -> Progress:
    committed, earlier = now.groups[name].committed, before.groups.get(name)
    lag = sum(max(0, now.ends[place] - offset) for place, offset in committed.items() if place in now.ends)
    gone = 0
    if earlier is not None:
        gone = sum(max(0, offset - earlier.committed.get(place, offset)) for place, offset in committed.items())
    return Progress(lag, gone / seconds)


class Pauses:
    """For how long partitions have not answered, in seconds: the time that their producers and consumers have waited so
    far.
    """

    def __init__(self) -> None:
        self._since: dict[Place, float] = {}
        self.longest = 0.0
        """The longest pause seen."""

    def note(self, before: Look | None, now: Look) -> dict[Place, float]:
        """The pauses under way, the longest first. A pause is counted from the last look that had an answer."""
        waiting = now.partitions().keys() - now.ends.keys()
        begun = now.at if before is None else before.at
        ended = {place: since for place, since in self._since.items() if place not in waiting}
        self._since = {place: self._since.get(place, begun) for place in waiting}
        paused = {place: now.at - since for place, since in self._since.items()}
        for lasted in (*paused.values(), *(now.at - since for since in ended.values())):
            self.longest = max(self.longest, lasted)
        return dict(sorted(paused.items(), key=lambda item: (-item[1], item[0])))
