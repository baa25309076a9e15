"""The slow twin of `headrace.spark.write.packing`: the same bytes from the same rows in plain Python.

It is the tests' oracle, and used where numba cannot be imported. Promises the same batches, cut at the same rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.net.client.partitioner import partition_of
from headrace.spark.write.packing import STICKY_ROW_BYTES, Layout, Packed, chosen_partitions
from headrace.spark.write.rows import Chunk
from headrace.wire.batches import HEADER_BYTES
from headrace.wire.records import Record, pack_records


class PlainPacker:
    """See `headrace.spark.write.packing.Packer`."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._keyless_bytes = 0

    def pack(self, chunk: Chunk) -> list[Packed]:
        chosen = chosen_partitions(chunk, self._layout.partitions).tolist()
        by_partition: dict[int, list[Record]] = {}
        for record, partition in zip(self._records(chunk), chosen, strict=True):
            by_partition.setdefault(self._partition(record, partition), []).append(record)
        return [
            packed for partition in sorted(by_partition) for packed in self._batches(partition, by_partition[partition])
        ]

    def _records(self, chunk: Chunk) -> list[Record]:
        nothing = [None] * chunk.rows
        keys = nothing if chunk.key is None else chunk.key.to_pylist()
        headers = nothing if chunk.headers is None else chunk.headers.to_pylist()
        positions, stamp = chunk.positions.tolist(), self._layout.stamp
        found = []
        for at, value in enumerate(chunk.value.to_pylist()):
            own = tuple((each["key"], each["value"]) for each in headers[at] or ())
            if stamp is not None:
                own += stamp.headers(positions[at])
            found.append(Record(0, int(chunk.times[at]), keys[at], value, own))
        return found

    def _partition(self, record: Record, chosen: int) -> int:
        if chosen >= 0:
            return chosen
        if record.key is not None:
            return partition_of(record.key, self._layout.partitions)
        turn = self._layout.begin + self._keyless_bytes // self._layout.turn
        self._keyless_bytes += len(record.value or b"") + STICKY_ROW_BYTES
        return turn % self._layout.partitions

    def _batches(self, partition: int, records: Sequence[Record]) -> list[Packed]:
        found, room, first = [], bytearray(), 0
        for at, record in enumerate(records):
            base = records[first].timestamp
            packed = pack_records([record._replace(offset=at - first)], 0, base)
            if at > first and len(room) + len(packed) > self._layout.limit:
                found.append(_packed(partition, records[first:at], room))
                first, room = at, bytearray()
                packed = pack_records([record], 0, record.timestamp)
            if not room:
                room += bytes(HEADER_BYTES)
            room += packed
        found.append(_packed(partition, records[first:], room))
        return found


def _packed(partition: int, records: Sequence[Record], room: bytearray) -> Packed:
    newest = max(record.timestamp for record in records)
    return Packed(partition, len(records), records[0].timestamp, newest, memoryview(room))
