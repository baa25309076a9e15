"""Gives replicas to partitions that lack them, while this node is the active controller.

It does so as brokers come, as leaders come back, and as replicas that were added before get in sync.

Promises: at most REPLICAS_GROWN_AT_ONCE_MAX at a time, so that a new broker need not copy a whole cluster at once. None
of these waits for a broker that is down. The search runs in slices of a turn of the loop, and only after a change that
may have made work. `controller.growth` decides.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from functools import partial

from headrace.base.errors import HeadraceError
from headrace.base.ids import NO_LEADER, BrokerId, TopicPartition
from headrace.base.limits import ELECTOR_PAUSE_MS, PARTITIONS_SEARCHED_PER_TURN_MAX, REPLICAS_GROWN_AT_ONCE_MAX
from headrace.broker.cluster.driver import MetadataDriver
from headrace.broker.kit.tasks import OnBug, started
from headrace.controller.lacking import is_growing, lacks_replicas
from headrace.logs import get_logger
from headrace.metadata.delta import ImageDelta
from headrace.metadata.image import MetadataImage
from headrace.metadata.values import PartitionImage, TopicImage

log = get_logger(__name__)


class Grower:
    """One per broker; at work only while its node is the active controller."""

    def __init__(self, *, metadata: MetadataDriver, on_bug: OnBug) -> None:
        self._metadata = metadata
        self._on_bug = on_bug
        self._work: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        """Something under way may be over, or there may be more to find."""
        self._look = True
        """True: more partitions than the waiting ones may lack replicas."""
        self._waiting: deque[TopicPartition] = deque()
        """Partitions that were found, and not begun."""
        self._under_way: set[TopicPartition] = set()
        metadata.subscribe(self._on_delta)

    def begin(self) -> None:
        """`ControllerWork`."""
        self._look = True
        self._work = started(self._grow(), "growth of replicas", self._on_bug)

    def end(self) -> None:
        """`ControllerWork`."""
        if self._work is not None:
            self._work.cancel()
        self._work = None

    async def _grow(self) -> None:
        while True:
            self._woken.clear()
            try:
                if self._look:
                    self._look = False
                    await self._find()
                await self._begin()
            except HeadraceError as error:
                log.info("adding replicas is put off", reason=str(error))
                self._look = True
                await asyncio.sleep(ELECTOR_PAUSE_MS / 1000)
                continue
            await self._woken.wait()

    async def _find(self) -> None:
        """Find the partitions that lack replicas, or are being given some, in the image as it is now, or as it becomes
        meanwhile."""
        image = self._metadata.image
        live = _live(image)
        self._waiting.clear()
        self._under_way.clear()
        for turn, (topic, partition) in enumerate(image.all_partitions(), start=1):
            if lacks_replicas(topic, partition, live):
                self._waiting.append(TopicPartition(topic.id, partition.index))
            elif topic.desired_replicas and is_growing(partition, live):
                self._under_way.add(TopicPartition(topic.id, partition.index))
            if turn % PARTITIONS_SEARCHED_PER_TURN_MAX == 0:
                await asyncio.sleep(0)

    async def _begin(self) -> None:
        """Begin as many as there is room for."""
        if not self._waiting and not self._under_way:
            return
        from headrace.controller.growth import grow_replicas

        while True:
            over = self._under_way - self._growing(self._under_way)
            self._under_way -= over
            self._waiting.extend(sorted(filter(self._lacks, over)))  # a broker that came meanwhile may be added now
            room = REPLICAS_GROWN_AT_ONCE_MAX - len(self._under_way)
            if room <= 0 or not self._waiting:
                return
            chosen = [self._waiting.popleft() for _ in range(min(room, len(self._waiting)))]
            grown = await self._metadata.submit(partial(grow_replicas, among=chosen))
            self._under_way |= {*grown, *self._growing(chosen)}
            if grown:
                log.info("partitions get more replicas", partitions=len(grown), waiting=len(self._waiting))

    def _lacks(self, key: TopicPartition) -> bool:
        image = self._metadata.image
        topic, known = image.topics.get(key.topic_id), image.partition(key)
        return topic is not None and known is not None and lacks_replicas(topic, known, _live(image))

    def _growing(self, among: Iterable[TopicPartition]) -> set[TopicPartition]:
        image = self._metadata.image
        live = _live(image)
        return {key for key in among if (known := image.partition(key)) is not None and is_growing(known, live)}

    # changes of the image

    def _on_delta(self, delta: ImageDelta) -> None:
        if self._work is None:
            return
        if delta.before.brokers != delta.after.brokers or any(map(_may_lack, delta.changed_topics())):
            self._look = True
            self._woken.set()
        elif self._under_way - self._growing(self._under_way):
            self._woken.set()


def _live(image: MetadataImage) -> set[BrokerId]:
    return {broker.id for broker in image.live_brokers()}


def _may_lack(pair: tuple[TopicImage | None, TopicImage | None]) -> bool:
    """Whether a partition may get replicas that could not before. It is new, has lost some, is to have more, has a
    leader again, or is not handed over any more."""
    before, after = pair
    if after is None:
        return False
    if before is None or len(before.partitions) != len(after.partitions):
        return after.desired_replicas > after.replication_factor
    if before.desired_replicas < after.desired_replicas:
        return True
    return any(
        was is not now and now.replication_factor < after.desired_replicas and _is_freed(was, now)
        for was, now in zip(before.partitions, after.partitions, strict=True)
    )


def _is_freed(was: PartitionImage, now: PartitionImage) -> bool:
    return (
        len(now.replicas) < len(was.replicas)
        or was.leader == NO_LEADER != now.leader
        or (was.move is not None and now.move is None)
    )
