"""The ledger of decisions: a compacted topic, whose last committed record of a query names its last decision.

A driver decides in a transaction of its own. It begins that by InitProducerId, which ends the transaction of any driver
before it and fences that driver. It writes its decision, reads the partition up to that very record, and commits the
transaction if nothing below contradicts it. So of two drivers of a query the second one has seen what the first one
decided. It has read all that is there: an acknowledged record is below the high watermark.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from itertools import chain
from operator import attrgetter
from typing import Final, NamedTuple

from headrace.base.errors import HeadraceError
from headrace.base.ids import TopicId
from headrace.base.limits import SPARK_FETCH_BYTES, SPARK_FETCH_WAIT_MS, SPARK_LEDGER_TIMEOUT_MS
from headrace.net.client.batches import fetch_batches
from headrace.net.client.cluster import Cluster
from headrace.net.client.errors import GaveUpError, RefusedError, check
from headrace.net.client.offsets import list_offsets
from headrace.net.client.partitioner import partition_of
from headrace.net.client.producer import ACKS_ALL, PRODUCE_TIMEOUT_MS
from headrace.net.client.two_phase import Prepared, TwoPhase
from headrace.spark.write.exactly.names import Abandoned, Decision, Finished, ledger_name
from headrace.spark.write.exactly.topic import LEDGER, ledger_topic
from headrace.wire.apis import ApiKey
from headrace.wire.batches import decode_records, encode_batch, end_of, iterate_headers
from headrace.wire.compression import Compression
from headrace.wire.errors import ErrorCode
from headrace.wire.messages import produce as wire
from headrace.wire.records import Record
from headrace.wire.transactions import marker_in

EARLIEST: Final = -2
LOOK_BACK: Final = 16
"""Offsets of the ledger that a driver reads first. A batch takes three or four."""
LOOK_BACK_GROWTH: Final = 4
PACKED_ABOVE: Final = 1024
"""Bytes of a decision above which it is compressed."""
FENCED: Final = (
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.INVALID_TXN_STATE,
)


class ConcurrentWrite(HeadraceError):  # noqa: N818 - a state of the query
    """Another driver of the query has taken over."""

    def __init__(self, query: str) -> None:
        super().__init__(
            f"Another run of query '{query}' decides about its batches now, so that this one stops: let one run at a "
            "time, or give each its own checkpoint or queryId."
        )


class Below(NamedTuple):
    """The decisions that were committed below a claim."""

    newest: Decision | None
    is_abandoned: bool
    """Whether the claim's run had abandoned its batch."""
    is_finished: bool
    """Whether the newest decision is known to be carried out."""


class _Place(NamedTuple):
    topic_id: TopicId
    partition: int


class Ledger:
    """The decisions of one query, for one driver. Holds at most one claim."""

    def __init__(self, cluster: Cluster, query: str) -> None:
        self._cluster = cluster
        self._query = query
        self._two_phase = TwoPhase(cluster)
        self._claim: Prepared | None = None
        self._place: _Place | None = None

    async def claim(self, claim: Decision | Abandoned) -> Below:
        """Fence the other drivers, write the claim in a transaction, and return what was committed before. Raises
        ConcurrentWrite, ClientError, CorruptData.
        """
        view = await ledger_topic(self._cluster)
        place = self._place = _Place(view.id, partition_of(self._query.encode(), len(view.partitions)))
        self._claim = await self._two_phase.begin(ledger_name(self._query), timeout_ms=SPARK_LEDGER_TIMEOUT_MS)
        try:
            offset = await self._write(place, claim.key(self._query), claim.to_bytes(), self._claim)
        except RefusedError as error:
            raise self._fenced(error) from error
        abandoned = Abandoned(claim.batch, claim.run)
        key, mark, note = self._query.encode(), abandoned.key(self._query), Finished.key(self._query)
        found = await self._below(place, offset, key, (mark, note))
        newest = Decision.from_bytes(self._query, found[key]) if key in found else None
        return Below(
            newest,
            found.get(mark) == abandoned.to_bytes(),
            newest is not None and found.get(note) == Finished.of(newest).to_bytes(),
        )

    async def note(self, finished: Finished) -> None:
        """Write that a decision is carried out. In no transaction, for it is true whoever decides next. A late driver
        may replace a newer note, which only costs the next driver a look at the transactions. Raises ClientError.
        """
        assert self._place is not None, "it was claimed"
        await self._write(self._place, finished.key(self._query), finished.to_bytes(), None)

    async def settle(self, *, confirm: bool) -> None:
        """Commit the claim, or abort it. Raises ConcurrentWrite, ClientError."""
        assert self._claim is not None, "it was claimed"
        try:
            await self._two_phase.end(self._claim, commit=confirm)
        except RefusedError as error:
            raise self._fenced(error) from error

    def _fenced(self, error: RefusedError) -> HeadraceError:
        return ConcurrentWrite(self._query) if error.code in FENCED else error

    async def _write(self, place: _Place, key: bytes, value: bytes, claim: Prepared | None) -> int:
        """Append a record, in the claim's transaction if any. Returns its offset."""
        records = [Record(0, round(time.time() * 1000), key, value)]
        if claim is None:
            batch = encode_batch(records)
        else:
            batch = encode_batch(
                records,
                compression=Compression.GZIP if len(value) > PACKED_ABOVE else Compression.NONE,
                producer_id=claim.producer_id,
                producer_epoch=claim.epoch,
                base_sequence=0,
                transactional=True,
            )
        data = wire.PartitionProduceData(index=place.partition, records=memoryview(batch))
        request = wire.ProduceRequest(
            transactional_id=None if claim is None else claim.name,
            acks=ACKS_ALL,
            timeout_ms=PRODUCE_TIMEOUT_MS,
            topic_data=(wire.TopicProduceData(name=LEDGER, topic_id=place.topic_id, partition_data=(data,)),),
        )

        async def ask() -> int:
            leader = await self._cluster.partition(LEDGER, place.partition)
            connection = await self._cluster.broker_connection(leader.leader)
            answer = await connection.request(ApiKey.PRODUCE, request, timeout_ms=PRODUCE_TIMEOUT_MS + 5_000)
            ((result,),) = (topic.partition_responses for topic in answer.responses)
            check(result.error_code, f"Partition {place.partition} of topic '{LEDGER}'", result.error_message)
            if result.base_offset < 0:
                raise GaveUpError(f"Topic '{LEDGER}': a leader does not tell where it stored a record.")
            return int(result.base_offset)

        return await self._cluster.retried(ask, (LEDGER,))

    async def _below(self, place: _Place, end: int, key: bytes, others: Collection[bytes]) -> dict[bytes, bytes]:
        """The last committed value of `key` below an offset, and those of `others` that were written since.

        Reads back until there is one. A note follows its decision. If a run's mark is below the last decision, that
        decision is about the mark's batch or a later one, and the mark changes nothing.
        """
        first, width = 0, LOOK_BACK
        while True:
            begin = max(first, end - width)
            try:
                found = await self._between(place, begin, end, (key, *others))
            except RefusedError as error:
                if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                    raise
                (start,) = (await list_offsets(self._cluster, LEDGER, (place.partition,), EARLIEST)).values()
                if start.offset <= begin:  # the log ends below it
                    raise
                first = int(start.offset)
                continue
            if key in found or begin == first:
                return found
            width *= LOOK_BACK_GROWTH

    async def _between(self, place: _Place, offset: int, end: int, keys: Collection[bytes]) -> dict[bytes, bytes]:
        """The last committed value of each of these keys from an offset on, and below another.

        A record whose marker is not there is committed. All earlier transactions of the query have ended, and
        compaction takes the records of an aborted one before its marker.
        """
        committed, undecided = list[Record](), dict[int, list[Record]]()
        while offset < end:
            fetched = await fetch_batches(
                self._cluster,
                LEDGER,
                place.topic_id,
                place.partition,
                offset,
                bytes_max=SPARK_FETCH_BYTES,
                wait_ms=SPARK_FETCH_WAIT_MS,
            )
            for at, header in iterate_headers(fetched.data):
                if header.base_offset >= end:
                    break
                if header.is_control:
                    marker = marker_in(fetched.data, at, header)
                    written = undecided.pop(header.producer_id, [])
                    committed += written if marker is not None and marker.committed else ()
                    continue
                records = decode_records(fetched.data[at : at + header.size])
                undecided.setdefault(header.producer_id, []).extend(each for each in records if each.key in keys)
            offset = max(offset, int(end_of(fetched.data))) if fetched.data else offset
        committed += chain.from_iterable(undecided.values())
        committed.sort(key=attrgetter("offset"))
        return {each.key: each.value for each in committed if each.key is not None and each.value is not None}
