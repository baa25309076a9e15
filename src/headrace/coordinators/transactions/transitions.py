"""The next record of a transactional id, for each thing that may happen to it (Kafka's `prepare*` of metadata).

Promises: pure. Whether the thing may happen was decided before, and `model.check_transition` holds of each result. A
`fresh` producer id is used where the epochs of the present one are exhausted.
"""

from __future__ import annotations

from headrace.base.ids import NO_PRODUCER_ID, PRODUCER_EPOCH_MAX, ProducerEpoch, ProducerId
from headrace.base.values import replaced
from headrace.coordinators.transactions.model import (
    NO_PRODUCER_EPOCH,
    NOT_STARTED_MS,
    Producer,
    Standing,
    TransactionState,
    TransactionVersion,
)
from headrace.coordinators.values import NamedPartition


def raised(producer: Producer, fresh: ProducerId | None) -> Producer | None:
    """The producer with its next epoch. None: that needs a fresh producer id, and there is none."""
    if not producer.is_exhausted:
        return Producer(producer.id, ProducerEpoch(producer.epoch + 1))
    return None if fresh is None else Producer(fresh, ProducerEpoch(0))


def initialised(
    standing: Standing, producer: Producer, last_epoch: ProducerEpoch, timeout_ms: int, now_ms: int
) -> Standing:
    """A client begins with this producer; `last_epoch` is the one before, if it is the same client."""
    return replaced(
        standing,
        state=TransactionState.EMPTY,
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        last_producer_epoch=last_epoch,
        previous_producer_id=standing.producer_id,
        timeout_ms=timeout_ms,
        partitions=frozenset(),
        started_ms=NOT_STARTED_MS,
        updated_ms=now_ms,
    )


def kept(standing: Standing, client: Producer, now_ms: int) -> Standing:
    """The transaction goes on, but its client is another: it can only end it (KIP-939)."""
    return replaced(
        standing,
        next_producer_id=client.id,
        next_producer_epoch=client.epoch,
        previous_producer_id=standing.producer_id,
        updated_ms=now_ms,
    )


def added(
    standing: Standing, partitions: frozenset[NamedPartition], version: TransactionVersion, now_ms: int
) -> Standing:
    """Partitions were added, which may begin a transaction."""
    begins = standing.state is not TransactionState.ONGOING
    return replaced(
        standing,
        state=TransactionState.ONGOING,
        partitions=standing.partitions | partitions,
        started_ms=now_ms if begins else standing.started_ms,
        previous_producer_id=standing.producer_id,
        updated_ms=now_ms,
        client_version=version,
    )


def decided(
    standing: Standing, *, commit: bool, version: TransactionVersion, fresh: ProducerId | None, now_ms: int
) -> Standing | None:
    """The end of the transaction is decided. With TV2 the epoch rises, so that markers fence all that is late. None: a
    fresh producer id is needed, and there is none. A transaction that was kept always ends so."""
    ongoing = standing.state is TransactionState.ONGOING
    after = replaced(
        standing,
        state=TransactionState.PREPARE_COMMIT if commit else TransactionState.PREPARE_ABORT,
        started_ms=standing.started_ms if ongoing else now_ms,
        previous_producer_id=standing.producer_id,
        updated_ms=now_ms,
        client_version=version,
    )
    return _with_raised_epochs(after, fresh) if version.bumps_epoch else after


def _with_raised_epochs(standing: Standing, fresh: ProducerId | None) -> Standing | None:
    client = raised(standing.client, fresh)
    if client is None:
        return None
    after = replaced(
        standing,
        last_producer_epoch=standing.producer_epoch,
        producer_epoch=ProducerEpoch(min(standing.producer_epoch + 1, PRODUCER_EPOCH_MAX)),
    )
    if standing.is_kept:
        return replaced(after, next_producer_id=client.id, next_producer_epoch=client.epoch)
    return replaced(after, next_producer_id=client.id) if client.id != standing.producer_id else after


def fenced(
    standing: Standing, *, version: TransactionVersion, fresh: ProducerId | None, now_ms: int
) -> Standing | None:
    """The coordinator itself aborts the transaction and fences its producer. None: as in `decided`."""
    after = decided(standing, commit=False, version=version, fresh=fresh, now_ms=now_ms)
    if after is None or version.bumps_epoch:
        return after
    epoch = min(standing.producer_epoch + 1, PRODUCER_EPOCH_MAX)
    return replaced(after, producer_epoch=ProducerEpoch(epoch), last_producer_epoch=NO_PRODUCER_EPOCH)


def completed(standing: Standing, now_ms: int) -> Standing:
    """All markers are written, and the client goes on."""
    client = standing.client_after
    committed = standing.state is TransactionState.PREPARE_COMMIT
    return replaced(
        standing,
        state=TransactionState.COMPLETE_COMMIT if committed else TransactionState.COMPLETE_ABORT,
        producer_id=client.id,
        producer_epoch=client.epoch,
        previous_producer_id=standing.producer_id,
        next_producer_id=NO_PRODUCER_ID,
        next_producer_epoch=NO_PRODUCER_EPOCH,
        partitions=frozenset(),
        updated_ms=now_ms,
    )
