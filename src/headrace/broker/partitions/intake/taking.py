"""Takes the batches of clients in the order in which they came.

A batch is appended at once, or behind others that a worker unpacks, or once the partition may be written to. Loop-only.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from headrace.base.ports import Buffer
from headrace.broker.partitions.intake.forwarding import Done
from headrace.broker.partitions.intake.repacking import Outcome, Overflow, Result, Unsound
from headrace.broker.partitions.intake.validating import refusal_of
from headrace.broker.partitions.replica import WriteRefusal
from headrace.storage.engine.appending import Appended
from headrace.wire.batches import Repacked
from headrace.wire.errors import ErrorCode
from headrace.wire.validation import Broken

if TYPE_CHECKING:
    from headrace.broker.partitions.partition import Partition


def take(partition: Partition, records: Buffer, *, needs_isr: bool, done: Done) -> None:
    """See `Partition.take`."""
    if _is_taken_on(partition, records, needs_isr, done):
        return
    if partition.line.is_empty:
        if _is_held_up(partition):
            _wait(partition, bytes(records), needs_isr, done)
            return
        walked = partition.examine(records)
        if walked is not None or partition.unpacking_of(records) is None:
            done(partition.append(records, needs_isr=needs_isr, walked=walked))
            return
    kept = bytes(records)
    partition.line.join(
        kept, partial(partition.unpacking_of, kept), partial(_on_turn, partition, kept, needs_isr, done)
    )


def _is_taken_on(partition: Partition, records: Buffer, needs_isr: bool, done: Done) -> bool:
    """Whether another broker accepts the batch, as this leadership is over."""
    is_over = partition.availability is ErrorCode.NOT_LEADER_OR_FOLLOWER
    return is_over and partition.events.forward(partition.topic_partition, records, needs_isr, done)


def _is_held_up(partition: Partition) -> bool:
    """Whether writes have to wait for the end of a hand-over."""
    return not partition.gate.is_open and partition.availability is ErrorCode.NONE


def _wait(partition: Partition, kept: bytes, needs_isr: bool, done: Done) -> None:
    if not partition.gate.park(partial(partition.take, kept, needs_isr=needs_isr, done=done), len(kept)):
        done(_put_off(partition, kept, "Too much waits until the partition is handed over; retry."))


def _put_off(partition: Partition, records: Buffer, text: str) -> WriteRefusal:
    return partition.earlier.turned_away(records, WriteRefusal(ErrorCode.REQUEST_TIMED_OUT, text))


def _on_turn(partition: Partition, kept: bytes, needs_isr: bool, done: Done, result: Result) -> None:
    if isinstance(result, Overflow):  # it had no turn, and must not wait at the gate before those that wait for one
        done(_put_off(partition, kept, "Too many batches wait to be unpacked; retry."))
    elif _is_held_up(partition):
        _wait(partition, kept, needs_isr, done)
    else:
        done(_append_turn(partition, result, needs_isr))


def _append_turn(partition: Partition, result: Buffer | Outcome, needs_isr: bool) -> Appended | WriteRefusal:
    if isinstance(result, Unsound):
        return WriteRefusal(ErrorCode.INVALID_RECORD, result.reason)
    if isinstance(result, Broken):
        return refusal_of(result)
    if not isinstance(result, Repacked):
        return partition.append(result, needs_isr=needs_isr)
    return partition.append(result.batch, needs_isr=needs_isr, walked=result.records)
