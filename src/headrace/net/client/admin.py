"""Administration over the wire: topics, partitions, configs, the cluster. One method per request, values in and out.

Promises: a refusal is a RefusedError that names its subject and gives the broker's own words. A change whose answer was
lost is not sent again. The Java client sends it again, and may then take its own topic for another's. Here the cluster
is inspected, and OutcomeUnknownError raised where no effect of the change is visible.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any
from uuid import UUID

from headrace.base.ids import BrokerId
from headrace.net.client.cluster import Cluster, UnknownTopicError
from headrace.net.client.errors import RefusedError, UnsupportedError, check
from headrace.net.client.view import ClusterView, TopicView
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode

ADMIN_TIMEOUT_MS = 20_000
TOPIC_RESOURCE = 2
BROKER_RESOURCE = 4
GROUP_RESOURCE = 32


class TopicGoneError(RefusedError):
    """The topic that was meant does not exist any more. No pause will change that."""

    def __init__(self, name: str) -> None:
        super().__init__(ErrorCode.UNKNOWN_TOPIC_ID, f"Topic '{name}'", "it was deleted since")
        self.retriable = False


class ConfigSource(IntEnum):
    """The source of a config's value (KIP-226's numbers)."""

    UNKNOWN = 0
    DYNAMIC_TOPIC_CONFIG = 1
    DYNAMIC_BROKER_CONFIG = 2
    DYNAMIC_DEFAULT_BROKER_CONFIG = 3
    STATIC_BROKER_CONFIG = 4
    DEFAULT_CONFIG = 5
    DYNAMIC_BROKER_LOGGER_CONFIG = 6
    DYNAMIC_CLIENT_METRICS_CONFIG = 7
    DYNAMIC_GROUP_CONFIG = 8


class AlterOperation(IntEnum):
    """The operation of IncrementalAlterConfigs on a value (KIP-339's numbers)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigValue:
    """One effective config of a topic or broker. `value` is None where it is secret or unset."""

    name: str
    value: str | None
    source: str
    is_default: bool
    read_only: bool
    documentation: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatedTopic:
    """A topic that a broker reports as made. `partitions` and `replication_factor` are -1 where the broker does not
    report them.

    `acknowledged` is False where the answer was lost, and a topic as requested exists. Another client may have made it.
    """

    name: str
    id: str
    partitions: int
    replication_factor: int
    acknowledged: bool = True


class Admin:
    """The administrative requests of one cluster. Keeps no state of its own."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int = -1,
        replication_factor: int = -1,
        configs: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> CreatedTopic:
        """Create one topic; -1 takes the broker's default. Raises RefusedError (TOPIC_ALREADY_EXISTS, ...)."""
        from headrace.wire.messages import create_topics as wire

        topic = wire.CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=replication_factor,
            configs=tuple(wire.CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()),
        )
        request = wire.CreateTopicsRequest(topics=(topic,), timeout_ms=ADMIN_TIMEOUT_MS, validate_only=validate_only)

        async def ask() -> CreatedTopic:
            response = await self._cluster.ask_controller(ApiKey.CREATE_TOPICS, request)
            result = _only(response.topics)
            check(result.error_code, f"Topic '{name}'", result.error_message)
            return CreatedTopic(
                name=result.name,
                id=str(result.topic_id),
                partitions=result.num_partitions,
                replication_factor=result.replication_factor,
            )

        async def seen() -> CreatedTopic | None:
            if not await self._exists(name):
                return None
            view = await self._cluster.topic(name, fresh=True)
            replicas = len(view.partitions[0].replicas)
            if partitions not in (-1, len(view.partitions)) or replication_factor not in (-1, replicas):
                detail = f"the answer was lost, and a topic of {len(view.partitions)} x {replicas} is there"
                raise RefusedError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}'", detail)
            return CreatedTopic(
                name=name,
                id=str(view.id),
                partitions=len(view.partitions),
                replication_factor=replicas,
                acknowledged=False,
            )

        if validate_only:
            return await self._cluster.retried(ask)
        return await self._cluster.changed(ask, seen=seen, subject=f"Topic '{name}'", look="headrace topic list")

    async def _exists(self, name: str) -> bool:
        """Whether a topic of this name exists by the controller's view, not by that of a broker that is behind."""
        try:
            await self.create_topic(name, partitions=1, replication_factor=1, validate_only=True)
        except RefusedError as error:
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise
            return True
        return False

    async def delete_topic(self, name: str, topic_id: UUID | None = None) -> None:
        """Delete one topic by name. `topic_id`: only where it is that one: another of this name stays. Raises
        RefusedError where it does not exist."""
        from headrace.wire.messages import delete_topics as wire

        state = wire.DeleteTopicState(name=name) if topic_id is None else wire.DeleteTopicState(topic_id=topic_id)
        names = (name,) if topic_id is None else ()  # an early version knows names alone, and must not go by this one
        request = wire.DeleteTopicsRequest(topics=(state,), topic_names=names, timeout_ms=ADMIN_TIMEOUT_MS)

        async def ask() -> bool:
            response = await self._cluster.ask_controller(ApiKey.DELETE_TOPICS, request)
            result = _only(response.responses)
            if result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise UnknownTopicError(name)
            if result.error_code == ErrorCode.UNKNOWN_TOPIC_ID:
                raise TopicGoneError(name)
            check(result.error_code, f"Topic '{name}'", result.error_message)
            return True

        async def seen() -> bool | None:
            return None if await self._exists(name) else True

        await self._change_topic(name, ask, seen)

    async def create_partitions(self, name: str, *, total: int) -> None:
        """Raise a topic's number of partitions to `total`."""
        from headrace.wire.messages import create_partitions as wire

        topic = wire.CreatePartitionsTopic(name=name, count=total, assignments=None)
        request = wire.CreatePartitionsRequest(topics=(topic,), timeout_ms=ADMIN_TIMEOUT_MS, validate_only=False)

        async def ask() -> bool:
            response = await self._cluster.ask_controller(ApiKey.CREATE_PARTITIONS, request)
            result = _only(response.results)
            if result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise UnknownTopicError(name)
            check(result.error_code, f"Topic '{name}'", result.error_message)
            return True

        async def seen() -> bool | None:
            view = await self._cluster.existing_topic(name)
            return True if len(view.partitions) == total else None

        await self._change_topic(name, ask, seen)

    async def _change_topic(
        self, name: str, change: Callable[[], Awaitable[bool]], seen: Callable[[], Awaitable[bool | None]]
    ) -> None:
        look = f"headrace topic describe {name}"
        await self._cluster.changed(change, seen=seen, subject=f"Topic '{name}'", look=look)
        self._cluster.forget((name,))

    async def topic_configs(self, name: str) -> tuple[ConfigValue, ...]:
        """Every effective config of a topic, in the broker's order."""
        return await self._configs(TOPIC_RESOURCE, name, f"Topic '{name}'")

    async def one_config_of_topics(self, names: Sequence[str], key: str) -> dict[str, str]:
        """The effective value of one config that is never null, by topic; without topics that are gone."""
        from headrace.wire.messages import describe_configs as wire

        resources = tuple(
            wire.DescribeConfigsResource(resource_type=TOPIC_RESOURCE, resource_name=name, configuration_keys=(key,))
            for name in names
        )
        request = wire.DescribeConfigsRequest(resources=resources)

        async def ask() -> dict[str, str]:
            response = await self._cluster.ask_any(ApiKey.DESCRIBE_CONFIGS, request)
            return {
                result.resource_name: config.value
                for result in response.results
                for config in result.configs
                if config.name == key and config.value is not None
            }

        return await self._cluster.retried(ask)

    async def broker_configs(self, broker: int) -> tuple[ConfigValue, ...]:
        """Every effective config of a broker, as reported by that broker, in its order."""
        return await self._configs(BROKER_RESOURCE, str(broker), f"Broker {broker}", asked=BrokerId(broker))

    async def default_broker_configs(self) -> tuple[ConfigValue, ...]:
        """The configs that were set for all brokers at once."""
        return await self._configs(BROKER_RESOURCE, "", "All brokers")

    async def group_configs(self, name: str) -> tuple[ConfigValue, ...]:
        """Every effective config of a group, whether or not it exists."""
        return await self._configs(GROUP_RESOURCE, name, f"Group '{name}'")

    async def alter_topic_configs(
        self,
        name: str,
        *,
        set_: Mapping[str, str] | None = None,
        delete: Sequence[str] = (),
        validate_only: bool = False,
    ) -> None:
        """Set and remove configs of one topic, all or none."""
        change = _changes(set_ or {}, delete)

        async def known() -> tuple[ConfigValue, ...]:
            return await self.topic_configs(name)

        async def ask() -> bool:
            result = await self._alter(TOPIC_RESOURCE, name, change, validate_only=validate_only)
            if result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise UnknownTopicError(name)
            check(result.error_code, f"Topic '{name}'", result.error_message)
            return True

        if validate_only:
            await self._cluster.retried(ask)
            return
        seen = _seen(known, set_ or {}, delete, ConfigSource.DYNAMIC_TOPIC_CONFIG)
        await self._change_topic(name, ask, seen)

    async def alter_broker_configs(
        self,
        broker: int | None,
        *,
        set_: Mapping[str, str] | None = None,
        delete: Sequence[str] = (),
        validate_only: bool = False,
    ) -> None:
        """Set and remove configs of one broker, or (None) of all of them, all or none."""
        subject = "All brokers" if broker is None else f"Broker {broker}"
        change = _changes(set_ or {}, delete)
        own = ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG if broker is None else ConfigSource.DYNAMIC_BROKER_CONFIG

        async def known() -> tuple[ConfigValue, ...]:
            return await (self.default_broker_configs() if broker is None else self.broker_configs(broker))

        async def ask() -> bool:
            name = "" if broker is None else str(broker)
            result = await self._alter(BROKER_RESOURCE, name, change, validate_only=validate_only)
            check(result.error_code, subject, result.error_message)
            return True

        if validate_only:
            await self._cluster.retried(ask)
            return
        look = f"headrace config list broker {'all' if broker is None else broker}"
        await self._cluster.changed(ask, seen=_seen(known, set_ or {}, delete, own), subject=subject, look=look)

    async def alter_group_configs(
        self,
        name: str,
        *,
        set_: Mapping[str, str] | None = None,
        delete: Sequence[str] = (),
        validate_only: bool = False,
    ) -> None:
        """Set and remove configs of one group, all or none."""
        subject, change = f"Group '{name}'", _changes(set_ or {}, delete)

        async def known() -> tuple[ConfigValue, ...]:
            return await self.group_configs(name)

        async def ask() -> bool:
            result = await self._alter(GROUP_RESOURCE, name, change, validate_only=validate_only)
            check(result.error_code, subject, result.error_message)
            return True

        if validate_only:
            await self._cluster.retried(ask)
            return
        seen = _seen(known, set_ or {}, delete, ConfigSource.DYNAMIC_GROUP_CONFIG)
        look = f"headrace config list group {name}"
        await self._cluster.changed(ask, seen=seen, subject=subject, look=look)

    async def _alter(self, kind: int, name: str, configs: Sequence[Any], *, validate_only: bool) -> Any:
        """The result of one resource."""
        from headrace.wire.messages import incremental_alter_configs as wire

        resource = wire.AlterConfigsResource(resource_type=kind, resource_name=name, configs=tuple(configs))
        request = wire.IncrementalAlterConfigsRequest(resources=(resource,), validate_only=validate_only)
        response = await self._cluster.ask_controller(ApiKey.INCREMENTAL_ALTER_CONFIGS, request)
        return _only(response.responses)

    async def topics(self) -> tuple[TopicView, ...]:
        """All topics, by name."""
        view = await self.cluster_view()
        return tuple(sorted(view.topics.values(), key=lambda topic: topic.name))

    async def cluster_view(self, topics: Iterable[str] | None = None) -> ClusterView:
        """Fresh metadata of the cluster with the named topics (None: all)."""
        names = None if topics is None else tuple(topics)

        async def ask() -> ClusterView:
            return await self._cluster.metadata(names)

        return await self._cluster.retried(ask)

    async def _configs(
        self, kind: int, name: str, subject: str, *, asked: BrokerId | None = None
    ) -> tuple[ConfigValue, ...]:
        """`asked`: the only broker that knows the configs; None: all brokers do."""
        from headrace.wire.messages import describe_configs as wire

        resource = wire.DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
        request = wire.DescribeConfigsRequest(resources=(resource,), include_synonyms=False, include_documentation=True)

        async def ask() -> tuple[ConfigValue, ...]:
            if asked is None:
                response = await self._cluster.ask_any(ApiKey.DESCRIBE_CONFIGS, request)
            else:
                connection = await self._cluster.broker_connection(asked)
                response = await connection.request(
                    ApiKey.DESCRIBE_CONFIGS, request, timeout_ms=self._cluster.request_timeout_ms
                )
            result = _only(response.results)
            if result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and kind == TOPIC_RESOURCE:
                raise UnknownTopicError(name)
            check(result.error_code, subject, result.error_message)
            return tuple(_config_value(config) for config in result.configs)

        return await self._cluster.retried(ask)


def _changes(set_: Mapping[str, str], delete: Sequence[str]) -> list[Any]:
    from headrace.wire.messages import incremental_alter_configs as wire

    changes: list[tuple[str, AlterOperation, str | None]] = [
        *((key, AlterOperation.SET, value) for key, value in set_.items()),
        *((key, AlterOperation.DELETE, None) for key in delete),
    ]
    return [wire.AlterableConfig(name=key, config_operation=int(op), value=value) for key, op, value in changes]


def _seen(
    known: Callable[[], Awaitable[tuple[ConfigValue, ...]]],
    set_: Mapping[str, str],
    delete: Sequence[str],
    own: ConfigSource,
) -> Callable[[], Awaitable[bool | None]]:
    """A look whether a change was made. `own`: the source of values that are the resource's own."""

    async def look() -> bool | None:
        values = {config.name: config for config in await known()}
        as_set = all(key in values and values[key].value == value for key, value in set_.items())
        gone = all(key not in values or values[key].source != own.name for key in delete)
        return True if as_set and gone else None

    return look


def _only(results: Sequence[Any]) -> Any:
    """The one result of a request about one subject. Raises UnsupportedError where the broker gives another number."""
    if len(results) != 1:
        raise UnsupportedError(f"The broker answered about {len(results)} things where it was asked about one.")
    return results[0]


def _config_value(config: Any) -> ConfigValue:
    try:
        source = ConfigSource(config.config_source).name
    except ValueError:
        source = ConfigSource.UNKNOWN.name
    return ConfigValue(
        name=config.name,
        value=None if config.is_sensitive else config.value,
        source=source,
        is_default=source == ConfigSource.DEFAULT_CONFIG.name,
        read_only=config.read_only,
        documentation=config.documentation,
    )
