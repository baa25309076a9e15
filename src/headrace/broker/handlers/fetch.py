"""Fetch: returns whole batches from the reader's offset on, as far as it may see; waits where there is too little.

Reads go to the high watermark, under read_committed to the last stable offset. At least one batch is returned, even
where the first exceeds the limits (KIP-74). A request parks where it finds fewer bytes than the lesser of min_bytes
and max_bytes. It wakes when they are visible, its time is up, or a partition changes hands. The
connection waits with it: otherwise each of many parked fetches would bring a whole answer into memory at once. Where
slow readers leave little room for answers (`net.server.request_budget`), the answer is smaller than the request allows.
Sessions are incremental (KIP-227).

Records below the log's start that durable history has (KIP-405) come from memory, or are read from the store beside the
loop. The request waits for that read as it waits for visible bytes. Where other partitions have enough for min_bytes,
it does not wait, and the next request finds the records. A failure of the store is KAFKA_STORAGE_ERROR.

A reader that names its rack may be sent to the replica there, and followers serve it too (KIP-392). They serve it up to
the offset that they know to be committed. Above it, the answer is OFFSET_NOT_AVAILABLE, on which the reader goes back
to the leader.

- v4: the first with record batches.
- v5: log start offset.
- v7: sessions.
- v9: the reader's leader epoch (KIP-320).
- v11: rack.
- v12: flexible.
- v13: topics by id.
- v15, v17: replica fields. Replica fetches come later.
- v16: the current leader and its address, with NOT_LEADER_OR_FOLLOWER and FENCED_LEADER_EPOCH (KIP-951).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

from headrace.base.errors import CorruptData, StorageFailure
from headrace.base.ids import NO_EPOCH, BrokerId, Offset, TopicId, TopicPartition
from headrace.base.limits import (
    FETCH_BYTES_MAX,
    HISTORY_LOADS_PER_FETCH_MAX,
    NAMES_PER_TURN_MAX,
    RECORDS_FETCH_WAIT_MS,
    REQUEST_ELEMENTS_AT_ONCE_MAX,
)
from headrace.base.ports import Buffer
from headrace.broker.durable.history import HistoryUnavailable, Loading
from headrace.broker.handlers import plain_fetch
from headrace.broker.handlers.plain_fetch import READ_COMMITTED, enough
from headrace.broker.kit.deferred import Deferred, settled
from headrace.broker.kit.parking import ParkedFetch
from headrace.broker.partitions.partition import Partition
from headrace.broker.partitions.replica import Replica
from headrace.broker.requests.access import as_it_goes
from headrace.broker.requests.context import Handler, RequestContext, Services
from headrace.broker.requests.current_leaders import told_in_fetch
from headrace.broker.requests.fetch_sessions import NO_SESSION, FetchPlan, PartitionKey, Wanted
from headrace.broker.requests.rights import Rights
from headrace.broker.requests.turns import take_turns
from headrace.logs import get_logger
from headrace.metadata.access.acls import AclOperation, ResourceType
from headrace.metadata.image import MetadataImage
from headrace.net.server.listener import Answer, Connection
from headrace.storage.engine.faults import DamagedRange, NotAtHand, Unreachable
from headrace.storage.engine.reading import Fetching
from headrace.storage.tier.blocks import Block
from headrace.wire.apis import Api, ApiKey, api
from headrace.wire.codec import new
from headrace.wire.errors import ErrorCode
from headrace.wire.headers import decode_request_header, encode_response_frame
from headrace.wire.messages.fetch import AbortedTransaction as AbortedInFetch
from headrace.wire.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from headrace.wire.plain_fetch import TOPIC_ID_VERSION
from headrace.wire.transactions import AbortedTransaction

log = get_logger(__name__)


NOBODY: Final = BrokerId(-1)


class Found(NamedTuple):
    """The result of reading one partition; `partition` is None where it is not served."""

    key: PartitionKey
    error: ErrorCode
    partition: Replica | None
    records: Buffer
    nearer: int = NOBODY
    """The replica to read from instead."""
    aborted: Sequence[AbortedTransaction] = ()
    """Transactions among the records that were aborted, for readers under read_committed."""


class Attempt(NamedTuple):
    """One pass over all partitions."""

    found: list[Found]
    watched: list[Replica]
    """Partitions without an error, or with one that does not last."""
    size: int
    is_final: bool
    """There is an error, or another replica to read from: the request does not wait."""
    loading: list[Loading]
    """Reads of durable history that are under way, which a later request finds."""
    fetching: list[Fetching]
    """Reads of records that a log has elsewhere, which it does not find."""


def handle(request: FetchRequest, context: RequestContext) -> FetchResponse | Deferred | Awaitable[FetchResponse]:
    """Answer at once where there is enough, else park."""
    plan = context.services.fetch_sessions.plan(
        session_id=request.session_id,
        epoch=request.session_epoch,
        by_id=context.version >= TOPIC_ID_VERSION,
        wanted=_wanted(request, context),
        forgotten=_forgotten(request, context),
    )
    if isinstance(plan, ErrorCode):
        return FetchResponse(error_code=plan, session_id=NO_SESSION)
    reader = Reader(request, context, plan)
    if context.is_long or len(plan.wanted) > REQUEST_ELEMENTS_AT_ONCE_MAX:  # a session may name more than its request
        return _in_turns(reader, request)
    return _answer(reader, request, reader.refused())


async def _in_turns(reader: Reader, request: FetchRequest) -> FetchResponse:
    """As `_answer`, of a request that names very much. Refusals are found in turns."""
    refused: dict[str | TopicId, ErrorCode] = {}
    await take_turns(reader.refusing(refused))
    await take_turns(reader.parting(refused))
    await asyncio.sleep(0)
    return cast("FetchResponse", await settled(_answer(reader, request, refused)))


def _answer(
    reader: Reader, request: FetchRequest, refused: Mapping[str | TopicId, ErrorCode]
) -> FetchResponse | Deferred:
    attempt = reader.attempt(refused)
    missing = enough(min(request.min_bytes, request.max_bytes, FETCH_BYTES_MAX), reader.room) - attempt.size
    wait_ms = request.max_wait_ms
    if missing <= 0 or attempt.is_final or wait_ms <= 0 or not attempt.watched:
        if not attempt.fetching:
            return reader.response(attempt)
        # Nobody keeps what is fetched for longer than this request. As on Kafka (KIP-405), it waits.
        missing, wait_ms = FETCH_BYTES_MAX, RECORDS_FETCH_WAIT_MS
    return _parked(reader, attempt, missing, wait_ms)


def _parked(reader: Reader, attempt: Attempt, missing: int, wait_ms: int) -> Deferred:
    """Read again once so many bytes more are there, a block is loaded, all fetches are over, or time is up."""
    answer = Deferred(None)
    parked = ParkedFetch(
        attempt.watched,
        missing,
        wait_ms / 1000,
        lambda: answer.settle(reader.read_anew),
        committed_only=reader.committed_only,
    )
    answer.add_done_callback(lambda _: parked.leave())
    under_way = len(attempt.fetching)

    def fetched(_: object) -> None:
        nonlocal under_way
        under_way -= 1
        if not under_way:
            parked.wake()

    for loading in attempt.loading:
        loading.add_done_callback(lambda _: parked.wake())
    for fetching in attempt.fetching:
        fetching.add_done_callback(fetched)
    return answer


def _by_the_long_road(
    frame: memoryview, services: Services, image: MetadataImage, connection: Connection, rights: Rights
) -> Answer:
    """Return the answer as of now to a request that has waited in `plain_fetch`."""
    header, at = decode_request_header(frame)
    codec = cast("Api", api(header.api_key))
    request = codec.decode_request(header.api_version, frame[at:])
    context = RequestContext(
        services=services,
        image=image,
        version=header.api_version,
        client_id=header.client_id or "",
        client_host=connection.peer_host,
        listener=connection.listener_name,
        received_bytes=len(frame),
        rights=rights,
        principal="",
    )
    plan = FetchPlan(_wanted(request, context), None, incremental=False)
    response = Reader(request, context, plan).read_anew()
    return encode_response_frame(codec, header.api_version, header.correlation_id, response)


def _wanted(request: FetchRequest, context: RequestContext) -> list[tuple[PartitionKey, Wanted]]:
    """Return what the request names, each partition once: as on Kafka, by what is said of it last."""
    by_id = context.version >= TOPIC_ID_VERSION
    wanted = {}
    for topic in request.topics:
        place = topic.topic_id if by_id else topic.topic
        for asked in topic.partitions:
            key = new(PartitionKey, (place, asked.partition))
            # Any negative epoch means none, as on Kafka. It is made so here alone.
            epoch = max(asked.current_leader_epoch, NO_EPOCH)
            offset_and_limits = (asked.fetch_offset, asked.partition_max_bytes, epoch)
            wanted[key] = new(Wanted, offset_and_limits)
    return list(wanted.items())


def _forgotten(request: FetchRequest, context: RequestContext) -> list[PartitionKey]:
    by_id = context.version >= TOPIC_ID_VERSION
    return [
        new(PartitionKey, (topic.topic_id if by_id else topic.topic, partition))
        for topic in request.forgotten_topics_data
        for partition in topic.partitions
    ]


class Reader:
    """The reading of one request. It may be attempted twice, before and after parking."""

    def __init__(self, request: FetchRequest, context: RequestContext, plan: FetchPlan) -> None:
        self._context = context
        self._plan = plan
        self._asked_bytes_max = min(request.max_bytes, FETCH_BYTES_MAX)
        self._bytes_max = self._asked_bytes_max
        self.room = self._bytes_max
        """The bytes that slow readers left for answers, at the last attempt."""
        self.committed_only = request.isolation_level == READ_COMMITTED
        self._rack = request.rack_id
        """Empty: the reader names none, and reads from leaders only."""
        self._loading: dict[PartitionKey, Loading] = {}
        """Reads of durable history that the first attempt has waited for. Held here, no other read can evict them."""
        self._fetching: dict[PartitionKey, Fetching] = {}
        """As `_loading`, of records that the logs have, but not at hand."""
        self._told: dict[str | TopicId, list[PartitionData]] = {}
        """Answers that are there already: refusals of partitions that are in the plan no more."""

    def attempt(self, refused: Mapping[str | TopicId, ErrorCode]) -> Attempt:
        """Read every wanted partition in order, until the request's bytes are reached; but those of refused topics."""
        services = self._context.services
        called = services.partitions.called
        self.room = services.answer_bytes_max()
        self._bytes_max = min(self._asked_bytes_max, self.room)
        found: list[Found] = []
        watched: list[Replica] = []
        size, is_final = 0, bool(self._told)
        for key, wanted in self._plan.wanted:
            if key.topic in refused:
                found.append(new(Found, (key, refused[key.topic], None, b"", NOBODY, ())))
                is_final = True
                continue
            partition: Replica | None = called(key)
            if partition is None:
                missing = self._find(key)
                if isinstance(missing, ErrorCode):
                    found.append(Found(key, missing, None, b""))
                    is_final = True
                    continue
                partition = missing
            error = partition.check_position(wanted.offset, wanted.leader_epoch)
            nearer = self._nearer(partition, wanted.offset) if self._rack and not error else NOBODY
            records: Buffer = b""
            aborted: Sequence[AbortedTransaction] = ()
            if error is ErrorCode.OFFSET_NOT_AVAILABLE and partition.awaits(wanted.offset):
                watched.append(partition)
            elif error or nearer != NOBODY:
                is_final = True
            else:
                watched.append(partition)
                if wanted.offset < partition.visible_end:
                    block: Block | None = None
                    if wanted.offset < partition.log.log_start_offset:
                        records, block, error = self._read_history(key, partition, wanted, size)
                    else:
                        records, error = self._read(key, partition, wanted, size)
                    if self.committed_only and records:
                        records, aborted, error = _with_aborted(partition, wanted, records, block)
                    size += len(records)
                    is_final = is_final or error is not ErrorCode.NONE
            found.append(new(Found, (key, error, partition, records, nearer, aborted)))
        return Attempt(found, watched, size, is_final, list(self._loading.values()), list(self._fetching.values()))

    def refused(self) -> Mapping[str | TopicId, ErrorCode]:
        """Return the topics that the client may not read now."""
        refused: dict[str | TopicId, ErrorCode] = {}
        for _ in self.refusing(refused):
            pass
        return refused

    def refusing(self, refused: dict[str | TopicId, ErrorCode]) -> Iterator[None]:
        """Find the topics that the client may not read now, those of its session among them. Others may have their turn
        of the event loop at each step.

        A topic that came while the request waited is served by its id, and asked for. One that is not known by now is
        refused: it may come in the next turn, when nobody asks for rights to it.
        """
        rights, image, now = self._context.rights, self._context.image, self._context.services.metadata.image
        if not rights.are_bounded:
            return
        for number, place in enumerate(dict.fromkeys(key.topic for key, _ in self._plan.wanted), 1):
            found = None if isinstance(place, str) else image.topic_by_id(place) or now.topic_by_id(place)
            name = place if isinstance(place, str) else None if found is None else found.name
            if name is None:
                refused[place] = ErrorCode.UNKNOWN_TOPIC_ID
            elif not rights.may(AclOperation.READ, ResourceType.TOPIC, name):
                refused[place] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            if number % NAMES_PER_TURN_MAX == 0:
                yield

    def parting(self, refused: Mapping[str | TopicId, ErrorCode]) -> Iterator[None]:
        """Answer partitions that are refused, or not served here, and take them out of the plan. Others may have their
        turn of the event loop at each step."""
        left: list[tuple[PartitionKey, Wanted]] = []
        called, session = self._context.services.partitions.called, self._plan.session
        for number, (key, wanted) in enumerate(self._plan.wanted, 1):
            error: Replica | ErrorCode | None = refused.get(key.topic)
            if error is None:
                error = called(key)
            if error is None:
                error = self._find(key)
            if isinstance(error, ErrorCode):
                if session is not None:
                    session.is_news(key, -1, -1)
                data = new(PartitionData, (key.partition, error, -1, -1, -1, *_NO_EXTRAS, NOBODY, b""))
                self._told.setdefault(key.topic, []).append(data)
            else:
                left.append((key, wanted))
            if number % NAMES_PER_TURN_MAX == 0:
                yield
        self._plan = self._plan._replace(wanted=left)

    def _nearer(self, partition: Replica, offset: Offset) -> BrokerId:
        """Return the replica in the reader's rack that it should read from instead; NOBODY: this one."""
        if not isinstance(partition, Partition):
            return NOBODY
        context = self._context
        preferred = context.services.read_replicas.preferred(partition, self._rack, offset, context.listener)
        return NOBODY if preferred is None else preferred

    def _read(self, key: PartitionKey, partition: Replica, wanted: Wanted, so_far: int) -> tuple[Buffer, ErrorCode]:
        """Read as much as the request has room for, after `so_far` bytes of other partitions."""
        room = min(wanted.bytes_max, self._bytes_max - so_far)
        if room <= 0 and so_far > 0:
            return b"", ErrorCode.NONE
        try:
            records = partition.read(
                wanted.offset, max(room, 0), committed_only=self.committed_only, at_least_one=so_far == 0
            )
        except NotAtHand as missing:
            return self._read_fetched(key, partition, wanted, missing, so_far)
        except (CorruptData, StorageFailure, OSError) as error:
            return b"", _unreadable(partition, wanted, error)
        return records, ErrorCode.NONE

    def _read_fetched(
        self, key: PartitionKey, partition: Replica, wanted: Wanted, missing: NotAtHand, so_far: int
    ) -> tuple[Buffer, ErrorCode]:
        """As `_read`, for records that the log has elsewhere. Returns no bytes where they are still to be fetched."""
        fetching = self._fetching.pop(key, None)
        try:
            if fetching is not None and fetching.done() and not fetching.cancelled():
                fetched = fetching.result()
                if fetched.base_offset <= wanted.offset < fetched.next_offset:
                    end = partition.last_stable_offset if self.committed_only else partition.visible_end
                    room = max(min(wanted.bytes_max, self._bytes_max - so_far), 0)
                    return fetched.read(wanted.offset, room, end, at_least_one=so_far == 0), ErrorCode.NONE
            if len(self._fetching) < HISTORY_LOADS_PER_FETCH_MAX and (begun := missing.fetch()) is not None:
                self._fetching[key] = begun
        except (CorruptData, StorageFailure, OSError) as error:
            return b"", _unreadable(partition, wanted, error)
        return b"", ErrorCode.NONE

    def _read_history(
        self, key: PartitionKey, partition: Replica, wanted: Wanted, so_far: int
    ) -> tuple[Buffer, Block | None, ErrorCode]:
        """As `_read`, below the log's start, with the block of the records. Returns no bytes where they are still to be
        read from the store."""
        room = min(wanted.bytes_max, self._bytes_max - so_far)
        end = partition.last_stable_offset if self.committed_only else partition.visible_end
        history, catalog = self._context.services.history, partition.history
        assert history is not None, "who has no store has no history"
        assert catalog is not None, "it says that it has it"
        if (room <= 0 and so_far > 0) or wanted.offset >= end:
            return b"", None, ErrorCode.NONE
        loaded = self._loading.pop(key, None)
        found: Block | None = None
        if loaded is not None and loaded.done() and not loaded.cancelled():
            if loaded.exception() is not None:  # that was logged
                return b"", None, ErrorCode.KAFKA_STORAGE_ERROR
            block = loaded.result().block
            is_wanted = block.base_offset <= wanted.offset < block.next_offset
            found = block if is_wanted and partition.aborted.are_all_known_in(block) else None
        if found is None:
            if len(self._loading) >= HISTORY_LOADS_PER_FETCH_MAX:
                return b"", None, ErrorCode.NONE
            try:
                looked = history.find(partition.topic_partition, catalog, wanted.offset)
            except HistoryUnavailable:  # that was logged
                return b"", None, ErrorCode.KAFKA_STORAGE_ERROR
            if not isinstance(looked, Block):
                if looked is not None:
                    self._loading[key] = looked
                return b"", None, ErrorCode.NONE
            found = looked
        return found.read(wanted.offset, max(room, 0), end, at_least_one=so_far == 0), found, ErrorCode.NONE

    def _find(self, key: PartitionKey) -> Replica | ErrorCode:
        image = self._context.image
        topic = image.topic(key.topic) if isinstance(key.topic, str) else image.topic_by_id(key.topic)
        if topic is None:
            by_name = isinstance(key.topic, str)
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if by_name else ErrorCode.UNKNOWN_TOPIC_ID
        partitions = self._context.services.partitions
        find = partitions.find_readable if self._rack else partitions.find
        return find(TopicPartition(topic.id, key.partition), image)

    def read_anew(self) -> FetchResponse:
        """Read again and answer, once the wait is over."""
        return self.response(self.attempt(self.refused()))

    def response(self, attempt: Attempt) -> FetchResponse:
        """Return the response. A full fetch has every partition; an incremental one those with data, an error or news.
        Called right after the attempt, so that the offsets are those of the reading."""
        session, incremental = self._plan.session, self._plan.incremental
        topics = self._told
        for key, error, partition, records, nearer, aborted in attempt.found:
            high_watermark = stable = start = -1
            if partition is not None and error is not ErrorCode.OFFSET_NOT_AVAILABLE:  # else these are not known
                high_watermark, stable = partition.visible_end, partition.last_stable_offset
                start = partition.start_offset
            if session is not None:
                news = session.is_news(key, high_watermark, start)
                if incremental and not (news or records or error or nearer != NOBODY):
                    continue
                if records:
                    session.served(key)
            marks = (high_watermark, stable, start)
            extras = _NONE_ABORTED if self.committed_only and not error else _NO_EXTRAS
            if aborted:
                extras = _with_list(aborted)
            data = new(PartitionData, (key.partition, error, *marks, *extras, nearer, records))
            if key.topic in topics:
                topics[key.topic].append(data)
            else:
                topics[key.topic] = [data]
        response = FetchResponse(
            session_id=NO_SESSION if session is None else session.session_id,
            responses=tuple(_topic_response(topic, partitions) for topic, partitions in topics.items()),
        )
        if not attempt.is_final:
            return response
        context = self._context
        image = context.services.metadata.image
        return told_in_fetch(response, version=context.version, image=image, listener=context.listener)


_NO_EXTRAS: Final = PartitionData(aborted_transactions=None)[5:9]
"""The empty fields of a partition's answer."""
_NONE_ABORTED: Final = PartitionData(aborted_transactions=())[5:9]
"""As `_NO_EXTRAS`, under read_committed: as on Kafka, the list of aborted transactions is empty, not null."""


def _with_list(aborted: Sequence[AbortedTransaction]) -> tuple[Any, ...]:
    listed = tuple(AbortedInFetch(each.producer_id, each.first_offset) for each in aborted)
    return PartitionData(aborted_transactions=listed)[5:9]


def _with_aborted(
    partition: Replica, wanted: Wanted, records: Buffer, block: Block | None
) -> tuple[Buffer, Sequence[AbortedTransaction], ErrorCode]:
    """Return the records, and the aborted transactions among them; none of either where the latter cannot be read."""
    try:
        return records, partition.aborted.within(wanted.offset, records, block), ErrorCode.NONE
    except (CorruptData, StorageFailure) as error:
        return b"", (), _unreadable(partition, wanted, error)


def _unreadable(partition: Replica, wanted: Wanted, error: Exception) -> ErrorCode:
    """Log that a log could not be read, unless the reason was logged when it was found. Returns the client's error."""
    if not isinstance(error, DamagedRange | Unreachable):
        log.warning(
            "fetch failed: the log could not be read",
            topic=partition.topic,
            partition=partition.topic_partition.partition,
            offset=wanted.offset,
            reason=str(error),
        )
    return partition.on_unreadable(error, wanted.offset)


def _topic_response(topic: str | TopicId, partitions: list[PartitionData]) -> FetchableTopicResponse:
    if isinstance(topic, str):
        return FetchableTopicResponse(topic=topic, partitions=tuple(partitions))
    return FetchableTopicResponse(topic_id=topic, partitions=tuple(partitions))


HANDLER = Handler(
    int(ApiKey.FETCH),
    (4, 17),
    handle,
    as_it_goes,
    shortcuts=lambda services: plain_fetch.shortcuts(services, _by_the_long_road),
)
