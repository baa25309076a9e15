"""Consumer groups over the wire: their members, their committed offsets, and an administrator's changes of these.

Promises: each request goes to the group's own coordinator, which is looked up again before each try. A refusal is a
RefusedError that names the group. Positions are absolute, so committing them twice does no harm.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar

from headrace.base.ids import BrokerId
from headrace.net.client.cluster import Cluster
from headrace.net.client.connection import Connection
from headrace.net.client.errors import RefusedError, check
from headrace.wire.apis import ApiKey
from headrace.wire.codec import DecodeError
from headrace.wire.data import CONSUMER_ASSIGNMENT
from headrace.wire.errors import ErrorCode

T = TypeVar("T")

GROUP_KEY: Final = 0
FIND_VERSION: Final = 4
"""Version of FindCoordinator with many keys at once, supported by all brokers since Kafka 3.0."""
COMMIT_VERSION: Final = 8
FETCH_VERSION: Final = 8
"""This version names topics by name."""
DEAD: Final = "Dead"
CONSUMER: Final = "consumer"
INACTIVE: Final = ("Empty", DEAD)
"""States of a group that has no members, or that the broker does not know."""


class TopicPartition(NamedTuple):
    topic: str
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedGroup:
    name: str
    state: str
    kind: str
    """`classic` or `consumer`."""
    protocol_type: str
    coordinator: BrokerId


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...]
    """Partitions assigned to the member; empty where its assignment is not of the consumer protocol."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    name: str
    state: str
    protocol_type: str
    protocol: str
    coordinator: BrokerId
    members: tuple[GroupMember, ...]

    @property
    def is_known(self) -> bool:
        return self.state != DEAD


class Groups:
    """The groups of one cluster. Keeps no state of its own."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def list_groups(self) -> tuple[ListedGroup, ...]:
        """All groups of all brokers, by name."""
        from headrace.wire.messages import list_groups as wire

        async def ask_one(broker: BrokerId) -> list[ListedGroup]:
            connection = await self._cluster.broker_connection(broker)
            response = await self._request(connection, ApiKey.LIST_GROUPS, wire.ListGroupsRequest())
            check(response.error_code, f"Broker {broker}")
            return [
                ListedGroup(
                    name=one.group_id,
                    state=one.group_state,
                    kind=one.group_type.lower(),
                    protocol_type=one.protocol_type,
                    coordinator=broker,
                )
                for one in response.groups
            ]

        async def ask() -> tuple[ListedGroup, ...]:
            view = await self._cluster.metadata(())
            answers = await asyncio.gather(*(ask_one(broker) for broker in view.brokers))
            return tuple(sorted((one for answer in answers for one in answer), key=lambda one: one.name))

        return await self._cluster.retried(ask)

    async def describe(self, group: str) -> GroupView:
        """One group. Its state is `Dead` where no broker knows it."""
        from headrace.wire.messages import describe_groups as wire

        async def ask(connection: Connection, coordinator: BrokerId) -> GroupView:
            request = wire.DescribeGroupsRequest(groups=(group,))
            (found,) = (await self._request(connection, ApiKey.DESCRIBE_GROUPS, request)).groups
            if (
                found.error_code == ErrorCode.GROUP_ID_NOT_FOUND
                and ApiKey.CONSUMER_GROUP_DESCRIBE in connection.versions
            ):
                return await self._describe_consumers(group, connection, coordinator)
            if found.error_code != ErrorCode.GROUP_ID_NOT_FOUND:
                check(found.error_code, f"Group '{group}'")
            return GroupView(
                name=group,
                state=found.group_state or DEAD,
                protocol_type=found.protocol_type,
                protocol=found.protocol_data,
                coordinator=coordinator,
                members=tuple(
                    GroupMember(
                        id=member.member_id,
                        instance_id=member.group_instance_id,
                        client_id=member.client_id,
                        host=member.client_host.lstrip("/"),
                        partitions=_assigned(bytes(member.member_assignment)),
                    )
                    for member in found.members
                ),
            )

        return await self._at_coordinator(group, ask)

    async def _describe_consumers(self, group: str, connection: Connection, coordinator: BrokerId) -> GroupView:
        """A group of the new protocol (KIP-848). Its `protocol` is the assignor's name."""
        from headrace.wire.messages import consumer_group_describe as wire

        request = wire.ConsumerGroupDescribeRequest(group_ids=(group,))
        (found,) = (await self._request(connection, ApiKey.CONSUMER_GROUP_DESCRIBE, request)).groups
        if found.error_code != ErrorCode.GROUP_ID_NOT_FOUND:
            check(found.error_code, f"Group '{group}'")
        return GroupView(
            name=group,
            state=found.group_state or DEAD,
            protocol_type=CONSUMER if found.group_state else "",
            protocol=found.assignor_name,
            coordinator=coordinator,
            members=tuple(
                GroupMember(
                    id=member.member_id,
                    instance_id=member.instance_id,
                    client_id=member.client_id,
                    host=member.client_host.lstrip("/"),
                    partitions=tuple(
                        TopicPartition(topic.topic_name, index)
                        for topic in member.assignment.topic_partitions
                        for index in sorted(topic.partitions)
                    ),
                )
                for member in found.members
            ),
        )

    async def committed(self, group: str) -> dict[TopicPartition, int]:
        """The committed offset of every partition that the group has committed."""
        from headrace.wire.messages import offset_fetch as wire

        async def ask(connection: Connection, _: BrokerId) -> dict[TopicPartition, int]:
            asked = wire.OffsetFetchRequestGroup(group_id=group, topics=None)
            request = wire.OffsetFetchRequest(groups=(asked,))
            response = await self._request(connection, ApiKey.OFFSET_FETCH, request, FETCH_VERSION)
            (found,) = response.groups
            check(found.error_code, f"Group '{group}'")
            offsets = {}
            for topic in found.topics:
                for part in topic.partitions:
                    check(part.error_code, f"Group '{group}', partition {part.partition_index} of '{topic.name}'")
                    if part.committed_offset >= 0:
                        offsets[TopicPartition(topic.name, part.partition_index)] = part.committed_offset
            return offsets

        return await self._at_coordinator(group, ask)

    async def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Set positions of a group that has no members. Raises RefusedError (UNKNOWN_MEMBER_ID where it has some)."""
        from headrace.wire.messages import offset_commit as wire

        topics = tuple(
            wire.OffsetCommitRequestTopic(
                name=topic,
                partitions=tuple(
                    wire.OffsetCommitRequestPartition(partition_index=one.partition, committed_offset=offsets[one])
                    for one in ones
                ),
            )
            for topic, ones in _by_topic(offsets).items()
        )
        request = wire.OffsetCommitRequest(group_id=group, topics=topics)

        async def ask(connection: Connection, _: BrokerId) -> None:
            response = await self._request(connection, ApiKey.OFFSET_COMMIT, request, COMMIT_VERSION)
            for topic in response.topics:
                for part in topic.partitions:
                    check(part.error_code, f"Group '{group}', partition {part.partition_index} of '{topic.name}'")

        if offsets:
            await self._at_coordinator(group, ask)

    async def delete(self, group: str) -> None:
        """Delete a group that has no members, with all its committed offsets. Raises RefusedError (NON_EMPTY_GROUP,
        GROUP_ID_NOT_FOUND).
        """
        from headrace.wire.messages import delete_groups as wire

        async def ask(connection: Connection, _: BrokerId) -> bool:
            request = wire.DeleteGroupsRequest(groups_names=(group,))
            (result,) = (await self._request(connection, ApiKey.DELETE_GROUPS, request)).results
            check(result.error_code, f"Group '{group}'")
            return True

        async def seen() -> bool | None:
            return None if (await self.describe(group)).is_known else True

        await self._cluster.changed(
            lambda: self._once(group, ask),
            seen=seen,
            subject=f"Group '{group}'",
            look=f"headrace group describe {group}",
        )

    # the coordinator

    async def _at_coordinator(self, group: str, ask: Callable[[Connection, BrokerId], Awaitable[T]]) -> T:
        """Ask the coordinator until it succeeds, within the limits."""
        return await self._cluster.retried(lambda: self._once(group, ask))

    async def _once(self, group: str, ask: Callable[[Connection, BrokerId], Awaitable[T]]) -> T:
        from headrace.wire.messages import find_coordinator as wire

        request = wire.FindCoordinatorRequest(key_type=GROUP_KEY, coordinator_keys=(group,))
        response = await self._cluster.ask_any(ApiKey.FIND_COORDINATOR, request, version=FIND_VERSION)
        (found,) = response.coordinators
        check(found.error_code, f"Group '{group}'", found.error_message)
        broker = BrokerId(found.node_id)
        view = await self._cluster.metadata(())
        if broker not in view.brokers:
            raise RefusedError(ErrorCode.COORDINATOR_NOT_AVAILABLE, f"Group '{group}'")
        return await ask(await self._cluster.broker_connection(broker), broker)

    async def _request(self, connection: Connection, key: ApiKey, message: object, version: int | None = None) -> Any:
        return await connection.request(key, message, version=version, timeout_ms=self._cluster.request_timeout_ms)


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[TopicPartition]]:
    found: dict[str, list[TopicPartition]] = {}
    for one in sorted(partitions):
        found.setdefault(one.topic, []).append(one)
    return found


def _assigned(assignment: bytes) -> tuple[TopicPartition, ...]:
    try:
        _, found = CONSUMER_ASSIGNMENT.decode(assignment)
    except DecodeError:
        return ()
    return tuple(
        TopicPartition(topic.topic, index) for topic in found.assigned_partitions for index in sorted(topic.partitions)
    )
