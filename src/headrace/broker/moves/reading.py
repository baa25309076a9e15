"""Whether brokers read the durable store: asked before anything is handed over to them.

Promises: every question has an answer in time. A broker that does not answer is taken for one that cannot read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final

from headrace.base.errors import CorruptData, HeadraceError
from headrace.base.ids import BrokerId, TopicPartition
from headrace.base.limits import MOVE_READS_MS_MAX
from headrace.net.client.errors import ClientError
from headrace.wire.moves import READS, MoveRequest

if TYPE_CHECKING:
    from headrace.base.addresses import Address
    from headrace.broker.durable.history import History
    from headrace.controller.moving import MoveOutcome, UnableBroker
    from headrace.metadata.image import MetadataImage
    from headrace.metadata.segments import SegmentDescriptor
    from headrace.net.client.security.settings import ClientSecurity

NO_STORE: Final = "it has no durable store (durable.url)"


class Readers:
    """Asks brokers. One per broker."""

    def __init__(
        self,
        node: BrokerId,
        image: Callable[[], MetadataImage],
        history: History | None,
        address_of: Callable[[BrokerId], Address | None],
        security: ClientSecurity,
    ) -> None:
        """`history`: None: this broker has no durable store. `address_of` gives a broker's address, where that is
        known."""
        self._node = node
        self._image = image
        self._history = history
        self._address_of = address_of
        self._security = security

    async def unable(self, outcomes: Iterable[MoveOutcome]) -> list[UnableBroker]:
        """Return those of the targets of hand-overs that cannot read the store."""
        from headrace.controller.moving import UnableBroker

        asked: dict[BrokerId, MoveOutcome] = {}
        for one in outcomes:
            if one.is_handed_over and one.refusal is None:
                asked.setdefault(one.target, one)
        answers = await asyncio.gather(*(self._ask(target, one) for target, one in asked.items()))
        return [
            UnableBroker(broker=broker, reason=reason) for broker, reason in zip(asked, answers, strict=True) if reason
        ]

    async def _ask(self, broker: BrokerId, one: MoveOutcome) -> str:
        """Return why it cannot read; empty: it can."""
        request = MoveRequest(READS, topic=one.topic, partitions=(one.partition,), dry_run=True)
        if broker == self._node:
            return await self.unreadable(request)
        address = self._address_of(broker)
        if address is None:
            return "its address is not known yet"
        from headrace.net.client import moves

        try:
            return (await moves.ask(address, request, self._security)).error
        except (OSError, TimeoutError, CorruptData, ClientError) as error:
            return f"it does not say whether it reads the durable store ({error or 'it took too long'})"

    async def unreadable(self, request: MoveRequest) -> str:
        """Return why this broker cannot read the store, as a clause; empty: it can, or nothing is stored that would
        show it."""
        if self._history is None:
            return NO_STORE
        segment = next(_stored(self._image(), request), None)
        if segment is None:
            return ""
        try:
            async with asyncio.timeout(MOVE_READS_MS_MAX / 1000):
                await self._history.check_stored(segment)
        except TimeoutError:
            return f"its durable store has not answered for {MOVE_READS_MS_MAX / 1000:g} s"
        except FileNotFoundError:
            return f"its durable store lacks '{segment.key}' (it is not mounted, or not the store of the others)"
        except (HeadraceError, OSError) as error:
            return f"it cannot read the durable store ({str(error).rstrip('.')})"
        return ""


def _stored(image: MetadataImage, request: MoveRequest) -> Iterator[SegmentDescriptor]:
    """Iterate over segments that the store has: those of the request's partitions, then any."""
    topic = None if request.topic is None else image.topic(request.topic)
    if topic is not None:
        keys = [TopicPartition(topic.id, one.index) for one in topic.partitions if one.index in request.partitions]
        for catalog in map(image.durable, keys):
            if catalog.entries:
                yield catalog.entries.at(len(catalog.entries) - 1).descriptor
    for catalog in image.catalog.values():
        if catalog.entries:
            yield catalog.entries.at(len(catalog.entries) - 1).descriptor
