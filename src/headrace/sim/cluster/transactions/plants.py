"""Bugs to plant in transactions, one at a time, to show that simulated clusters find them.

Each is the effect of a plausible mistake in one function, and is removed at the end of the `with`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final
from unittest.mock import patch

from headrace.base.ids import Offset, PartitionIndex, TopicPartition
from headrace.broker.durable import exporter
from headrace.broker.moves import handing_over
from headrace.broker.partitions.partition import Partition
from headrace.broker.transactions.marking import Marker, MarkerWriter
from headrace.broker.transactions.shard import TransactionShard
from headrace.coordinators.groups import transactional
from headrace.coordinators.groups.model import OpenCommitWrite
from headrace.coordinators.groups.turn import Turn as GroupTurn
from headrace.coordinators.transactions import ending
from headrace.coordinators.transactions.events import (
    Append,
    EndReply,
    EndTransaction,
    SendMarkers,
    TransactionStands,
)
from headrace.coordinators.transactions.model import Standing, TransactionState, TransactionVersion
from headrace.coordinators.transactions.turn import Turn
from headrace.coordinators.values import NamedPartition
from headrace.replica.producer_snapshots import ProducerEntry, encode_snapshot
from headrace.replica.producers import ACCEPT, ProducerStates, Verdict
from headrace.replica.transactions import Guard, OpenTransactions
from headrace.storage.log.aborted import Aborted
from headrace.wire.batches import BatchHeader
from headrace.wire.errors import ErrorCode
from headrace.wire.transactions import AbortedTransaction


@contextmanager
def marker_before_the_decision_is_durable() -> Iterator[None]:
    """Markers go out as soon as the decision is appended."""
    append = TransactionShard._append

    def hasty(self: TransactionShard, name: str, effect: Append) -> None:
        append(self, name, effect)
        record = effect.record
        if self.lost or not isinstance(record, TransactionStands) or not record.standing.state.is_decided:
            return
        markers = SendMarkers(
            number=-1,
            producer=record.standing.producer,
            commit=record.standing.state is TransactionState.PREPARE_COMMIT,
            coordinator_epoch=self._terms().coordinator_epoch,
            version=record.standing.client_version,
            partitions=record.standing.partitions,
        )
        self._markers.send(markers, lambda _: None, lambda: self.lost)

    with patch.object(TransactionShard, "_append", hasty):
        yield


@contextmanager
def last_stable_offset_ahead_of_a_transaction() -> Iterator[None]:
    """A transaction counts as ended once its marker is appended, wherever that is replicated."""

    def hasty(self: OpenTransactions, high_watermark: Offset) -> Offset:
        return min(high_watermark, next(iter(self._first.values()), high_watermark))

    with patch.object(OpenTransactions, "stable_end", hasty):
        yield


@contextmanager
def old_epoch_accepted_after_a_bump() -> Iterator[None]:
    """A partition does not compare the epochs of a transaction's batches."""
    begin, check = ProducerStates.begin_verification, ProducerStates._check_in_transaction

    def is_old(self: ProducerStates, header: BatchHeader) -> bool:
        state = self._states.get(header.producer_id)
        return state is not None and header.producer_epoch < state.epoch

    def begin_all(self: ProducerStates, header: BatchHeader, *args: Any, **options: Any) -> Any:
        return None if is_old(self, header) else begin(self, header, *args, **options)

    def lenient(self: ProducerStates, header: BatchHeader, *args: Any) -> Verdict:
        return ACCEPT if is_old(self, header) else check(self, header, *args)

    with (
        patch.object(ProducerStates, "begin_verification", begin_all),
        patch.object(ProducerStates, "_check_in_transaction", lenient),
    ):
        yield


@contextmanager
def ended_before_all_markers_are_durable() -> Iterator[None]:
    """A marker counts once its partition's leader has appended it."""
    write = MarkerWriter.write

    def hasty(self: MarkerWriter, named: NamedPartition, marker: Marker, done: Callable[[ErrorCode], None]) -> None:
        image = self._image()
        topic = image.topic(named.topic)
        before = None
        if topic is not None:
            found = self._partitions.find(TopicPartition(topic.id, PartitionIndex(named.partition)), image)
            before = None if isinstance(found, ErrorCode) else found.log.log_end_offset
        told: list[ErrorCode] = []

        def once(error: ErrorCode) -> None:
            if not told:
                told.append(error)
                done(error)

        write(self, named, marker, once)
        if before is not None and not isinstance(found, ErrorCode) and found.log.log_end_offset > before:
            once(ErrorCode.NONE)

    with patch.object(MarkerWriter, "write", hasty):
        yield


@contextmanager
def offsets_shown_before_the_commit() -> Iterator[None]:
    """Offsets of a transaction count once they are durable."""
    written = transactional.on_written

    def hasty(turn: GroupTurn, number: int, write: OpenCommitWrite, error: ErrorCode) -> None:
        turn.update(offsets=turn.group.offsets.update(dict(write.part.commits)))
        written(turn, number, write, error)

    with patch.object(transactional, "on_written", hasty):
        yield


@contextmanager
def aborted_list_ends_with_the_segment() -> Iterator[None]:
    """Only the index of the segment that a reader begins in is looked at."""
    overlapping = Aborted.overlapping

    def short(self: Aborted, start: int, end: int) -> Sequence[AbortedTransaction]:
        base = self._contents.holding(Offset(start)).base
        return [
            each
            for each in overlapping(self, start, end)
            if self._contents.holding(Offset(each.last_offset)).base == base
        ]

    with patch.object(Aborted, "overlapping", short):
        yield


@contextmanager
def open_transactions_lost_by_a_new_leader() -> Iterator[None]:
    """A broker that becomes the leader knows no open transaction, also where the copy has been moved to it."""
    init = Partition.__init__

    def forgetful(self: Partition, **options: Any) -> None:
        init(self, **options)
        self.producers.transactions._first.clear()

    with patch.object(Partition, "__init__", forgetful):
        yield


@contextmanager
def not_verified_after_a_leader_change() -> Iterator[None]:
    """Only the first leader of a partition asks the coordinator about a transaction's first batch."""
    begin, append, check = Partition.begin_verification, Partition.append, ProducerStates.check
    trusting: list[ProducerStates] = []

    def begin_all(self: Partition, header: BatchHeader, **options: Any) -> Guard | ErrorCode | None:
        return None if self.leader_epoch > 0 else begin(self, header, **options)

    def append_all(self: Partition, *args: Any, **options: Any) -> Any:
        trusting[:] = [self.producers] if self.leader_epoch > 0 else []
        try:
            return append(self, *args, **options)
        finally:
            trusting.clear()

    def trust(self: ProducerStates, header: BatchHeader, guard: Guard | None = None, *, verifies: bool = False) -> Any:
        return check(self, header, guard, verifies=verifies and self not in trusting)

    with (
        patch.object(Partition, "begin_verification", begin_all),
        patch.object(Partition, "append", append_all),
        patch.object(ProducerStates, "check", trust),
    ):
        yield


@contextmanager
def retry_of_the_end_decides_again() -> Iterator[None]:
    """A client may end a transaction with the epoch before the present one, as its answer may have been lost."""
    judge = ending._judged_by_epoch

    def again(turn: Turn, event: EndTransaction, version: TransactionVersion) -> Standing | EndReply:
        standing = None if turn.transaction is None else turn.standing
        if (
            standing is not None
            and standing.state is TransactionState.ONGOING
            and event.producer.id == standing.producer_id
            and event.producer.epoch + 1 == standing.producer_epoch
        ):
            return ending._decision(turn, commit=event.commit, version=version)
        return judge(turn, event, version)

    with patch.object(ending, "_judged_by_epoch", again):
        yield


@contextmanager
def footer_lists_no_aborted_transaction() -> Iterator[None]:
    """The footers of durable segments tell of no transaction that it was aborted."""
    with patch.object(exporter, "joined", lambda *_: ()):
        yield


@contextmanager
def seal_tells_no_open_transaction() -> Iterator[None]:
    """An owner that hands a partition over keeps the transactions that are open in it for itself."""

    def silent(entries: Sequence[ProducerEntry]) -> bytes:
        return encode_snapshot([entry._replace(transaction_start=-1) for entry in entries])

    with patch.object(handing_over, "encode_snapshot", silent):
        yield


@contextmanager
def aborted_transactions_go_with_their_first_records() -> Iterator[None]:
    """Once the segment with its first records is deleted, a transaction is forgotten to be aborted."""
    between = Aborted.overlapping

    def forgetful(self: Aborted, start: int, end: int) -> Sequence[AbortedTransaction]:
        begins = self._contents.segments[0].base
        return [each for each in between(self, start, end) if each.first_offset >= begins]

    with patch.object(Aborted, "overlapping", forgetful):
        yield


TRANSACTION_PLANTS: Final[dict[str, Callable[[], AbstractContextManager[None]]]] = {
    "marker-before-the-decision-is-durable": marker_before_the_decision_is_durable,
    "last-stable-offset-ahead-of-a-transaction": last_stable_offset_ahead_of_a_transaction,
    "old-epoch-accepted-after-a-bump": old_epoch_accepted_after_a_bump,
    "ended-before-all-markers-are-durable": ended_before_all_markers_are_durable,
    "offsets-shown-before-the-commit": offsets_shown_before_the_commit,
    "aborted-list-ends-with-the-segment": aborted_list_ends_with_the_segment,
    "open-transactions-lost-by-a-new-leader": open_transactions_lost_by_a_new_leader,
    "not-verified-after-a-leader-change": not_verified_after_a_leader_change,
    "retry-of-the-end-decides-again": retry_of_the_end_decides_again,
    "footer-lists-no-aborted-transaction": footer_lists_no_aborted_transaction,
    "seal-tells-no-open-transaction": seal_tells_no_open_transaction,
    "aborted-transactions-go-with-their-first-records": aborted_transactions_go_with_their_first_records,
}
"""Found by the part of transactions (`transactions.run.run_transactions`)."""
