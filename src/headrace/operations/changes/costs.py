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
    """The partitions that go to one target."""

    target: int
    """-1: the controller has not chosen one."""
    partitions: int
    bytes: int
    """Bytes of those that a broker tells of."""
    unknown: int
    """Number of those that none tells of."""


class Cost(NamedTuple):
    """The cost of some moves, as far as it is known before."""

    bytes_left: Mapping[AskedView, int | None]
    """Bytes to export or to copy; None: no broker tells."""
    pause: Pause | None
    """None: no move through the store has finished."""

    @property
    def by_target(self) -> list[Share]:
        """Targets in order."""
        found: dict[int, Share] = {}
        for one, left in self.bytes_left.items():
            _, partitions, known, unknown = found.get(one.target, Share(one.target, 0, 0, 0))
            found[one.target] = Share(one.target, partitions + 1, known + (left or 0), unknown + (left is None))
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
        if not one.is_handed_over and one.source >= 0:
            sources.setdefault(one.source, []).append((one.topic, one.partition))
    logs, _ = await sizes(cluster, sources)
    unexported = await _unexported(cluster, sorted({one.topic for one in going if one.is_handed_over}))
    left = {one: (unexported if one.is_handed_over else logs).get((one.topic, one.partition)) for one in going}
    return Cost(left, pause_of((await under_way(cluster))[1]))


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
        many = "1 partition" if share.partitions == 1 else f"{share.partitions:,} partitions"
        if share.unknown == share.partitions:
            found.append(f"{many} would go to {to}; no broker tells how many bytes.")
        else:
            rest = f", beside {share.unknown:,} of unknown size" if share.unknown else ""
            found.append(f"{many} would go to {to}, with {size(share.bytes)} to export or to copy{rest}.")
    if cost.waits:
        found.append(f"Writes to a partition wait while it is handed over. {waited(cost.pause)}")
    return found


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
