"""One topic: its partitions as strips, who leads and copies each, and its configs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from starlette.requests import Request

from headrace.base.ids import NO_LEADER, PartitionIndex
from headrace.console.lists import Listing, listing
from headrace.console.page import NotFoundError, Page, linked
from headrace.console.state import Console, Seen
from headrace.net.client.admin import Admin, ConfigValue
from headrace.net.client.cluster import Cluster
from headrace.net.client.looks import Place
from headrace.net.client.offsets import EARLIEST, EARLIEST_LOCAL, list_offsets
from headrace.net.client.view import PartitionView, TopicView
from headrace.operations.histories import History

SOURCES: Final = {
    "DYNAMIC_TOPIC_CONFIG": "set on this topic",
    "DYNAMIC_BROKER_CONFIG": "set on a broker",
    "DYNAMIC_DEFAULT_BROKER_CONFIG": "set for all brokers",
    "STATIC_BROKER_CONFIG": "a broker's file or command",
    "DEFAULT_CONFIG": "default",
}
"""Kafka's names for sources, in words."""


class Strip(NamedTuple):
    """One partition, from its first offset to its end, and where its records lie."""

    part: PartitionView
    start: int | None
    """The first offset; None: its leader did not answer."""
    local: int | None
    """The first offset in the leader's log: those below are read from the store."""
    durable: int | None
    """The offset behind the last durable one; None: it has no history."""
    end: int | None
    size: int | None

    @property
    def pieces(self) -> list[tuple[str, float, float, str]]:
        """For each piece its kind, begin and width in percent, and a text. `cold` is in the store alone, `warm` in the
        store and the log, `hot` in the log alone.
        """
        if self.start is None or self.end is None or self.end <= self.start:
            return []
        local = self.start if self.local is None else self.local
        durable = self.start if self.durable is None else min(max(self.durable, self.start), self.end)
        cold = max(self.start, min(local, durable))
        whole = self.end - self.start
        bounds = (
            ("cold", self.start, cold, "in the store alone"),
            ("warm", cold, durable, "in the store and in the log"),
            ("hot", durable, self.end, "in the log alone"),
        )
        return [
            (
                kind,
                round(100 * (low - self.start) / whole, 2),
                round(100 * (high - low) / whole, 2),
                f"offsets {low:,} to {high - 1:,}: {text}",
            )
            for kind, low, high, text in bounds
            if high > low
        ]

    @property
    def told(self) -> str:
        """The strip in words."""
        return "; ".join(text for *_, text in self.pieces) or "it has no records"


def name_of(request: Request) -> str:
    name: str = request.path_params["name"]
    return name


def found(console: Console, name: str) -> TopicView:
    """The topic of this name. Raises NotFoundError."""
    seen = console.seen.value
    assert seen is not None, "no part is made without it"
    if (topic := seen.look.view.topics.get(name)) is None:
        raise NotFoundError(f"There is no topic '{name}'; make it with 'headrace topic create {name}'.")
    return topic


async def values(console: Console, request: Request) -> dict[str, Any]:
    topic, seen = found(console, name_of(request)), console.seen.value
    assert seen is not None, "found in it"
    sizes = console.sizes.value
    held = {} if sizes is None else sizes.by_place
    some, durable, readers = await asyncio.to_thread(_listed, request, topic, seen, held, console.histories.value or ())
    ends = {part.index: seen.look.ends.get((topic.name, int(part.index))) for part in some.rows}
    return {
        "topic": topic,
        "strips": await strips(console.cluster, topic.name, some.rows, ends, durable, held),
        "list": some,
        "size": None if sizes is None else sizes.by_topic.get(topic.name),
        "rate": None if seen.traffic is None else seen.traffic.topics.get(topic.name),
        "readers": readers,
        "has_history": bool(durable),
        "live": {int(broker.id) for broker in seen.look.brokers if not broker.fenced},
        "linked": linked,
    }


def _listed(
    request: Request, topic: TopicView, seen: Seen, sizes: Mapping[Place, int], histories: Sequence[History]
) -> tuple[Listing[PartitionView], dict[int, int], list[str]]:
    """The page of partitions that is asked for, the offsets behind the last durable ones, and the groups that read the
    topic. Runs in a thread: there may be very many partitions.
    """
    durable = {each.partition: each.end + 1 for each in histories if each.topic == topic.name}
    keys: Mapping[str, Callable[[PartitionView], int]] = {
        "number": lambda part: part.index,
        "leader": lambda part: part.leader,
        "health": _lacking,
        "epoch": lambda part: part.leader_epoch,
        "end": lambda part: _known(seen.look.ends.get((topic.name, int(part.index)))),
        "durable": lambda part: durable.get(int(part.index), -1),
        "size": lambda part: sizes.get((topic.name, int(part.index)), -1),
    }
    some = listing(
        request, topic.partitions, name=lambda part: str(part.index), keys=keys, default="number", given="number"
    )
    groups = seen.look.groups.items()
    readers = sorted({group for group, each in groups if any(place[0] == topic.name for place in each.committed)})
    return some, durable, readers


def _lacking(part: PartitionView) -> int:
    """The replicas that are not in sync. Without a leader it is one more than all."""
    return len(part.replicas) + 1 if part.leader == NO_LEADER else len(part.replicas) - len(part.isr)


def _known(offset: int | None) -> int:
    return -1 if offset is None else offset


async def strips(
    cluster: Cluster,
    name: str,
    parts: Sequence[PartitionView],
    ends: Mapping[PartitionIndex, int | None],
    durable: Mapping[int, int],
    sizes: Mapping[Place, int],
) -> list[Strip]:
    """The strips of these partitions. Values that no leader tells are None. `durable`: the offsets behind the last
    durable ones.
    """
    online = [part.index for part in parts if ends.get(part.index) is not None]
    starts, local = await asyncio.gather(
        list_offsets(cluster, name, online, EARLIEST), list_offsets(cluster, name, online, EARLIEST_LOCAL)
    )
    return [
        Strip(
            part=part,
            start=int(starts[part.index].offset) if part.index in starts else None,
            local=int(local[part.index].offset) if part.index in local else None,
            durable=durable.get(int(part.index)),
            end=ends.get(part.index),
            size=sizes.get((name, int(part.index))),
        )
        for part in parts
    ]


async def configs(console: Console, request: Request) -> dict[str, Any]:
    """The effective configs: those that are not the default first."""
    told: Sequence[ConfigValue] = await Admin(console.cluster).topic_configs(name_of(request))
    return {
        "topic_name": name_of(request),
        "changed": [config for config in told if not config.is_default],
        "defaults": [config for config in told if config.is_default],
        "sources": SOURCES,
        "unknown": "",
    }


def feeds(console: Console) -> tuple[Any, ...]:
    return (console.seen, console.sizes, console.histories)


PAGE: Final = Page(
    path="/topics/{name}",
    template="parts/topic.html",
    title=name_of,
    feeds=feeds,
    values=values,
    frame="topic.html",
    once=configs,
)
