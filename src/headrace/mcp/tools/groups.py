"""Consumer groups, and how far each is behind."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Annotated

from pydantic import Field

from headrace.base.limits import MCP_ROWS, MCP_ROWS_MAX
from headrace.mcp.answers import Answer, Part, bounded, call, some
from headrace.mcp.desk import Desk
from headrace.mcp.plain import plain
from headrace.mcp.tools.topics import After, Limit, Query
from headrace.net.client.looks import look, traffic
from headrace.operations.groups import Described, Share, described


class GroupRow(Part):
    """One group."""

    group: str
    state: str
    kind: str
    lag: int = Field(description="Records that it has still to read, where it has committed something.")


class Groups(Answer):
    """Some groups by name."""

    total: int
    groups: list[GroupRow]
    after: str | None = Field(description="For the next page; null: there is none.")
    command: str


class Member(Part):
    """One member."""

    id: str
    client_id: str
    instance_id: str | None
    host: str
    partitions: int = Field(description="How many it reads.")


class ShareRow(Part):
    """A partition that the group reads."""

    topic: str
    partition: int
    committed: int | None
    end: int | None
    lag: int | None = Field(description="Null: nothing is committed, or nobody tells the end.")
    member: str | None


class Group(Answer):
    """One group: its members, and its partitions, those that lag most first."""

    group: str
    state: str
    protocol: str
    coordinator: int
    lag: int
    members: list[Member]
    members_left_out: int
    partitions: list[ShareRow]
    partitions_left_out: int
    command: str


class GroupTools:
    """Tools for consumer groups."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def group_list(self, query: Query = "", after: After = "", limit: Limit = MCP_ROWS) -> Groups:
        """Consumer groups by name, a page at a time, with their state and lag."""
        now = await look(self._desk.cluster, at=asyncio.get_running_loop().time())
        lags = traffic(now, now).groups
        shown, total, follows = some(list(now.groups), str, query=query, after=after, limit=limit)
        rows = [
            GroupRow(group=plain(name), state=now.groups[name].state, kind=now.groups[name].kind, lag=lags[name].lag)
            for name in shown
        ]
        asks = [call("group_list", query=query or None, after=follows, limit=limit)] if follows else []
        worst = max(shown, key=lambda name: lags[name].lag, default=None)
        asks += [call("group_describe", group=worst)] if worst is not None else []
        command = self._desk.command("group", "list")
        return Groups(total=total, groups=rows, after=follows, command=command, next=asks or [call("status")])

    async def group_describe(
        self, group: Annotated[str, Field(description="The group's name.")], limit: Limit = MCP_ROWS
    ) -> Group:
        """One group: its members, and of each partition the committed offset, the end, the lag and the reader."""
        found = await described(self._desk.cluster, group)
        most = bounded(limit, MCP_ROWS_MAX)
        counts = Counter(share.owner.id for share in found.shares if share.owner is not None)
        shares = sorted(found.shares, key=lambda each: (-(each.lag or 0), each.topic, each.partition))
        return Group(
            group=plain(found.view.name),
            state=found.view.state,
            protocol=plain(found.view.protocol),
            coordinator=int(found.view.coordinator),
            lag=found.lag,
            members=[
                Member(
                    id=plain(each.id),
                    client_id=plain(each.client_id),
                    instance_id=None if each.instance_id is None else plain(each.instance_id),
                    host=plain(each.host),
                    partitions=counts[each.id],
                )
                for each in found.view.members[:most]
            ],
            members_left_out=max(0, len(found.view.members) - most),
            partitions=[_row(each) for each in shares[:most]],
            partitions_left_out=max(0, len(shares) - most),
            command=self._desk.command("group", "describe", group),
            next=_asks(found, shares),
        )


def _row(share: Share) -> ShareRow:
    return ShareRow(
        topic=plain(share.topic),
        partition=share.partition,
        committed=share.committed,
        end=share.end,
        lag=share.lag,
        member=None if share.owner is None else plain(share.owner.id),
    )


def _asks(found: Described, shares: list[Share]) -> list[str]:
    """Things to look at next: a group without members, one partition that nobody reads, or one that lags."""
    if not found.lag:
        return [call("top")]
    worst = shares[0]
    asks = [call("top", seconds=5), call("topic_describe", topic=worst.topic), call("doctor")]
    if not found.view.members:
        return ["It has no members: a person starts its consumers.", *asks]
    if worst.owner is None:
        return [f"Nobody reads {worst.topic}-{worst.partition}: look at the members' subscriptions.", *asks]
    where = call("consume", topic=worst.topic, partition=worst.partition, at="offset", offset=worst.committed, count=1)
    return [*asks, where]
