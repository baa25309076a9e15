"""A group that commits ever larger positions, and reads them back.

Over every crash, the broker must return a position that was acknowledged, or a later one that was requested.
"""

from __future__ import annotations

from typing import Any, Final

from headrace.sim.client import Client, Lost
from headrace.sim.history import PartitionKey
from headrace.sim.world import BROKER, World
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode, error_of
from headrace.wire.messages.find_coordinator import FindCoordinatorRequest
from headrace.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from headrace.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)

GROUP: Final = "readers"
THINK_SECONDS_MAX: Final = 0.1
BY_NAME_VERSION: Final = 8
GONE: Final = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)


class Committer:
    """The committer, as the module says. It makes one request at a time."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._client = Client("committer", BROKER)
        self._found = False

    async def run(self) -> None:
        """Commit until the world winds down."""
        world = self._world
        while not world.winding_down:
            await world.think(THINK_SECONDS_MAX)
            if not world.live_partitions:
                continue
            partition = world.random.choice(list(world.live_partitions))
            try:
                if not self._found:
                    await find_coordinator(self._client)
                    self._found = True
                elif world.random.random() < 0.7:
                    await self._commit(partition)
                else:
                    await check_committed(world, self._client, partition)
            except Lost:
                self._found = False
        self._client.close()

    async def _commit(self, partition: PartitionKey) -> None:
        world, history = self._world, self._world.history
        position = history.positions_asked.get(partition, 0) + world.random.randrange(1, 10)
        history.positions_asked[partition] = position
        asked = OffsetCommitRequestPartition(partition_index=partition.number, committed_offset=position)
        topic = OffsetCommitRequestTopic(name=world.live_partitions[partition], partitions=(asked,))
        request = OffsetCommitRequest(group_id=GROUP, topics=(topic,))
        answer = await self._client.call(ApiKey.OFFSET_COMMIT, BY_NAME_VERSION, request)
        error = error_of(answer.topics[0].partitions[0].error_code)
        if error is ErrorCode.NONE:
            history.positions_acked[partition] = position
        elif partition in world.live_partitions:
            self._check_refusal(error)

    def _check_refusal(self, error: ErrorCode) -> None:
        self._found = False
        if not self._world.in_trouble and (not error.retriable or error in GONE):
            self._world.history.problem("refused", f"a commit of group {GROUP} was told {error.name}")


async def find_coordinator(client: Client) -> None:
    """Look up the coordinator, as clients do first; this creates the offsets topic. Raises Lost."""
    await client.call(ApiKey.FIND_COORDINATOR, 4, FindCoordinatorRequest(key_type=0, coordinator_keys=(GROUP,)))


async def check_committed(world: World, client: Client, partition: PartitionKey) -> bool:
    """Compare the committed position with the acknowledged and requested ones; False where none is returned now."""
    history = world.history
    low = history.positions_acked.get(partition, -1)
    asked = OffsetFetchRequestTopics(name=world.live_partitions[partition], partition_indexes=(partition.number,))
    group = OffsetFetchRequestGroup(group_id=GROUP, topics=(asked,))
    answer: Any = await client.call(ApiKey.OFFSET_FETCH, BY_NAME_VERSION, OffsetFetchRequest(groups=(group,)))
    [answered] = answer.groups
    if answered.error_code or partition not in world.live_partitions:
        return not answered.error_code
    [[found]] = [topic.partitions for topic in answered.topics]
    if not found.error_code and not low <= found.committed_offset <= history.positions_asked.get(partition, -1):
        text = f"{partition} is committed at {found.committed_offset}; {low} was acknowledged"
        history.problem("lost-commit", text)
    return not found.error_code
