"""The workload on whole brokers: clients of Kafka's protocol that create, change, delete and read a few topics.

Each asks through any broker and gets an answer, or none. Nothing is retried, so each request is one operation of the
history. A topic's tag and its changed setting are two of its configs, with numbers as values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headrace.sim.client import Client, Lost
from headrace.sim.cluster.catalog import (
    Action,
    Answer,
    Configure,
    Create,
    Delete,
    Describe,
    Done,
    Exists,
    Found,
    List,
    Missing,
    Names,
)
from headrace.sim.cluster.host import Host
from headrace.sim.cluster.world import PORT, TIMEOUT_SECONDS, Asked, ClusterWorld, address_of
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode, error_of
from headrace.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from headrace.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from headrace.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from headrace.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from headrace.wire.messages.metadata import MetadataRequest

NAMES: Final = tuple("abcdefgh")
TAG: Final = "retention.ms"
SETTING: Final = "retention.bytes"
TOPIC: Final = 2
"""The protocol's number for this resource type."""
SET: Final = 0
TIMEOUT_MS: Final = int(TIMEOUT_SECONDS * 1000)
THINK_SECONDS_MAX: Final = 0.4
PAUSE_AFTER_SILENCE_SECONDS_MAX: Final = 0.5
CERTAINLY_NOT: Final = (ErrorCode.INVALID_REPLICATION_FACTOR, ErrorCode.BROKER_NOT_AVAILABLE)
"""Refusals after which nothing can have happened."""
UNANSWERED_PER_NAME_MAX: Final = 8
"""Changes of one topic whose outcome is unknown. With more, the judge would have too many orders to try."""

APIS: Final = (
    ApiKey.METADATA,
    ApiKey.CREATE_TOPICS,
    ApiKey.DELETE_TOPICS,
    ApiKey.DESCRIBE_CONFIGS,
    ApiKey.INCREMENTAL_ALTER_CONFIGS,
)
"""The APIs of the workload, so that they can be loaded before any clock starts."""


class Ledger:
    """State shared by the clients of a run: unique numbers, and the count of operations in doubt."""

    def __init__(self) -> None:
        self.number = 1_000_000
        self.unanswered: dict[str, int] = {}

    def next_number(self) -> int:
        self.number += 1
        return self.number

    def is_dubious(self, name: str) -> bool:
        return self.unanswered.get(name, 0) >= UNANSWERED_PER_NAME_MAX


def some_action(world: ClusterWorld, ledger: Ledger) -> Action:
    """Choose an action, mostly a change, for a topic with few operations in doubt."""
    roll, name = world.random.random(), world.random.choice(NAMES)
    if roll < 0.1:
        return List()
    if roll < 0.3 or ledger.is_dubious(name):
        return Describe(name)
    if roll < 0.65:
        return Create(name, ledger.next_number())
    return Delete(name) if roll < 0.8 else Configure(name, ledger.next_number())


class Voice:
    """One client. It keeps a connection to each broker that it asks."""

    def __init__(self, world: ClusterWorld, name: str) -> None:
        self._world = world
        self._name = name
        self._clients: dict[int, Client] = {}

    async def ask(self, node: int, action: Action) -> Answer | ErrorCode | None:
        """The answer; an error code that is no answer; None where no answer came."""
        client = self._clients.setdefault(node, Client(self._name, (address_of(node), PORT)))
        try:
            match action:
                case Create():
                    return await _create(client, action)
                case Delete(name=name):
                    return await _delete(client, name)
                case Configure():
                    return await _configure(client, action)
                case Describe(name=name):
                    return await _describe(client, name)
                case _:
                    return await _list(client)
        except Lost:
            return None

    def close(self) -> None:
        for client in self._clients.values():
            client.close()


async def _create(client: Client, action: Create) -> Answer | ErrorCode:
    configs = (CreatableTopicConfig(TAG, str(action.tag)),)
    topic = CreatableTopic(name=action.name, num_partitions=1, replication_factor=1, configs=configs)
    answer = await client.call(ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest((topic,), TIMEOUT_MS))
    error = error_of(answer.topics[0].error_code)
    if error is ErrorCode.TOPIC_ALREADY_EXISTS:
        return Exists()
    return Done() if error is ErrorCode.NONE else error


async def _delete(client: Client, name: str) -> Answer | ErrorCode:
    request = DeleteTopicsRequest(topics=(DeleteTopicState(name=name),), timeout_ms=TIMEOUT_MS)
    answer = await client.call(ApiKey.DELETE_TOPICS, 6, request)
    return _changed(error_of(answer.responses[0].error_code))


async def _configure(client: Client, action: Configure) -> Answer | ErrorCode:
    change = AlterableConfig(SETTING, SET, str(action.setting))
    request = IncrementalAlterConfigsRequest((AlterConfigsResource(TOPIC, action.name, (change,)),))
    answer = await client.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, request)
    return _changed(error_of(answer.responses[0].error_code))


def _changed(error: ErrorCode) -> Answer | ErrorCode:
    if error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return Missing()
    return Done() if error is ErrorCode.NONE else error


async def _describe(client: Client, name: str) -> Answer | ErrorCode:
    request = DescribeConfigsRequest((DescribeConfigsResource(TOPIC, name, (TAG, SETTING)),))
    answer = await client.call(ApiKey.DESCRIBE_CONFIGS, 4, request)
    [result] = answer.results
    error = error_of(result.error_code)
    if error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return Missing()
    if error is not ErrorCode.NONE:
        return error
    values = {config.name: int(config.value) for config in result.configs}
    return Found(values[TAG], None if values[SETTING] < 0 else values[SETTING])


async def _list(client: Client) -> Answer | ErrorCode:
    answer = await client.call(ApiKey.METADATA, 12, MetadataRequest(topics=None, allow_auto_topic_creation=False))
    return Names(frozenset(topic.name for topic in answer.topics if not topic.is_internal))


async def work(world: ClusterWorld, ledger: Ledger, name: str, hosts: Sequence[Host]) -> None:
    """Run one client until the world winds down. `hosts` are the hosts there are; the list changes."""
    voice, node = Voice(world, name), world.random.choice(hosts).node
    while not world.winding_down:
        if world.random.random() < 0.3:
            node = world.random.choice(hosts).node
        asked = world.ask(name, node, some_action(world, ledger))
        answer = await voice.ask(node, asked.action)
        settle(world, ledger, asked, answer)
        if isinstance(answer, ErrorCode) or answer is None:
            await world.think(PAUSE_AFTER_SILENCE_SECONDS_MAX)
            node = world.random.choice(hosts).node
        await world.think(THINK_SECONDS_MAX)
    voice.close()


def settle(world: ClusterWorld, ledger: Ledger, asked: Asked, answer: Answer | ErrorCode | None) -> None:
    """Note the outcome of an operation. An error that no client should see is a problem."""
    if not isinstance(answer, ErrorCode | None):
        world.hear(asked, answer)
        return
    if isinstance(asked.action, Describe | List) or answer in CERTAINLY_NOT:
        world.forget(asked, "no answer" if answer is None else answer.name)
    else:
        world.hear(asked, None)
        name = asked.action.name
        ledger.unanswered[name] = ledger.unanswered.get(name, 0) + 1
    if answer is not None and not answer.retriable and answer not in CERTAINLY_NOT:
        world.problem("refused", f"{asked.client}: {asked.action} through {asked.node} was told {answer.name}")
