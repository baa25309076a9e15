"""The administrator of the workload: it creates topics, grows them, deletes them and creates them again.

Every request is repeated until its outcome is known, because a crash may lose the answer to a completed request.
"""

from __future__ import annotations

import uuid
from typing import Any, Final

from headrace.sim.client import Client, Lost
from headrace.sim.history import TopicStory
from headrace.sim.world import BROKER, World
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode, error_of
from headrace.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from headrace.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from headrace.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from headrace.wire.messages.metadata import MetadataRequest, MetadataRequestTopic

RETRY_SECONDS_MAX: Final = 0.1
TOPICS_MAX: Final = 4
PARTITIONS_MAX: Final = 3


class Admin:
    """The administrator, as the module says. It makes one request at a time."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._client = Client("admin", BROKER)
        self._count = 0

    async def run(self) -> None:
        """Work until the world winds down."""
        world = self._world
        while not world.winding_down:
            try:
                await self._do_something()
            except Lost:
                await world.think(RETRY_SECONDS_MAX)
            await world.think(0.3 if world.live_partitions else 0.01)
        self._client.close()

    async def _do_something(self) -> None:
        live = {key.topic_id for key in self._world.live_partitions}
        chance = self._world.random.random()
        if len(live) < 2 or (len(live) < TOPICS_MAX and chance < 0.4):
            self._count += 1
            await self._create(f"topic-{self._count}")
        elif chance < 0.55:
            await self._grow(self._world.random.choice(sorted(live)))
        elif chance < 0.75 and len(live) > 2:
            topic_id = self._world.random.choice(sorted(live))
            await self._delete(topic_id)
            if self._world.versions.produces_by_id and self._world.versions.fetches_by_id:
                await self._create(self._world.history.topics[topic_id].name)

    async def _insist(self, key: ApiKey, version: int, message: Any) -> tuple[Any, bool]:
        """The answer, and whether an earlier try was in doubt."""
        in_doubt = False
        while True:
            try:
                return await self._client.call(key, version, message), in_doubt
            except Lost:
                in_doubt = True
                await self._world.think(RETRY_SECONDS_MAX)

    async def _create(self, name: str) -> None:
        world = self._world
        partitions = world.random.randrange(1, PARTITIONS_MAX + 1)
        configs = [CreatableTopicConfig("segment.bytes", str(world.random.choice((1024, 4096, 20_000, 1 << 20))))]
        if world.random.random() < 0.3:
            configs.append(CreatableTopicConfig("segment.ms", str(world.random.randrange(50, 1000))))
        topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, configs=tuple(configs))
        world.history.names_asked.add(name)
        answer, in_doubt = await self._insist(ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest((topic,), 5000))
        [result] = answer.topics
        topic_id = result.topic_id
        if in_doubt and result.error_code == ErrorCode.TOPIC_ALREADY_EXISTS:
            topic_id = await self._id_of(name)
            if topic_id in world.history.topics:  # an older topic, whose deletion the failing disk refused
                return None
        elif result.error_code != ErrorCode.NONE:
            return self._check_refusal("create", name, result)
        world.history.topics[topic_id] = TopicStory(name, partitions, partitions)
        world.open_topic(name, topic_id, partitions)
        world.tell(f"topic {name} created, {partitions} partitions, id {topic_id}")
        return None

    async def _id_of(self, name: str) -> uuid.UUID:
        asked = MetadataRequest((MetadataRequestTopic(name=name),), allow_auto_topic_creation=False)
        answer, _ = await self._insist(ApiKey.METADATA, 12, asked)
        found: uuid.UUID = answer.topics[0].topic_id
        return found

    async def _grow(self, topic_id: uuid.UUID) -> None:
        story = self._world.history.topics[topic_id]
        count = story.partitions + 1
        if count > PARTITIONS_MAX + 1:
            return None
        asked_before, story.partitions_asked = story.partitions_asked, count
        request = CreatePartitionsRequest((CreatePartitionsTopic(story.name, count, None),), 5000, False)
        answer, in_doubt = await self._insist(ApiKey.CREATE_PARTITIONS, 3, request)
        [result] = answer.results
        in_doubt = in_doubt or asked_before == count
        if not (in_doubt and result.error_code == ErrorCode.INVALID_PARTITIONS) and result.error_code:
            return self._check_refusal("grow", story.name, result)
        story.partitions = count
        self._world.open_topic(story.name, topic_id, count)
        self._world.tell(f"topic {story.name} has {count} partitions")
        return None

    async def _delete(self, topic_id: uuid.UUID) -> None:
        story = self._world.history.topics[topic_id]
        story.delete_asked = True
        self._world.close_topic(topic_id)
        request = DeleteTopicsRequest(topics=(DeleteTopicState(topic_id=topic_id),), timeout_ms=5000)
        answer, in_doubt = await self._insist(ApiKey.DELETE_TOPICS, 6, request)
        [result] = answer.responses
        if not (in_doubt and result.error_code == ErrorCode.UNKNOWN_TOPIC_ID) and result.error_code:
            return self._check_refusal("delete", story.name, result)
        story.deleted = True
        self._world.tell(f"topic {story.name} deleted")
        return None

    def _check_refusal(self, what: str, name: str, result: Any) -> None:
        error = error_of(result.error_code)
        if self._world.in_trouble:
            return
        if not error.retriable or error in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID):
            text = f"{what} {name} was told {error.name}: {result.error_message}"
            self._world.history.problem("refused", text)
