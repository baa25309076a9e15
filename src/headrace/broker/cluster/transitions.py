"""Fences and unfences brokers with very many partitions: these follow in slices, each an entry of its own.

Promises:
- A broker's coming or going is one entry where it holds up to SETTLED_PER_ENTRY_MAX partitions.
- Where it holds more, SETTLED_PER_SLICE_MAX are settled in that entry and in each that follows. Partitions that it
  leads come before the others.
- No entry holds the event loop for long, and each partition changes once, leader and ISR together.
- A broker registers only once the fencing of its last incarnation is settled, so that nothing is served under an old
  leader epoch.
- The next controller finishes what a controller left undone.

It never decides: `controller.brokers` does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Any

from headrace.base.ids import BrokerId, TopicPartition
from headrace.base.limits import (
    PARTITIONS_SEARCHED_PER_TURN_MAX,
    SETTLED_ALONE_MAX,
    SETTLED_PER_ENTRY_MAX,
    SETTLED_PER_SLICE_MAX,
    SLICES_AT_ONCE_MAX,
)
from headrace.broker.cluster.driver import MetadataDriver
from headrace.controller.asks.brokers import RegisterBroker
from headrace.controller.brokers import fence_broker, lose_disk, settle_broker, unfence_broker
from headrace.controller.decision import Decision, Refusal, decided
from headrace.controller.elections import PartitionTest, changed_at_most, only_copy, unsettled
from headrace.metadata.image import MetadataImage
from headrace.metadata.values import BrokerImage, PartitionImage, TopicImage
from headrace.wire.errors import ErrorCode

Wanted = Callable[[MetadataImage, BrokerId], PartitionTest]


class BrokerTransitions:
    """The transitions of one leadership. All methods raise as `MetadataDriver.submit` does; `go_on` does what was left
    undone then."""

    def __init__(self, metadata: MetadataDriver) -> None:
        self._metadata = metadata
        self._settled: dict[BrokerId, BrokerImage] = {}
        """Large brokers, as the image had them when the last finished work on each began. Where the image has another
        object for a broker now, work may be left."""
        self._turn = asyncio.Lock()
        """One broker at a time."""

    def is_large(self, broker: BrokerId) -> bool:
        """Whether its coming or going may change more partitions than go into one entry."""
        return changed_at_most(self._metadata.image, broker) > SETTLED_PER_ENTRY_MAX

    def may_come_at_once(self, broker: BrokerId) -> bool:
        """Whether a broker that is alone is registered and unfenced in one entry."""
        return changed_at_most(self._metadata.image, broker) <= SETTLED_ALONE_MAX

    async def fence(self, known: BrokerImage, *, still: Callable[[], bool] = lambda: True) -> Refusal | None:
        """Return once the broker is fenced and leads nothing that others could lead. Refused where it is not to be
        fenced any more: `still` is asked when that is decided."""

        def decide(image: MetadataImage, **which: Any) -> Decision[Refusal | None]:
            if not still():
                return decided(Refusal(ErrorCode.INVALID_REQUEST, f"Broker {known.id} is not to be fenced any more."))
            return fence_broker(image, **which)

        return await self._set(decide, known, fenced=True)

    async def unfence(self, known: BrokerImage) -> Refusal | None:
        """Return once the broker is unfenced and leads what no other could."""
        return await self._set(unfence_broker, known, fenced=False)

    async def _set(
        self, decide: Callable[..., Decision[Refusal | None]], known: BrokerImage, *, fenced: bool
    ) -> Refusal | None:
        one = partial(decide, broker_id=known.id, broker_epoch=known.epoch)
        if not self.is_large(known.id):
            return await self._metadata.submit(one)
        first = await self._found(partial(unsettled, fenced=fenced), known.id)
        refusal = await self._metadata.submit(partial(one, among=first[:SETTLED_PER_SLICE_MAX]))
        return refusal if refusal is not None else await self.settle(known.id)

    async def release(self, broker: BrokerId) -> Refusal | None:
        """Change the partitions of a large, stopped broker before it is removed, so that its removal changes little."""
        known = self._metadata.image.brokers.get(broker)
        if known is None or not self.is_large(broker):
            return None
        from headrace.controller.removal import holds, release_copies

        await self.settle(broker)
        return await self._in_slices(partial(release_copies, broker_id=broker, broker_epoch=known.epoch), holds, broker)

    async def make_way(self, ask: RegisterBroker) -> None:
        """Settle a large broker before it registers again, so that its registration changes little."""
        known = self._metadata.image.brokers.get(ask.broker_id)
        if known is None or known.incarnation == ask.incarnation or not self.is_large(known.id):
            return
        await self.fence(known)
        await self.settle(known.id)
        if known.directory_id != ask.directory_id:
            await self._in_slices(partial(lose_disk, broker_id=known.id, broker_epoch=known.epoch), only_copy, known.id)

    async def go_on(self) -> None:
        """Go on with the brokers that are left, even where the original caller has given up."""
        for broker, known in sorted(self._metadata.image.brokers.items()):
            if self.is_large(broker) and self._settled.get(broker) is not known:
                await self.settle(broker)

    async def settle(self, broker: BrokerId) -> Refusal | None:
        """Return once every partition of the broker is as it must be for a fenced, or a live, broker."""
        known = self._metadata.image.brokers.get(broker)
        if known is None or not self.is_large(broker):
            return None
        decide = partial(settle_broker, broker_id=broker, broker_epoch=known.epoch)
        refusal = await self._in_slices(decide, unsettled, broker)
        self._settled[broker] = known
        return refusal

    async def _in_slices(
        self, decide: Callable[..., Decision[Refusal | None]], wanted: Wanted, broker: BrokerId
    ) -> Refusal | None:
        """Change the found partitions in slices. None joins them meanwhile: a fenced broker joins no ISR. A partition
        with a leader loses it when another broker goes, and that is settled by itself."""
        async with self._turn:
            found = await self._found(wanted, broker)
            slices = [found[at : at + SETTLED_PER_SLICE_MAX] for at in range(0, len(found), SETTLED_PER_SLICE_MAX)]
            for at in range(0, len(slices), SLICES_AT_ONCE_MAX):
                refusal = await self._together(decide, slices[at : at + SLICES_AT_ONCE_MAX])
                if refusal is not None:  # it is another incarnation by now, which was settled before it came
                    return refusal
        return None

    async def _together(
        self, decide: Callable[..., Decision[Refusal | None]], slices: Iterable[list[TopicPartition]]
    ) -> Refusal | None:
        """Submit the slices together. Each is decided on the state after those before it; none waits for these to be
        committed."""
        work = [asyncio.ensure_future(self._metadata.submit(partial(decide, among=among))) for among in slices]
        try:
            return next((refusal for refusal in await asyncio.gather(*work) if refusal is not None), None)
        finally:
            for each in work:
                each.cancel()
            await asyncio.wait(work)

    async def _found(self, wanted: Wanted, broker: BrokerId) -> list[TopicPartition]:
        """Return the partitions to change, as of now, those that the broker leads first. The search runs in turns of
        the loop: a thread would hold the interpreter longer than each turn."""
        image = self._metadata.image
        is_wanted, everywhere = wanted(image, broker), _everywhere(image)
        led, others = list[TopicPartition](), list[TopicPartition]()
        while some := list(islice(everywhere, PARTITIONS_SEARCHED_PER_TURN_MAX)):
            for topic, partition in some:
                if is_wanted(partition):
                    (led if partition.leader == broker else others).append(TopicPartition(topic.id, partition.index))
            await asyncio.sleep(0)
        return led + others


def _everywhere(image: MetadataImage) -> Iterator[tuple[TopicImage, PartitionImage]]:
    """Not sorted, for that would take a while."""
    return ((topic, partition) for topic in image.topics.values() for partition in topic.partitions)
