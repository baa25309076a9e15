"""The cost of moves, as far as it is known before: bytes, partitions by target, and how long writes wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

from headrace.base.limits import COST_ASKS_AT_ONCE_MAX, COST_TOPICS_MEASURED_MAX
from headrace.net.client.cluster import Cluster
from headrace.net.client.disks import sizes
from headrace.net.client.moves import measured, under_way
from headrace.wire.moves import AskedView, FinishedView


class Pause(NamedTuple):
    """The time in which writes waited, in the finished moves that brokers remember."""

    moves: int
    median_ms: int
    most_ms: int


class Share(NamedTuple):
    """The partitions that go to one target, or that it leads from then on with the copy that it has."""

    target: int
    """-1: the controller has not chosen one."""
    partitions: int
    bytes: int
    """Bytes of those that a broker tells of."""
    unknown: int
    """Number of those that none tells of."""
    led: int
    """Number of those that it has a copy of already, and only leads from then on."""


class Cost(NamedTuple):
    """The cost of some moves, as far as it is known before."""

    bytes_left: Mapping[AskedView, int | None]
    """Bytes to export or to copy, 0 where the target has a copy already; None: no broker tells."""
    pause: Pause | None
    """None: no move through the store has finished."""

    @property
    def by_target(self) -> list[Share]:
        """Targets in order."""
        found: dict[int, Share] = {}
        for one, left in self.bytes_left.items():
            share = found.get(one.target, Share(one.target, 0, 0, 0, 0))
            found[one.target] = Share(
                one.target,
                share.partitions + 1,
                share.bytes + (left or 0),
                share.unknown + (left is None),
                share.led + one.has_copy,
            )
        return [found[target] for target in sorted(found)]

    @property
    def waits(self) -> bool:
        """Whether writes wait at all: they do for what is handed over through the store."""
        return any(one.is_handed_over for one in self.bytes_left)


def pause_of(finished: Sequence[FinishedView]) -> Pause | None:
    waited = [one.pause_ms for one in finished]
    return Pause(len(waited), round(median(waited)), max(waited)) if waited else None


async def cost_of(cluster: Cluster, going: Sequence[AskedView]) -> Cost:
    """The cost of these moves. Of very many topics some are not measured. Raises ClientError."""
    sources: dict[int, list[tuple[str, int]]] = {}
    for one in sorted(going):
        if not one.is_handed_over and not one.has_copy and one.source >= 0:
            sources.setdefault(one.source, []).append((one.topic, one.partition))
    logs, _ = await sizes(cluster, sources)
    unexported = await _unexported(cluster, sorted({one.topic for one in going if one.is_handed_over}))

    def left(one: AskedView) -> int | None:
        known = unexported if one.is_handed_over else logs
        return 0 if one.has_copy else known.get((one.topic, one.partition))

    return Cost({one: left(one) for one in going}, pause_of((await under_way(cluster))[1]))


async def _unexported(cluster: Cluster, topics: Sequence[str]) -> dict[tuple[str, int], int]:
    """Bytes that are not in the store yet. Raises ClientError."""
    room = asyncio.Semaphore(COST_ASKS_AT_ONCE_MAX)

    async def of(topic: str) -> dict[tuple[str, int], int]:
        async with room:
            return {(topic, index): left for index, left in (await measured(cluster, topic, ())).items()}

    told = await asyncio.gather(*(of(topic) for topic in topics[:COST_TOPICS_MEASURED_MAX]))
    return {place: left for found in told for place, left in found.items()}


def told(cost: Cost, size: Callable[[int], str]) -> list[str]:
    """The cost in sentences. `size` writes a number of bytes."""
    found = []
    for share in cost.by_target:
        to = f"broker {share.target}" if share.target >= 0 else "brokers that are not chosen yet"
        going = share.partitions - share.led
        if going and share.unknown == going:
            found.append(f"{_many(going)} would go to {to}; no broker tells how many bytes.")
        elif going:
            rest = f", beside {share.unknown:,} of unknown size" if share.unknown else ""
            found.append(f"{_many(going)} would go to {to}, with {size(share.bytes)} to export or to copy{rest}.")
        if share.led:
            found.append(f"{_many(share.led)} would have {to} as the first to lead, which has a copy already.")
    if cost.waits:
        found.append(f"Writes to a partition wait while it is handed over. {waited(cost.pause)}")
    return found


def _many(partitions: int) -> str:
    return "1 partition" if partitions == 1 else f"{partitions:,} partitions"


def way_of(one: AskedView) -> str:
    """How a partition gets to its target, in words."""
    if one.has_copy:
        return "it has a copy already, and is the first to lead it"
    return "handed over through the store" if one.is_handed_over else "copied"


def waited(pause: Pause | None) -> str:
    """How long writes waited in the moves before, in a sentence."""
    if pause is None:
        return "No move has finished yet that could tell how long."
    if pause.moves == 1:
        return f"In the last move they waited {pause.median_ms:,} ms."
    return (
        f"In the last {pause.moves:,} moves they waited {pause.median_ms:,} ms at the median, and {pause.most_ms:,} ms "
        "at most."
    )
