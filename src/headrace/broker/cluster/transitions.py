"""Brokers that come and go, where they hold very many partitions: these follow in slices, each an entry of its own.

Promises: what a broker asks for by coming or going is one entry where it holds up to SETTLED_PER_ENTRY_MAX partitions;
where it holds more, SETTLED_PER_SLICE_MAX are settled in that entry and in each that follows, those that it leads
before the others; none holds the event loop for long, and each partition changes once, leader and ISR together. Brokers
register only once the fencing of the last incarnation is settled, so that nothing is served under an old leader epoch.
What a controller left undone the next one finishes. Never decides: `controller.brokers` does.
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
from headrace.controller.asks import RegisterBroker
from headrace.controller.brokers import (
    fence_broker,
    holds,
    lose_disk,
    release_copies,
    settle_broker,
    unfence_broker,
)
from headrace.controller.decision import Decision, Refusal, decided
from headrace.controller.elections import PartitionTest, only_copy, unsettled
from headrace.metadata.image import MetadataImage
from headrace.metadata.values import BrokerImage, PartitionImage, TopicImage
from headrace.wire.errors import ErrorCode

Wanted = Callable[[MetadataImage, BrokerId], PartitionTest]


class BrokerTransitions:
    """One leadership's. All raise as `MetadataDriver.submit` does; what was not done then is done by `go_on`."""

    def __init__(self, metadata: MetadataDriver) -> None:
        self._metadata = metadata
        self._left = {broker for broker in metadata.image.brokers if self.is_large(broker)}
        """Brokers of which something may be left to do: at first, of all that are large."""
        self._turn = asyncio.Lock()
        """One broker at a time."""

    def is_large(self, broker: BrokerId) -> bool:
        """Whether it holds more than goes into one entry."""
        return self._metadata.image.copies.get(broker, 0) > SETTLED_PER_ENTRY_MAX

    def may_come_at_once(self, broker: BrokerId) -> bool:
        """Whether a broker that is alone is registered and unfenced in one entry."""
        return self._metadata.image.copies.get(broker, 0) <= SETTLED_ALONE_MAX

    async def fence(self, known: BrokerImage, *, still: Callable[[], bool] = lambda: True) -> Refusal | None:
        """Once it is fenced and leads nothing that others could; refused where it is not `still` to be, which is asked
        when that is decided."""

        def decide(image: MetadataImage, **which: Any) -> Decision[Refusal | None]:
            if not still():
                return decided(Refusal(ErrorCode.INVALID_REQUEST, f"Broker {known.id} is not to be fenced any more."))
            return fence_broker(image, **which)

        return await self._set(decide, known, fenced=True)

    async def unfence(self, known: BrokerImage) -> Refusal | None:
        """Once it is unfenced and leads what nobody else could."""
        return await self._set(unfence_broker, known, fenced=False)

    async def _set(
        self, decide: Callable[..., Decision[Refusal | None]], known: BrokerImage, *, fenced: bool
    ) -> Refusal | None:
        one = partial(decide, broker_id=known.id, broker_epoch=known.epoch)
        if not self.is_large(known.id):
            return await self._metadata.submit(one)
        self._left.add(known.id)
        first = await self._found(partial(unsettled, fenced=fenced), known.id)
        refusal = await self._metadata.submit(partial(one, among=first[:SETTLED_PER_SLICE_MAX]))
        return refusal if refusal is not None else await self.settle(known.id)

    async def release(self, broker: BrokerId) -> Refusal | None:
        """Before a large broker that was stopped is removed, so that its removal changes little."""
        known = self._metadata.image.brokers.get(broker)
        if known is None or not self.is_large(broker):
            return None
        await self.settle(broker)
        return await self._in_slices(partial(release_copies, broker_id=broker, broker_epoch=known.epoch), holds, broker)

    async def make_way(self, ask: RegisterBroker) -> None:
        """Before a large broker registers anew, so that its registration changes little."""
        known = self._metadata.image.brokers.get(ask.broker_id)
        if known is None or known.incarnation == ask.incarnation or not self.is_large(known.id):
            return
        await self.fence(known)
        await self.settle(known.id)
        if known.directory_id != ask.directory_id:
            await self._in_slices(partial(lose_disk, broker_id=known.id, broker_epoch=known.epoch), only_copy, known.id)

    async def go_on(self) -> None:
        """With what is left."""
        for broker in sorted(self._left):
            await self.settle(broker)

    async def settle(self, broker: BrokerId) -> Refusal | None:
        """Once all that it holds is as it has to be where it is fenced, or where it lives."""
        known = self._metadata.image.brokers.get(broker)
        refusal = None
        if known is not None and self.is_large(broker):
            decide = partial(settle_broker, broker_id=broker, broker_epoch=known.epoch)
            refusal = await self._in_slices(decide, unsettled, broker)
        self._left.discard(broker)
        return refusal

    async def _in_slices(
        self, decide: Callable[..., Decision[Refusal | None]], wanted: Wanted, broker: BrokerId
    ) -> Refusal | None:
        """Nothing joins what was found: who is fenced joins no ISR, and what has a leader loses it by another's going,
        which is settled for itself."""
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
        """Each decides on what those before it did; none waits for these to be committed."""
        work = [asyncio.ensure_future(self._metadata.submit(partial(decide, among=among))) for among in slices]
        try:
            return next((refusal for refusal in await asyncio.gather(*work) if refusal is not None), None)
        finally:
            for each in work:
                each.cancel()
            await asyncio.wait(work)

    async def _found(self, wanted: Wanted, broker: BrokerId) -> list[TopicPartition]:
        """What is to be done as it is now, where the broker leads first: looked for in turns of the loop, for a thread
        beside it would hold the interpreter longer than each of these."""
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
