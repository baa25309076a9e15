"""Has the markers of decided transactions written, by whoever leads each partition now.

Promises:
- Each marker that is asked for has an outcome, in time: an answer that is lost counts as none. So does a question that
  the broker's stop cuts off.
- Markers for one broker share requests, of which one is under way at a time.
- A partition counts as gone only where an image that the controller has confirmed lacks it.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from headrace.base.addresses import Address
from headrace.base.errors import HeadraceError
from headrace.base.ids import BrokerId
from headrace.base.limits import MARKER_LINKS_MAX, MARKERS_PER_REQUEST_MAX, MARKERS_WAIT_MS_MAX
from headrace.broker.kit.lease import Lease
from headrace.broker.kit.links import Links, NotOffered
from headrace.broker.kit.tasks import OnBug, started
from headrace.broker.transactions.marking import Marker, MarkerWriter
from headrace.coordinators.transactions.events import MarkersSettled, SendMarkers
from headrace.coordinators.transactions.model import TransactionVersion
from headrace.coordinators.values import NamedPartition
from headrace.logs import get_logger
from headrace.metadata.image import MetadataImage
from headrace.net.client.security.settings import PLAIN, ClientSecurity
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode, error_of
from headrace.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

log = get_logger(__name__)

VERSIONS: Final = (1, 2)
"""An earlier broker takes v1, which does not say whether the transaction is of the new protocol (KIP-1228)."""
Settled = Callable[[MarkersSettled], None]


class _Part(NamedTuple):
    """The partitions of one decision that one broker leads."""

    number: int
    marker: Marker
    partitions: tuple[NamedPartition, ...]
    settled: Settled
    is_over: Callable[[], bool]
    """Whether the shard that asked is given up: its successor sends all again, perhaps of later transactions, too."""

    def settle(self, errors: Mapping[NamedPartition, ErrorCode]) -> None:
        told = {each: errors.get(each, ErrorCode.REQUEST_TIMED_OUT) for each in self.partitions}
        self.settled(MarkersSettled(number=self.number, errors=told))


class MarkerSender:
    """See the module. Loop-only."""

    def __init__(
        self,
        *,
        node: BrokerId,
        image: Callable[[], MetadataImage],
        address_of: Callable[[BrokerId], Address | None],
        writer: MarkerWriter,
        lease: Lease,
        on_bug: OnBug,
        security: ClientSecurity = PLAIN,
    ) -> None:
        """`address_of`: where other brokers reach a broker."""
        self._node: Final = node
        self._image: Final = image
        self._address_of: Final = address_of
        self._writer: Final = writer
        self._lease: Final = lease
        self._on_bug: Final = on_bug
        self._links = Links(MARKER_LINKS_MAX, security)
        self._waiting: dict[BrokerId, list[_Part]] = defaultdict(list)
        self._senders: dict[BrokerId, asyncio.Task[None]] = {}
        self._looks: set[asyncio.Task[None]] = set()
        self._has_stopped = False

    def send(self, effect: SendMarkers, settled: Settled, is_over: Callable[[], bool]) -> None:
        """Have the markers written. `settled` is called with the outcomes, now or later, in one part or several.
        `is_over`: whether nobody waits for them any more."""
        marker = Marker(
            *effect.producer,
            effect.coordinator_epoch,
            is_committed=effect.commit,
            bumps_epochs=effect.version.bumps_epoch,
        )
        by_leader: dict[BrokerId, list[NamedPartition]] = defaultdict(list)
        missing: list[NamedPartition] = []
        for each in sorted(effect.partitions):
            leader = self._leader(each)
            if leader is None:
                missing.append(each)
            else:
                by_leader[leader].append(each)
        for leader, partitions in by_leader.items():
            self._put(leader, _Part(effect.number, marker, tuple(partitions), settled, is_over))
        if missing:
            self._look(_Part(effect.number, marker, tuple(missing), settled, is_over))

    def _leader(self, named: NamedPartition) -> BrokerId | None:
        """The partition's leader, -1 where it has none; None where it does not exist."""
        topic = self._image().topic(named.topic)
        if topic is None or named.partition >= len(topic.partitions):
            return None
        return BrokerId(topic.partitions[named.partition].leader)

    def _look(self, part: _Part) -> None:
        if self._has_stopped:
            part.settle({})
            return
        look = started(self._look_for(part), "partitions of markers", self._on_bug)
        self._looks.add(look)

        def over(look: asyncio.Task[None]) -> None:
            self._looks.discard(look)
            if look.cancelled():  # perhaps before it began
                part.settle({})

        look.add_done_callback(over)

    def _put(self, leader: BrokerId, part: _Part) -> None:
        if leader < 0:
            part.settle(dict.fromkeys(part.partitions, ErrorCode.LEADER_NOT_AVAILABLE))
            return
        if leader == self._node:
            for each in part.partitions:
                self._write(each, part)
            return
        if self._has_stopped:
            part.settle({})
            return
        self._waiting[leader].append(part)
        sender = self._senders.get(leader)
        if sender is None or sender.done():
            self._senders[leader] = started(self._send_all(leader), f"markers to broker {leader}", self._on_bug)

    def _write(self, partition: NamedPartition, part: _Part) -> None:
        def done(error: ErrorCode) -> None:
            part.settled(MarkersSettled(number=part.number, errors={partition: error}))

        self._writer.write(partition, part.marker, done)

    async def _look_for(self, part: _Part) -> None:
        """Look again for partitions that this broker's image lacks: it may be behind."""
        is_up_to_date = await self._lease.renew()
        gone = frozenset(each for each in part.partitions if is_up_to_date and self._leader(each) is None)
        errors = dict.fromkeys(set(part.partitions) - gone, ErrorCode.LEADER_NOT_AVAILABLE)
        part.settled(MarkersSettled(number=part.number, errors=errors, gone=gone))

    async def _send_all(self, leader: BrokerId) -> None:
        while waiting := self._waiting[leader][:MARKERS_PER_REQUEST_MAX]:
            del self._waiting[leader][: len(waiting)]
            parts = [part for part in waiting if not part.is_over()]
            answers: Mapping[int, Mapping[NamedPartition, ErrorCode]] = {}
            try:
                answers = await self._ask(leader, parts) if parts else answers
            finally:  # each has an outcome, also after a failure
                for part in parts:
                    part.settle(answers.get(part.marker.producer_id, {}))

    async def _ask(self, leader: BrokerId, parts: Sequence[_Part]) -> Mapping[int, Mapping[NamedPartition, ErrorCode]]:
        """Return the outcomes by producer id, as far as they are known."""
        address = self._address_of(leader)
        if address is None:
            return {}
        request = WriteTxnMarkersRequest(markers=tuple(map(_wire, parts)))
        deadline = asyncio.get_running_loop().time() + MARKERS_WAIT_MS_MAX / 1000
        try:
            response = await self._links.ask(
                address, ApiKey.WRITE_TXN_MARKERS, request, versions=VERSIONS, deadline=deadline
            )
        except NotOffered:
            return {}
        except HeadraceError as error:
            log.info("markers are sent again", broker_id=leader, reason=str(error))
            return {}
        assert isinstance(response, WriteTxnMarkersResponse)
        answers: dict[int, dict[NamedPartition, ErrorCode]] = defaultdict(dict)
        for marker in response.markers:
            for topic in marker.topics:
                for each in topic.partitions:
                    named = NamedPartition(topic.name, each.partition_index)
                    answers[marker.producer_id][named] = error_of(each.error_code)
        return answers

    async def stop(self) -> None:
        """Send nothing more. Decided transactions are gone on with by the next coordinator."""
        self._has_stopped = True
        tasks = [*self._senders.values(), *self._looks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for part in [part for parts in self._waiting.values() for part in parts]:
            part.settle({})
        self._waiting.clear()
        await self._links.close()


def _wire(part: _Part) -> WritableTxnMarker:
    topics: dict[str, list[int]] = defaultdict(list)
    for name, index in part.partitions:
        topics[name].append(index)
    return WritableTxnMarker(
        producer_id=part.marker.producer_id,
        producer_epoch=part.marker.producer_epoch,
        transaction_result=part.marker.is_committed,
        topics=tuple(WritableTxnMarkerTopic(name, tuple(indexes)) for name, indexes in topics.items()),
        coordinator_epoch=part.marker.coordinator_epoch,
        transaction_version=int(TransactionVersion.TV2 if part.marker.bumps_epochs else TransactionVersion.TV0),
    )
