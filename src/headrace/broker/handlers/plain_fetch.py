"""Fetch by a shortcut, for a consumer without a session.

It serves a request whose partitions are all served here, with no other replica to read from. All of them must be
readable without error, from the log or from durable history in memory. It answers exactly as
`headrace.broker.handlers.fetch`, which has all rules and all errors. An obstacle, at once or after the wait, leaves the
whole request to that handler.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from headrace.base.errors import CorruptData, StorageFailure
from headrace.base.ids import Offset, PartitionIndex, TopicId, TopicPartition
from headrace.base.limits import FETCH_BYTES_MAX, PLACES_REMEMBERED_MAX
from headrace.base.ports import Buffer
from headrace.broker.durable.history import HistoryUnavailable
from headrace.broker.kit.deferred import Deferred
from headrace.broker.kit.parking import ParkedFetch
from headrace.broker.partitions.partition import Partition
from headrace.broker.partitions.replica import Replica
from headrace.broker.requests.context import Services, Shortcut
from headrace.broker.requests.rights import EVERYTHING, Rights, named
from headrace.metadata.access.acls import AclOperation, ResourceType
from headrace.metadata.image import MetadataImage
from headrace.native import ROAD
from headrace.net.server.listener import Answer, Connection
from headrace.storage.engine.faults import NotAtHand
from headrace.storage.tier.blocks import Block
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.plain_fetch import (
    TOPIC_ID_VERSION,
    VERSIONS,
    Asked,
    PlainFetch,
    PlainFound,
    read_plain_fetch,
    topic_of,
    write_plain_found,
)
from headrace.wire.transactions import AbortedTransaction

READ_COMMITTED: Final = 1

LongRoad = Callable[[memoryview, Services, MetadataImage, Connection, Rights], Answer]
"""Answers a fetch that has waited, from its frame, by the general handler, under the image and the rights that it came
with."""
API: Final = int(ApiKey.FETCH)
"""As a plain number, which is at hand sooner than a member of an enumeration."""


def shortcuts(services: Services, long_road: LongRoad) -> dict[int, Shortcut]:
    """Return the shortcuts by version."""
    return {version: _Road(services, version, long_road).serve for version in VERSIONS}


def enough(bytes_min: int, room: int) -> int:
    """Return the number of bytes for which a fetch need not wait: 1, where there is no room for all of `bytes_min`."""
    return bytes_min if bytes_min <= room else 1


_Place: TypeAlias = tuple[Replica, Asked]
"""A partition, and the request for it."""


class _Attempt(NamedTuple):
    """One pass over all partitions."""

    found: list[PlainFound]
    size: int
    room: int
    """The bytes that slow readers left for answers."""


class _Road:
    """Serves requests of one version. It remembers which partition each topic and index means."""

    def __init__(self, services: Services, version: int, long_road: LongRoad) -> None:
        self._services = services
        self._by_id = version >= TOPIC_ID_VERSION
        self._long_road = long_road
        self._rights = services.authority.rights if services.authority.is_asked else None
        self._grants = services.authority.grants()
        self._known: dict[tuple[bytes, int], Replica] = {}
        self._known_to_racks: dict[tuple[bytes, int], Replica] = {}
        """As `_known`, for readers that name their rack: followers' replicas are among these."""
        for known in (self._known, self._known_to_racks):
            services.partitions.remember_in(known)

    def serve(self, frame: memoryview, connection: Connection) -> Answer | Deferred | None:
        """`Shortcut`."""
        wanted = read_plain_fetch(frame)
        rights: Rights = EVERYTHING
        if self._rights is not None and wanted is not None:
            rights = self._rights(connection, API)
            if not self._may_read(wanted, rights):
                return None
        places = None if wanted is None else self._find_all(wanted)
        if wanted is None or places is None:
            return None
        if wanted.rack and self._has_nearer(wanted.rack.decode(), places, connection.listener_name):
            return None
        attempt = self._read_all(wanted, places)
        if attempt is None:
            return None
        missing = enough(min(wanted.bytes_min, wanted.bytes_max, FETCH_BYTES_MAX), attempt.room) - attempt.size
        if missing <= 0 or wanted.wait_ms_max <= 0:
            return _answer(wanted, attempt)
        answer = Deferred(None)
        kept, image = bytes(frame), self._services.metadata.image

        def read_on() -> Answer:
            again = self._read_all(wanted, places)
            if again is None:
                return self._long_road(memoryview(kept), self._services, image, connection, rights)
            return _answer(wanted, again)

        parked = ParkedFetch(
            [partition for partition, _ in places],
            missing,
            wanted.wait_ms_max / 1000,
            lambda: answer.settle(read_on),
            committed_only=wanted.isolation_level == READ_COMMITTED,
        )
        answer.add_done_callback(lambda _: parked.leave())
        return answer

    def _may_read(self, wanted: PlainFetch, rights: Rights) -> bool:
        """Whether the client may read each topic. One that does not exist is left to the general handler."""
        for topic, _ in wanted.topics:
            if not self._grants.has(rights, topic) and not self._is_granted(topic, wanted.version, rights):
                return False
        return True

    def _is_granted(self, topic: bytes, version: int, rights: Rights) -> bool:
        name = named(topic_of(topic, version), self._services.metadata.image, by_id=self._by_id)
        if name is None or not rights.may(AclOperation.READ, ResourceType.TOPIC, name):
            return False
        self._grants.add(rights, topic)
        return True

    def _find_all(self, wanted: PlainFetch) -> list[_Place] | None:
        """Return the partitions; None where one is not served here, or a topic or a partition is named twice, which is
        answered once."""
        if len(wanted.topics) > 1 and len(dict(wanted.topics)) < len(wanted.topics):
            return None
        for _, each in wanted.topics:
            if len(each) > 1 and len({asked[0] for asked in each}) < len(each):
                return None
        known = self._known_to_racks if wanted.rack else self._known
        if ROAD.native is not None and (found := ROAD.native.find_places(wanted.topics, known)) is not None:
            return found
        places: list[_Place] = []
        for topic, each in wanted.topics:
            for asked in each:
                index = asked[0]
                partition = known.get((topic, index))
                if partition is None:
                    partition = self._find(topic, index, wanted)
                    if partition is None:
                        return None
                    if len(known) >= PLACES_REMEMBERED_MAX:
                        known.clear()
                    known[topic, index] = partition
                places.append((partition, asked))
        return places

    def _has_nearer(self, rack: str, places: list[_Place], listener: str) -> bool:
        """Whether the reader is to be sent to another replica of any of these."""
        preferred = self._services.read_replicas.preferred
        return any(
            isinstance(partition, Partition) and preferred(partition, rack, Offset(offset), listener) is not None
            for partition, (_, _, offset, _) in places
        )

    def _find(self, topic: bytes, index: int, wanted: PlainFetch) -> Replica | None:
        """Look the partition up as the general handler does; None where that is to say why it is not served."""
        name = topic_of(topic, wanted.version)
        services, image = self._services, self._services.metadata.image
        if self._by_id:
            found = image.topic_by_id(TopicId(UUID(bytes=name)))
        else:
            found = image.topic(name.decode(errors="replace"))
        if found is None:
            return None
        if not wanted.rack:
            return services.partitions.called((found.id, PartitionIndex(index)))
        role = services.partitions.find_readable(TopicPartition(found.id, PartitionIndex(index)), image)
        return None if isinstance(role, ErrorCode) else role

    def _read_all(self, wanted: PlainFetch, places: list[_Place]) -> _Attempt | None:
        """Read every partition in order, until the request's bytes are reached. None where there is an error, or
        records are still to be read from the store."""
        room_left = self._services.answer_bytes_max()
        bytes_max = min(wanted.bytes_max, FETCH_BYTES_MAX, room_left)
        committed_only = wanted.isolation_level == READ_COMMITTED
        if ROAD.native is not None:
            natively = ROAD.native.read_places(places, bytes_max, committed_only, _read, _aborted)
            if natively is not None:
                return _Attempt(*natively, room_left) if natively else None
        found: list[PlainFound] = []
        size = 0
        for partition, (index, leader_epoch, offset, limit) in places:
            if partition.check_position(Offset(offset), leader_epoch):
                return None
            high_watermark = partition.visible_end
            records: Buffer = b""
            aborted: Sequence[AbortedTransaction] = ()
            if offset < high_watermark:
                room = min(limit, bytes_max - size)
                if room > 0 or not size:
                    block = None
                    if offset < partition.log.log_start_offset:
                        block = self._in_history(partition, Offset(offset))
                        if block is None:
                            return None
                        end = partition.last_stable_offset if committed_only else high_watermark
                        there: Buffer | None = block.read(offset, max(room, 0), end, at_least_one=not size)
                    else:
                        there = _read(partition, Offset(offset), max(room, 0), committed_only, not size)
                    if there is None:
                        return None
                    records = there
                    size += len(records)
                    if committed_only:
                        ended = _aborted(partition, Offset(offset), records, block)
                        if ended is None:
                            return None
                        aborted = ended
            stable, start = partition.last_stable_offset, partition.start_offset
            found.append((index, high_watermark, stable, start, records, aborted))
        return _Attempt(found, size, room_left)

    def _in_history(self, partition: Replica, offset: Offset) -> Block | None:
        """Return the block of history that holds `offset`; None where it is not in memory."""
        history, catalog = self._services.history, partition.history
        if history is None or catalog is None:
            return None
        try:
            block = history.find(partition.topic_partition, catalog, offset)
        except HistoryUnavailable:
            return None
        return block if isinstance(block, Block) else None


def _read(
    partition: Replica, offset: Offset, bytes_max: int, committed_only: bool, at_least_one: bool, /
) -> Buffer | None:
    """Read one partition's log; None where it cannot be read at once."""
    try:
        return partition.read(offset, bytes_max, committed_only=committed_only, at_least_one=at_least_one)
    except StorageFailure as error:  # it may be met but once
        partition.on_unreadable(error, offset)
        return None
    except (CorruptData, OSError, NotAtHand):
        return None


def _aborted(
    partition: Replica, offset: Offset, records: Buffer, block: Block | None
) -> Sequence[AbortedTransaction] | None:
    """Return the aborted transactions among these records; None where they cannot be read at once."""
    try:
        return partition.aborted.within(offset, records, block)
    except (CorruptData, StorageFailure):
        return None


def _answer(wanted: PlainFetch, attempt: _Attempt) -> Answer:
    topics, at = [], 0
    for topic, asked in wanted.topics:
        topics.append((topic, attempt.found[at : at + len(asked)]))
        at += len(asked)
    committed_only = wanted.isolation_level == READ_COMMITTED
    return write_plain_found(wanted.version, wanted.correlation_id, topics, committed_only=committed_only)
