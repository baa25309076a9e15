"""Changes, each in two calls: a plan, and its approval."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import Field

from headrace.base.errors import UsageError
from headrace.base.limits import MCP_HEADERS_MAX, MCP_PLAN_MS_MAX, MCP_PRODUCED_BYTES_MAX, MCP_ROWS_MAX
from headrace.base.reading import INT_MAX
from headrace.mcp.answers import Answer, Part, call
from headrace.mcp.desk import Desk
from headrace.mcp.plain import plain
from headrace.mcp.plans import Make
from headrace.mcp.tools.topics import Topic
from headrace.metadata.access.quotas import CLIENT_ID, IP, USER
from headrace.operations.changes.configs import setting
from headrace.operations.changes.costs import Cost
from headrace.operations.changes.leaving import cancelling, draining
from headrace.operations.changes.moves import moving
from headrace.operations.changes.offsets import WITHOUT_VALUE, Aim, reset
from headrace.operations.changes.plan import Plan
from headrace.operations.changes.producing import NewRecord, producing
from headrace.operations.changes.quotas import quota
from headrace.operations.changes.topics import creation, deletion
from headrace.operations.changes.transactions import aborting
from headrace.operations.changes.trimming import trimming

Group = Annotated[str, Field(description="The group's name.")]


class GoingTo(Part):
    """The partitions of a plan that go to one broker."""

    broker: int | None = Field(description="Its id; null: none is chosen yet.")
    partitions: int
    bytes: int = Field(description="Bytes to export or to copy, of those that are known.")
    partitions_of_unknown_size: int
    partitions_with_a_copy: int = Field(description="Those that it has a copy of already, and only leads from then on.")


class MovesCost(Part):
    """The cost of moves, as far as it is known before."""

    targets: list[GoingTo]
    bytes: int = Field(description="Bytes to export or to copy, all together, as far as they are known.")
    writes_wait: bool = Field(description="Whether writes wait while a partition is handed over through the store.")
    finished_moves: int = Field(description="Finished moves that tell how long writes waited in them.")
    waited_ms_median: int | None = Field(description="null: none tells.")
    waited_ms_most: int | None = Field(description="null: none tells.")


class Planned(Answer):
    """The effect that a change would have now. Nothing is changed yet."""

    plan: str = Field(description="The plan's hash, for approve.")
    command: str = Field(description="The command that does the same.")
    effect: list[dict[str, Any]] = Field(description="What would change.")
    effect_left_out: int
    obstacle: str = Field(description="Why it cannot be carried out; empty: it can.")
    loses: str = Field(description="What is gone with its data afterwards; empty: nothing is.")
    records_lost: int | None = Field(description="Records that would be gone, as far as it is known.")
    cost: MovesCost | None = Field(description="The cost of a plan that moves partitions; null: it moves none.")


class Applied(Answer):
    """A change that was made."""

    plan: str
    command: str
    effect: list[dict[str, Any]]
    effect_left_out: int


class ChangeTools:
    """Tools that change the cluster, and the plans before them."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def plan_topic_create(
        self,
        topic: Topic,
        partitions: Annotated[int, Field(description="-1: the brokers' default.", ge=-1, le=INT_MAX)] = -1,
        replication_factor: Annotated[int, Field(description="-1: the brokers' default.", ge=-1, le=32_767)] = -1,
        configs: Annotated[dict[str, str] | None, Field(description="Configs of the topic.")] = None,
    ) -> Planned:
        """Plan a new topic. The brokers check it, and make nothing."""
        make = partial(
            creation,
            self._desk.cluster,
            topic,
            partitions=partitions,
            replicas=replication_factor,
            configs=configs,
        )
        return await self._planned(make)

    async def plan_topic_delete(self, topic: Topic) -> Planned:
        """Plan that a topic is deleted with all its records. Nothing brings them back."""
        return await self._planned(partial(deletion, self._desk.cluster, topic))

    async def plan_config_set(
        self,
        topic: Topic,
        key: Annotated[str, Field(description="The config's name.")],
        value: Annotated[str, Field(description="Empty: back to the default.")] = "",
    ) -> Planned:
        """Plan another value of a topic's config. The brokers check it."""
        return await self._planned(partial(setting, self._desk.cluster, topic, key, value or None))

    async def plan_group_reset_offsets(
        self,
        group: Group,
        to: Annotated[
            Literal["earliest", "latest", "offset", "shift", "datetime", "duration"],
            Field(description="Where the group is to read on."),
        ],
        value: Annotated[
            str, Field(description="An offset, so many records on (-10: back), 2026-01-31T12:00:00Z, or PT1H: ago.")
        ] = "",
        topics: Annotated[
            list[str] | None, Field(description="TOPIC or TOPIC:0,1; none: all that the group has committed.")
        ] = None,
    ) -> Planned:
        """Plan other offsets for a group that has no members: where it reads on."""
        if (to in WITHOUT_VALUE) == bool(value):
            raise UsageError(f"Give a value with to='{to}'." if not value else f"to='{to}' takes no value.")
        return await self._planned(partial(reset, self._desk.cluster, group, topics or [], Aim(to, value)))

    async def plan_topic_move(
        self,
        topic: Topic,
        partitions: Annotated[list[int] | None, Field(description="None: all of the topic.")] = None,
        to: Annotated[int | None, Field(description="The broker; null: the controller chooses.", ge=0)] = None,
    ) -> Planned:
        """Plan that partitions move to another broker: the way of each, and what refuses it."""
        return await self._planned(partial(moving, self._desk.cluster, topic, partitions or [], to))

    async def plan_txn_abort(
        self, transactional_id: Annotated[str, Field(description="The transactional id.")]
    ) -> Planned:
        """Plan that the open transaction of a lost producer is aborted. If the producer lives, it is fenced."""
        return await self._planned(partial(aborting, self._desk.cluster, transactional_id))

    async def plan_topic_delete_records(
        self,
        topic: Topic,
        partition: Annotated[int, Field(description="Its number.", ge=0, le=INT_MAX)],
        before: Annotated[
            str, Field(description="The offset at which it begins then; 'end': that of now, where nobody writes.")
        ],
    ) -> Planned:
        """Plan that a partition's records before an offset are deleted. Nothing brings them back."""
        return await self._planned(partial(trimming, self._desk.cluster, topic, partition, before))

    async def plan_produce(
        self,
        topic: Topic,
        value: Annotated[
            str | None, Field(description="Text; null: a tombstone.", max_length=MCP_PRODUCED_BYTES_MAX)
        ] = None,
        key: Annotated[
            str | None, Field(description="Text; null: none.", min_length=1, max_length=MCP_PRODUCED_BYTES_MAX)
        ] = None,
        partition: Annotated[int | None, Field(description="null: the key chooses.", ge=0, le=INT_MAX)] = None,
        headers: Annotated[
            dict[str, str] | None, Field(description="Headers, as text.", max_length=MCP_HEADERS_MAX)
        ] = None,
    ) -> Planned:
        """Plan one record of the present time, which every reader of the topic gets."""
        texts = [value or "", key or "", *(each for pair in (headers or {}).items() for each in pair)]
        if (size := sum(len(each.encode()) for each in texts)) > MCP_PRODUCED_BYTES_MAX:
            raise UsageError(
                f"A record of {size:,} bytes is not for this tool, which writes {MCP_PRODUCED_BYTES_MAX:,}: a person "
                f"writes it by 'headrace produce {topic} FILE'."
            )
        record = NewRecord(topic, partition, key, value, tuple((headers or {}).items()))
        return await self._planned(partial(producing, self._desk.cluster, record))

    async def plan_topic_move_cancel(
        self, topic: Topic, partition: Annotated[int, Field(description="Its number.", ge=0, le=INT_MAX)]
    ) -> Planned:
        """Plan that a move under way is cancelled: the partition stays where it is."""
        return await self._planned(partial(cancelling, self._desk.cluster, topic, partition))

    async def plan_broker_drain(
        self, broker: Annotated[int, Field(description="Its id.", ge=0, le=INT_MAX)]
    ) -> Planned:
        """Plan that all partitions leave a broker, so that it can be stopped for good."""
        return await self._planned(partial(draining, self._desk.cluster, broker))

    async def plan_quota_set(
        self,
        key: Annotated[str, Field(description="The quota's name, like producer_byte_rate.")],
        value: Annotated[str, Field(description="A number; empty: the quota is removed.")] = "",
        user: Annotated[str, Field(description="A user; '*': each that has no quota of its own.")] = "",
        client_id: Annotated[str, Field(description="A client id; '*' as for users.")] = "",
        ip: Annotated[str, Field(description="An address, alone; '*' as for users.")] = "",
    ) -> Planned:
        """Plan another quota of a user, a client id or both, or of an address; or that it is removed."""
        names = {USER: user, CLIENT_ID: client_id, IP: ip}
        return await self._planned(partial(quota, self._desk.cluster, names, key, value))

    async def approve(
        self,
        plan: Annotated[str, Field(description="The hash of a plan that was looked at.")],
        name: Annotated[str, Field(description="What the plan says that it loses; empty where it loses nothing.")] = "",
    ) -> Applied:
        """Carry out a plan. It is made again first, and refused where it is another one by now."""
        made = await self._desk.plans.carry_out(plan, name)
        effect = _effect(made)
        return Applied(
            plan=plan,
            command=self._command(made),
            effect=effect[:MCP_ROWS_MAX],
            effect_left_out=max(0, len(effect) - MCP_ROWS_MAX),
            next=_after(made),
        )

    def _command(self, plan: Plan) -> str:
        """The command that does the same, with the line that it reads."""
        return plan.fed(self._desk.command(*plan.words), partial(plain, most=MCP_PRODUCED_BYTES_MAX))

    async def _planned(self, make: Make) -> Planned:
        plan = await self._desk.plans.add(make)
        effect = _effect(plan)
        minutes = MCP_PLAN_MS_MAX // 60_000
        go_on = call("approve", plan=plan.digest, name=plan.loses or None)
        person = f"Show the plan to a person; once they agree, within {minutes} minutes: {go_on}"
        if not plan.obstacle and not effect:
            person = "There is nothing to change."
        return Planned(
            plan=plan.digest,
            command=self._command(plan),
            effect=effect[:MCP_ROWS_MAX],
            effect_left_out=max(0, len(effect) - MCP_ROWS_MAX),
            obstacle=plain(plan.obstacle, 500),
            loses=plan.loses,
            records_lost=plan.known if plan.loses and isinstance(plan.known, int) else None,
            cost=_cost(plan.known) if isinstance(plan.known, Cost) else None,
            next=["See to the obstacle, then ask for the plan again."] if plan.obstacle else [person],
        )


def _cost(known: Cost) -> MovesCost:
    pause = known.pause
    return MovesCost(
        targets=[
            GoingTo(
                broker=None if share.target < 0 else share.target,
                partitions=share.partitions,
                bytes=share.bytes,
                partitions_of_unknown_size=share.unknown,
                partitions_with_a_copy=share.led,
            )
            for share in known.by_target
        ],
        bytes=sum(share.bytes for share in known.by_target),
        writes_wait=known.waits,
        finished_moves=0 if pause is None else pause.moves,
        waited_ms_median=None if pause is None else pause.median_ms,
        waited_ms_most=None if pause is None else pause.most_ms,
    )


def _effect(plan: Plan) -> list[dict[str, Any]]:
    return [{name: _shown(value) for name, value in _fields(row).items()} for row in plan.rows]


def _fields(row: Any) -> Mapping[str, Any]:
    if is_dataclass(row) and not isinstance(row, type):
        return asdict(row)
    fields: Mapping[str, Any] = row._asdict()
    return fields


def _shown(value: Any) -> Any:
    if isinstance(value, str):
        return plain(value, 500)
    return value if isinstance(value, (int, float, bool, type(None))) else plain(str(value), 500)


def _after(plan: Plan) -> list[str]:
    """The call that shows the effect."""
    match list(plan.words[:2]):
        case ["topic", "create"]:
            return [call("topic_describe", topic=plan.words[2])]
        case ["topic", "delete"]:
            return [call("topic_list")]
        case ["topic", "delete-records"]:
            return [call("topic_describe", topic=plan.words[2])]
        case ["produce", topic]:
            return [call("consume", topic=topic)]
        case ["quota", _]:
            return [call("quota_list")]
        case ["broker", _]:
            return [call("topic_moves")]
        case ["topic", _]:
            return [call("topic_moves")]
        case ["config", _]:
            return [call("config_list", kind="topic", name=plan.words[3])]
        case ["group", _]:
            return [call("group_describe", group=plan.words[2])]
    return [call("txn_list")]
