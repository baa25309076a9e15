"""A consumer group as an administrator sees it: who reads what, and how far each partition is behind."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from headrace.base.errors import HeadraceError, UsageError
from headrace.net.client.cluster import Cluster
from headrace.net.client.groups import INACTIVE, GroupMember, Groups, GroupView, TopicPartition
from headrace.net.client.offsets import LATEST, list_offsets
from headrace.operations.resetting import Target


class Share(NamedTuple):
    """One partition that a group has committed something of, or that is assigned to a member."""

    topic: str
    partition: int
    committed: int | None
    end: int | None
    """None: it has no leader now."""
    owner: GroupMember | None

    @property
    def lag(self) -> int | None:
        """None: nothing is committed, or the end is not known."""
        return None if self.committed is None or self.end is None else max(0, self.end - self.committed)


class Described(NamedTuple):
    """A group with its partitions."""

    view: GroupView
    shares: list[Share]

    @property
    def lag(self) -> int:
        return sum(share.lag or 0 for share in self.shares)


async def described(cluster: Cluster, name: str) -> Described:
    """A group. Raises HeadraceError where there is none of this name, ClientError."""
    groups = Groups(cluster)
    view = await groups.describe(name)
    committed = await groups.committed(name)
    if not view.is_known and not committed:
        raise HeadraceError(unknown(name))
    owners = {one: member for member in view.members for one in member.partitions}
    places = committed.keys() | owners.keys()
    ends = await _ends(cluster, places)
    return Described(
        view,
        [Share(one.topic, one.partition, committed.get(one), ends.get(one), owners.get(one)) for one in sorted(places)],
    )


async def _ends(cluster: Cluster, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
    """The end of each partition that has a leader now."""
    ends = {}
    for topic in sorted({one.topic for one in partitions}):
        view = (await cluster.metadata((topic,))).topics[topic]
        online = {part.index for part in view.partitions if part.leader >= 0}
        wanted = [one.partition for one in partitions if one.topic == topic and one.partition in online]
        for index, found in (await list_offsets(cluster, topic, wanted, LATEST)).items():
            ends[TopicPartition(topic, index)] = int(found.offset)
    return ends


async def chosen(
    cluster: Cluster,
    topics: Mapping[str, tuple[int, ...] | None],
    committed: Mapping[TopicPartition, int],
    target: Target,
) -> list[TopicPartition]:
    """The partitions to reset. `topics`: partitions by topic, None for all; without any, all that it has committed.
    Raises UsageError where one does not exist.
    """
    named: list[TopicPartition] = list(committed if target.file is None and not topics else target.file or ())
    known = {
        name: len((await cluster.existing_topic(name)).partitions) for name in {*topics, *(one[0] for one in named)}
    }
    for name, indexes in topics.items():
        named += [TopicPartition(name, index) for index in (range(known[name]) if indexes is None else indexes)]
    for one in named:
        if not 0 <= one.partition < known[one.topic]:
            raise UsageError(f"Topic '{one.topic}' has no partition {one.partition}, only {known[one.topic]} of them.")
    return sorted(set(named))


def check_inactive(view: GroupView) -> None:
    """Raises HeadraceError where the group has members: its offsets are theirs."""
    if view.state not in INACTIVE:
        raise HeadraceError(
            f"Group '{view.name}' is active ({view.state}): stop its members ({len(view.members)}), then ask again."
        )


def unknown(name: str) -> str:
    """That there is no such group."""
    return f"There is no group '{name}'; see 'headrace group list'."
