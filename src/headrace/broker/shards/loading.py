"""Reads one partition of an internal topic. Records are taken in worker threads, some at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, runtime_checkable

from headrace.base.errors import CorruptData
from headrace.base.ids import Offset
from headrace.base.limits import GROUP_LOAD_BYTES
from headrace.base.ports import Buffer
from headrace.broker.partitions.partition import Partition
from headrace.storage.engine.reading import read_or_fetch
from headrace.wire.batches import BatchHeader, check_batch, decode_pairs, iterate_headers
from headrace.wire.errors import ErrorCode
from headrace.wire.transactions import decode_marker


class Replay(Protocol):
    """The receiver of the records. Called in worker threads, in the order of the log."""

    def apply(self, key: bytes, value: bytes | None) -> None: ...


@runtime_checkable
class TransactionalReplay(Replay, Protocol):
    """A receiver that knows records of transactions: these count once theirs is committed."""

    def apply_open(self, producer_id: int, key: bytes, value: bytes | None) -> None: ...

    def end(self, producer_id: int, *, is_committed: bool) -> None:
        """A marker ends the producer's transaction."""


async def committed(partition: Partition, end: Offset) -> ErrorCode:
    """Return NONE once everything below `end` is committed; else why this broker will not hear of it."""
    outcome = _Outcome(asyncio.get_running_loop().create_future())
    partition.park_commit(end, outcome)
    return await outcome.future


class _Outcome:
    """A `Commit` that one caller awaits."""

    def __init__(self, future: asyncio.Future[ErrorCode]) -> None:
        self.future = future

    def on_outcome(self, error: ErrorCode) -> None:
        if not self.future.done():
            is_committed = error is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND  # on few copies, which is no matter here
            self.future.set_result(ErrorCode.NONE if is_committed else error)


async def read(partition: Partition, end: Offset, replay: Replay, is_over: Callable[[], bool]) -> None:
    """Read what lies below `end` into `replay`, until `is_over` returns true. Raises CorruptData, StorageFailure,
    OSError."""
    loop, log = asyncio.get_running_loop(), partition.log
    at = log.log_start_offset
    while at < end and not is_over():
        data = await read_or_fetch(log, at, GROUP_LOAD_BYTES, partition.visible_end, at_least_one=True)
        if not data and log.gaps_below > 0:
            break  # nothing is left up to the end
        at = await loop.run_in_executor(None, _replay, replay, data, at)


def _replay(replay: Replay, data: Buffer, at: Offset) -> Offset:
    """Read whole batches of the log into `replay`, in a worker thread. Returns the offset that follows them."""
    if not data:
        raise CorruptData(f"The topic cannot be read at offset {at}.")
    view = memoryview(data)
    for position, header in iterate_headers(data):
        check_batch(data, position, compacted=True)
        at = Offset(header.last_offset + 1)
        batch = view[position : position + header.size]
        if header.is_transactional and isinstance(replay, TransactionalReplay):
            _replay_transactional(replay, header, batch)
        elif not header.is_control:
            for key, value in decode_pairs(batch):
                replay.apply(key or b"", value)
    return at


def _replay_transactional(replay: TransactionalReplay, header: BatchHeader, batch: memoryview) -> None:
    """Read a batch of a transaction, or the marker that ends it."""
    if not header.is_control:
        for key, value in decode_pairs(batch):
            replay.apply_open(header.producer_id, key or b"", value)
    elif (marker := decode_marker(batch)) is not None:
        replay.end(header.producer_id, is_committed=marker.committed)
