"""Topics, their partitions, and configs of topics, brokers and groups."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from headrace.base.errors import UsageError
from headrace.base.limits import MCP_ROWS, MCP_ROWS_MAX
from headrace.base.reading import INT_MAX, natural
from headrace.mcp.answers import Answer, Part, bounded, call, some
from headrace.mcp.desk import Desk
from headrace.mcp.plain import plain
from headrace.net.client.admin import Admin, ConfigValue
from headrace.net.client.offsets import EARLIEST, LATEST
from headrace.operations.histories import offsets_of

Query = Annotated[str, Field(description="Only names with this in them.")]
After = Annotated[str, Field(description="Go on behind this name.")]
Limit = Annotated[int, Field(description="Rows of the answer.", ge=1, le=MCP_ROWS_MAX)]
Topic = Annotated[str, Field(description="The topic's name.")]


class TopicRow(Part):
    """One topic."""

    topic: str
    partitions: int
    replicas: int
    offline: int = Field(description="Partitions without a leader.")
    under_replicated: int


class Topics(Answer):
    """Some topics by name."""

    total: int = Field(description="Topics that match, on this page and others.")
    topics: list[TopicRow]
    after: str | None = Field(description="For the next page; null: there is none.")
    command: str


class PartitionRow(Part):
    """One partition."""

    partition: int
    leader: int | None
    leader_epoch: int
    replicas: list[int]
    in_sync: list[int]
    first_offset: int | None
    end_offset: int | None = Field(description="Offset of the next record; null: its leader does not answer.")


class ConfigRow(Part):
    """One config."""

    key: str
    value: str | None = Field(description="Null: it has none, or is a secret.")
    source: str
    read_only: bool
    documentation: str


class TopicView(Answer):
    """One topic, its partitions, and the configs that are not the default."""

    topic: str
    id: str
    is_internal: bool
    partitions: int
    rows: list[PartitionRow]
    more_from: int | None = Field(description="The partition that the next page begins with; null: there is none.")
    configs: list[ConfigRow]
    command: str


class Configs(Answer):
    """Configs of one topic, broker or group."""

    of: str
    total: int
    configs: list[ConfigRow]
    after: str | None
    command: str


class TopicTools:
    """Tools for topics and configs."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def topic_list(
        self,
        query: Query = "",
        after: After = "",
        limit: Limit = MCP_ROWS,
        internal: Annotated[bool, Field(description="With the brokers' own topics.")] = False,
    ) -> Topics:
        """Topics by name, a page at a time, with how many of their partitions are in trouble."""
        views = [each for each in await Admin(self._desk.cluster).topics() if internal or not each.internal]
        shown, total, follows = some(views, lambda each: each.name, query=query, after=after, limit=limit)
        rows = [
            TopicRow(
                topic=plain(each.name),
                partitions=len(each.partitions),
                replicas=max((len(part.replicas) for part in each.partitions), default=0),
                offline=sum(part.leader < 0 for part in each.partitions),
                under_replicated=sum(len(part.isr) < len(part.replicas) for part in each.partitions),
            )
            for each in shown
        ]
        asks = [call("topic_list", query=query or None, after=follows, limit=limit)] if follows else []
        asks += [call("topic_describe", topic=rows[0].topic), call("consume", topic=rows[0].topic)] if rows else []
        command = self._desk.command("topic", "list")
        return Topics(total=total, topics=rows, after=follows, command=command, next=asks or [call("status")])

    async def topic_describe(
        self,
        topic: Topic,
        first_partition: Annotated[int, Field(description="Partitions from this one on.", ge=0)] = 0,
        limit: Limit = MCP_ROWS,
    ) -> TopicView:
        """One topic: leader, replicas and offsets of its partitions, and the configs that are not the default."""
        cluster = self._desk.cluster
        view = await cluster.existing_topic(topic)
        most = bounded(limit, MCP_ROWS_MAX)
        parts = view.partitions[first_partition : first_partition + most]
        indexes = [int(part.index) for part in parts]
        first = await offsets_of(cluster, topic, indexes, EARLIEST)
        end = await offsets_of(cluster, topic, indexes, LATEST)
        configs = [config for config in await Admin(cluster).topic_configs(topic) if not config.is_default]
        rows = [
            PartitionRow(
                partition=int(part.index),
                leader=None if part.leader < 0 else int(part.leader),
                leader_epoch=part.leader_epoch,
                replicas=[int(each) for each in part.replicas],
                in_sync=[int(each) for each in part.isr],
                first_offset=first.get(int(part.index)),
                end_offset=end.get(int(part.index)),
            )
            for part in parts
        ]
        behind = first_partition + most
        more = behind if behind < len(view.partitions) else None
        asks = [call("topic_describe", topic=topic, first_partition=more, limit=limit)] if more else []
        asks += [call("consume", topic=topic), call("config_list", kind="topic", name=topic), call("group_list")]
        return TopicView(
            topic=plain(view.name),
            id=str(view.id),
            is_internal=view.internal,
            partitions=len(view.partitions),
            rows=rows,
            more_from=more,
            configs=[_row(config) for config in configs[:MCP_ROWS_MAX]],
            command=self._desk.command("topic", "describe", topic),
            next=asks,
        )

    async def config_list(
        self,
        kind: Annotated[Literal["topic", "broker", "group"], Field(description="The kind of what has them.")],
        name: Annotated[str, Field(description="A topic's or a group's name, or a broker's number.")],
        query: Query = "",
        after: After = "",
        limit: Limit = MCP_ROWS,
        all_of_them: Annotated[bool, Field(description="With those that have their default.")] = False,
    ) -> Configs:
        """Configs of a topic, a broker or a group, with their sources and documentation. Secrets are never shown."""
        admin = Admin(self._desk.cluster)
        if kind == "topic":
            told = await admin.topic_configs(name)
        elif kind == "group":
            told = await admin.group_configs(name)
        else:
            told = await admin.broker_configs(_number(name))
        wanted = [each for each in told if all_of_them or query or not each.is_default]
        shown, total, follows = some(wanted, lambda each: each.name, query=query, after=after, limit=limit)
        asks = [call("config_list", kind=kind, name=name, query=query or None, after=follows)] if follows else []
        asks += [f"The resource headrace://configs/{shown[0].name} says more of it."] if shown else []
        command = self._desk.command("config", "list", kind, name)
        configs = [_row(each) for each in shown]
        asks = asks or [call("config_list", kind=kind, name=name, all_of_them=True)]
        return Configs(of=plain(name), total=total, configs=configs, after=follows, command=command, next=asks)


def _row(config: ConfigValue) -> ConfigRow:
    return ConfigRow(
        key=plain(config.name),
        value=None if config.value is None else plain(config.value, 500),
        source=config.source,
        read_only=config.read_only,
        documentation=plain(config.documentation or "", 300),
    )


def _number(name: str) -> int:
    try:
        return natural(name, INT_MAX)
    except ValueError:
        raise UsageError(f"'{name:.80}' is no broker: give its number; broker_list() has all.") from None
