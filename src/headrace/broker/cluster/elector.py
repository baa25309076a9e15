"""The active controller's own work on leaders, besides fencing.

It moves leadership back to first replicas. Where a topic allows it and nobody leads, it elects a replica outside the
ISR. It finishes reassignments that no change of an ISR has finished, and gives moves with a dead target another one.

Promises:
- Nothing is decided while this node is not the controller.
- Leaders are moved back a few at a time, and only to brokers that have stayed for the time between two looks. By then
  clients have heard who led meanwhile.
- Every broker logs, at ERROR, that it leads a partition without being known to have all of it. The controller logs
  where nobody leads one any more.

Sources: KIP-106, Kafka's auto.leader.rebalance.enable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Container, Iterator, Mapping
from functools import partial

from headrace.base.errors import HeadraceError
from headrace.base.ids import NO_LEADER, BrokerId, PartitionIndex
from headrace.base.limits import (
    ELECTIONS_PER_ENTRY_MAX,
    ELECTOR_PAUSE_MS,
    LEADERS_MOVED_PER_ROUND_MAX,
    PARTITIONS_TOLD_MAX,
    TOPICS_TOLD_MAX,
)
from headrace.broker.cluster.driver import MetadataDriver
from headrace.broker.kit.tasks import OnBug, started, wait_for_event
from headrace.logs import get_logger
from headrace.metadata.configs import broker_value
from headrace.metadata.delta import ImageDelta
from headrace.metadata.values import BrokerImage, PartitionImage, TopicImage

log = get_logger(__name__)

WAIT_S_MIN = 0.001
"""Shorter waits are none at all on some clocks."""
LOST = "unclean election: records that only other replicas have are lost"
OFFLINE = "partitions have no leader: start a broker that is in sync with them ('headrace topic describe' names it)"
OFFLINE_SHARED = "partitions have no leader: start a broker, whichever it is"
ONLINE = "every partition has a leader again"


class Elector:
    """One per broker; at work only while its node is the active controller."""

    def __init__(
        self,
        *,
        node: BrokerId,
        configs: Mapping[str, str],
        metadata: MetadataDriver,
        storeless: Callable[[], Collection[BrokerId]] = tuple,
        on_bug: OnBug,
    ) -> None:
        """`storeless` returns the brokers to which nothing can be handed over."""
        self._node = node
        self._configs = configs
        self._metadata = metadata
        self._storeless = storeless
        self._on_bug = on_bug
        self._work: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        """Set when brokers or configs have changed since it was last cleared: a broker may lead that could not
        before."""
        self._unfenced_at: dict[BrokerId, float] = {}
        """When each broker was unfenced while this node ran, in the loop's time."""
        self.offline_partitions = sum(map(_offline, metadata.image.topics.values()))
        """The number of partitions without a leader, in the whole cluster."""
        metadata.subscribe(self._on_delta)

    def begin(self) -> None:
        """`ControllerWork`."""
        self._work = started(self._elect(), "elections", self._on_bug)

    def end(self) -> None:
        """`ControllerWork`."""
        if self._work is not None:
            self._work.cancel()
        self._work = None

    # electing

    async def _elect(self) -> None:
        loop = asyncio.get_running_loop()
        looked_at = loop.time()
        while True:
            self._changed.clear()
            wait_s = looked_at + self._number("leader.imbalance.check.interval.seconds") - loop.time()
            try:
                again = await self._elect_uncleanly() or await self._tend_moves()
                if wait_s <= 0:
                    recent = self._recent()
                    more = await self._finish_reassignments() or await self._balance(recent)
                    looked_at = looked_at if more else min(recent.values(), default=loop.time())
                    again = again or more
            except HeadraceError as error:
                log.info("elections are put off", reason=str(error))
                again = True
            if again:
                await asyncio.sleep(ELECTOR_PAUSE_MS / 1000)
            elif wait_s > 0:
                await wait_for_event(self._changed, max(wait_s, WAIT_S_MIN))

    async def _elect_uncleanly(self) -> bool:
        """Elect leaders outside the ISR. Returns whether there may be more to do."""
        if not self._metadata.image.topics:
            return False
        from headrace.controller.leaders import elect_uncleanly, unclean_topics

        if not unclean_topics(self._metadata.image, broker_configs=self._configs, node=self._node):
            return False
        decide = partial(
            elect_uncleanly,
            broker_configs=self._configs,
            node=self._node,
            elections_max=ELECTIONS_PER_ENTRY_MAX,
        )
        return await self._metadata.submit(decide) == ELECTIONS_PER_ENTRY_MAX

    async def _tend_moves(self) -> bool:
        """Let moves continue whose target is gone. Returns whether there may be more to do."""
        if not self._metadata.image.moves:
            return False
        from headrace.controller.moves import tend_moves

        tended = await self._metadata.submit(
            partial(tend_moves, moves_max=LEADERS_MOVED_PER_ROUND_MAX, unable=self._storeless())
        )
        if tended:
            log.warning("moves to brokers that are gone are aimed at others, or cancelled", partitions=tended)
        return tended == LEADERS_MOVED_PER_ROUND_MAX

    async def _finish_reassignments(self) -> bool:
        """Finish reassignments that could be finished when no leader proposed an ISR. Returns whether there may be more
        to do."""
        from headrace.controller.reassignments import finish_reassignments

        decide = partial(finish_reassignments, partitions_max=LEADERS_MOVED_PER_ROUND_MAX)
        return await self._metadata.submit(decide) == LEADERS_MOVED_PER_ROUND_MAX

    def _recent(self) -> dict[BrokerId, float]:
        """Return the brokers that were unfenced within the last interval, with the time."""
        now_s, interval_s = asyncio.get_running_loop().time(), self._number("leader.imbalance.check.interval.seconds")
        return {broker: at for broker, at in self._unfenced_at.items() if at + interval_s - now_s > 0}

    async def _balance(self, recent: Container[BrokerId]) -> bool:
        """Move leadership back to first replicas. Returns whether there may be more to do."""
        if not self._boolean("auto.leader.rebalance.enable"):
            return False
        from headrace.controller.leaders import balance_leaders

        decide = partial(balance_leaders, recent=recent, elections_max=LEADERS_MOVED_PER_ROUND_MAX)
        moved = await self._metadata.submit(decide)
        if moved:
            log.info("partitions are led by their first replica again", partitions=moved)
        return moved == LEADERS_MOVED_PER_ROUND_MAX

    def _number(self, key: str) -> int:
        return broker_value(self._metadata.image, self._configs, key, node=self._node).number()

    def _boolean(self, key: str) -> bool:
        return broker_value(self._metadata.image, self._configs, key, node=self._node).boolean()

    # changes of the image

    def _on_delta(self, delta: ImageDelta) -> None:
        before, after = delta.before, delta.after
        changed = before.brokers != after.brokers or before.broker_configs != after.broker_configs
        if before.brokers is not after.brokers:
            now_s = asyncio.get_running_loop().time()
            self._unfenced_at.update((broker.id, now_s) for broker in _unfenced(delta))
        lost: dict[str, list[PartitionIndex]] = {}
        offline: dict[str, list[PartitionIndex]] = {}
        for topic, now in _elections(delta):
            if now.leader == NO_LEADER:
                offline.setdefault(topic.name, []).append(now.index)
            elif now.leader == self._node and now.is_unclean:
                lost.setdefault(topic.name, []).append(now.index)
        were_offline = self.offline_partitions
        self.offline_partitions += sum(_offline(now) - _offline(was) for was, now in delta.changed_topics())
        if lost:
            _tell(LOST, lost)
        if self._work is not None:
            if offline and (after.live_brokers() or not after.shares_logs):  # else this broker was the last, and stops
                _tell(OFFLINE_SHARED if after.shares_logs else OFFLINE, offline)
            if were_offline and not self.offline_partitions:
                log.info(ONLINE)
            if changed or offline or any(_reconfigured(pair) for pair in delta.changed_topics()):
                self._changed.set()


def _offline(topic: TopicImage | None) -> int:
    """Return how many of its partitions nobody leads."""
    return 0 if topic is None else sum(partition.leader == NO_LEADER for partition in topic.partitions)


def _elections(delta: ImageDelta) -> Iterator[tuple[TopicImage, PartitionImage]]:
    """Iterate over the partitions whose leader changed."""
    for before, after in delta.changed_topics():
        if before is not None and after is not None:
            for was, now in zip(before.partitions, after.partitions, strict=False):
                if was is not now and was.leader != now.leader:
                    yield after, now


def _unfenced(delta: ImageDelta) -> Iterator[BrokerImage]:
    """Iterate over brokers that serve from now on, for the first time or again."""
    for broker in delta.after.brokers.values():
        known = delta.before.brokers.get(broker.id)
        if not broker.fenced and (known is None or known.fenced or known.epoch != broker.epoch):
            yield broker


def _reconfigured(pair: tuple[TopicImage | None, TopicImage | None]) -> bool:
    before, after = pair
    return before is not None and after is not None and before.configs is not after.configs


def _tell(event: str, partitions: Mapping[str, list[PartitionIndex]]) -> None:
    """Log a line for each topic."""
    for topic in sorted(partitions)[:TOPICS_TOLD_MAX]:
        found = partitions[topic]
        log.error(event, topic=topic, partitions=found[:PARTITIONS_TOLD_MAX], count=len(found))
    if len(partitions) > TOPICS_TOLD_MAX:
        log.error(event, more_topics=len(partitions) - TOPICS_TOLD_MAX)
