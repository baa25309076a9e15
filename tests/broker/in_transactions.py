"""Transactions of a test, appended to a partition below its admission, as their coordinator would have it."""

from __future__ import annotations

from headrace.broker.partitions.partition import Partition
from headrace.storage.engine.appending import Appended
from headrace.wire.batches import encode_batch, parse_header
from headrace.wire.records import Record
from headrace.wire.transactions import EndMarker, encode_marker

TIME = 1_700_000_000_000


class Transactions:
    """The producers of one partition, each at epoch 0."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self._sequences: dict[int, int] = {}

    def write(self, producer: int, *values: bytes, transactional: bool = True) -> Appended:
        sequence = self._sequences.get(producer, 0)
        self._sequences[producer] = sequence + len(values)
        records = [Record(at, TIME, b"key", value) for at, value in enumerate(values)]
        return self._append(
            encode_batch(
                records,
                producer_id=producer,
                producer_epoch=0,
                base_sequence=sequence,
                transactional=transactional,
            )
        )

    def mark(self, producer: int, *, committed: bool) -> Appended:
        marker = EndMarker(committed, 3)
        batch = encode_marker(producer, 0, marker, timestamp=TIME)
        appended = self._append(batch)
        self.partition._on_marker(parse_header(batch), marker, appended.base_offset, TIME)
        return appended

    def _append(self, batch: bytes) -> Appended:
        appended = self.partition._append(batch, parse_header(batch), TIME, needs_flush=True)
        assert isinstance(appended, Appended)
        return appended
