"""Recovers partitions from durable history alone, for `headrace durable recover` (`wire.durable`).

Promises: nothing is given up before this broker has read the end of the history that is used. Where it cannot, the
partition is left as it is, and the answer says so. The controller decides (`controller.recovery`). The new leader reads
that end again, and does not lead before (`broker.partitions.logs.durable_wins`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from headrace.base.errors import HeadraceError
from headrace.base.ids import BrokerId, PartitionIndex, TopicPartition
from headrace.broker.cluster.control import Control
from headrace.broker.partitions.logs.frontiers import Frontiers
from headrace.controller.asks.history import RecoverPartitions
from headrace.controller.decision import Refusal
from headrace.controller.recovery import RecoveryOutcome, RecoveryWish
from headrace.metadata.image import MetadataImage
from headrace.storage.tier.beginnings import DAMAGE


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryView:
    """One partition, as the answer shows it."""

    topic: str
    partition: int
    replicas: tuple[int, ...]
    target: int
    end_offset: int
    refusal: str = ""
    """Empty: it is done, or would be."""
    warning: str = ""
    """The part of its history that cannot be used."""

    @classmethod
    def of(cls, outcome: RecoveryOutcome) -> RecoveryView:
        return cls(
            topic=outcome.topic,
            partition=outcome.partition,
            replicas=outcome.replicas,
            target=outcome.target,
            end_offset=outcome.end_offset,
            refusal="" if outcome.refusal is None else outcome.refusal.message,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """The result of a wish."""

    partitions: tuple[RecoveryView, ...] = ()
    led: int = 0
    """The number of other partitions of the topic, which have leaders."""
    error: str = ""
    """Why nothing of it could be done."""


class Recovering:
    """One per broker that has a durable store. Loop-only."""

    def __init__(
        self, *, node: BrokerId, image: Callable[[], MetadataImage], control: Control, frontiers: Frontiers
    ) -> None:
        self._node = node
        self._image = image
        self._control = control
        self._frontiers = frontiers

    async def recover(self, wish: RecoveryWish, *, execute: bool) -> Recovered:
        """Recover partitions with `execute`; else only report what would be done."""
        planned = await self._control.submit(RecoverPartitions(wish=wish, validate_only=True))
        if isinstance(planned, Refusal):
            return Recovered(error=planned.message)
        views = await asyncio.gather(*(self._looked_at(RecoveryView.of(one)) for one in planned.outcomes))
        there = tuple(PartitionIndex(view.partition) for view in views if not view.refusal)
        if execute and there:
            done = await self._control.submit(RecoverPartitions(wish=replace(wish, partitions=there)))
            if isinstance(done, Refusal):
                return Recovered(error=done.message)
            views = _with_what_was_done(views, done.outcomes)
        return Recovered(partitions=tuple(views), led=planned.led)

    async def _looked_at(self, view: RecoveryView) -> RecoveryView:
        """Return the view with what this broker finds at the end of the partition's history."""
        image = self._image()
        topic = image.topic(view.topic)
        if view.refusal or topic is None:
            return view
        try:
            await self._frontiers.read(image.durable(TopicPartition(topic.id, PartitionIndex(view.partition))))
        except DAMAGE as error:
            warning = f"its history cannot be gone on from without loss of what it tells of producers: {error}"
            return replace(view, warning=warning)
        except (HeadraceError, OSError) as error:
            refusal = (
                f"Broker {self._node} cannot read durable history of {view.topic}-{view.partition} ({error}): it is "
                "left as it is; see that the store (durable.url) can be reached, and has all of its objects."
            )
            return replace(view, target=-1, refusal=refusal)
        return view


def _with_what_was_done(views: Sequence[RecoveryView], outcomes: Sequence[RecoveryOutcome]) -> list[RecoveryView]:
    """Return the views with the results, which may differ from what was planned shortly before."""
    done = {outcome.partition: RecoveryView.of(outcome) for outcome in outcomes}
    return [
        view if (now := done.get(PartitionIndex(view.partition))) is None else replace(now, warning=view.warning)
        for view in views
    ]
