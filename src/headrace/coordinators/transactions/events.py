"""The events of a transactional id, its replies to requests, its effects, and the records that it keeps.

A `waiter` is the driver's number for one request, which gets exactly one `Reply`. The driver reports the outcome of
each `Append`: `WriteRefused` at once, or `Written`, in the order of the log. It reports the outcome of each partition
of a `SendMarkers`, in one `MarkersSettled` or in several, in any order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from headrace.base.ids import NO_PRODUCER_ID, ProducerEpoch, ProducerId
from headrace.coordinators.transactions.model import (
    NO_PRODUCER,
    NO_PRODUCER_EPOCH,
    Producer,
    Standing,
    TransactionVersion,
)
from headrace.coordinators.values import NamedPartition
from headrace.wire.errors import ErrorCode

# --- events ---


@dataclass(frozen=True, slots=True, kw_only=True)
class InitProducer:
    """InitProducerId with a transactional id (KIP-98, KIP-360, KIP-939)."""

    waiter: int
    timeout_ms: int
    expected: Producer | None = None
    """The producer that the client had, where it goes on after an error (KIP-360). None: a new client."""
    two_phase_commit: bool = False
    keep_prepared: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPartitions:
    """AddPartitionsToTxn of one transactional id without `verifyOnly`, and AddOffsetsToTxn, which adds the group's
    partition of `__consumer_offsets`."""

    waiter: int
    producer: Producer
    partitions: frozenset[NamedPartition]
    client_version: TransactionVersion
    """TV2 from AddPartitionsToTxn v4 and AddOffsetsToTxn v4 on, else TV0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyPartitions:
    """AddPartitionsToTxn of one transactional id with `verifyOnly`: a partition's leader asks whether it may append."""

    waiter: int
    producer: Producer
    partitions: tuple[NamedPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTransaction:
    """EndTxn: commit or abort."""

    waiter: int
    producer: Producer
    commit: bool
    client_version: TransactionVersion
    """TV2 from EndTxn v5 on, else TV0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkersSettled:
    """Outcomes of markers of the decision with this number. NONE means that the marker is on the whole ISR of its
    partition. Outcomes of an earlier decision are ignored."""

    number: int
    errors: Mapping[NamedPartition, ErrorCode]
    gone: frozenset[NamedPartition] = frozenset()
    """Partitions that no longer exist, so that they need no marker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """The shard was loaded from its log: sent to each transactional id, once, before anything else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expire:
    """Forget the id where nobody has used it for `transactional.id.expiration.ms`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """A time asked for with `Wake` has come. An early or needless tick does no harm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """An append is durable on the whole ISR, and so is every one before it."""

    write: int
    error: ErrorCode = ErrorCode.NONE
    """The answer despite that: by then the ISR was smaller than the acks=all rule requires."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteRefused:
    """Nothing of an append is in the log, nor will be. (Where that is uncertain, the driver drops the whole shard and
    loads it again.)"""

    write: int
    error: ErrorCode


Request: TypeAlias = InitProducer | AddPartitions | VerifyPartitions | EndTransaction
Event: TypeAlias = Request | MarkersSettled | Loaded | Expire | Tick | Written | WriteRefused

# --- replies: `error` alone stands for a refusal ---


class InitReply(NamedTuple):
    error: ErrorCode
    producer: Producer = NO_PRODUCER
    ongoing: Producer = NO_PRODUCER
    """The producer of the transaction that was kept (KIP-939)."""


class AddReply(NamedTuple):
    """One code for all partitions of the request."""

    error: ErrorCode


class VerifyReply(NamedTuple):
    """One code for each partition of the request; `error`, if set, applies to all."""

    error: ErrorCode
    partitions: tuple[ErrorCode, ...] = ()


class EndReply(NamedTuple):
    error: ErrorCode
    producer_id: ProducerId = NO_PRODUCER_ID
    producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH
    """The client goes on with these (EndTxn v5). Older clients get -1, and go on with those that they have."""


AnyReply: TypeAlias = InitReply | AddReply | VerifyReply | EndReply

# --- records: what the log of `__transaction_state` holds ---


class TransactionStands(NamedTuple):
    id: str
    standing: Standing


class TransactionForgotten(NamedTuple):
    id: str


TransactionRecord: TypeAlias = TransactionStands | TransactionForgotten

# --- effects ---


class Reply(NamedTuple):
    waiter: int
    reply: AnyReply


@dataclass(frozen=True, slots=True)
class Append:
    """Append this record, and report the outcome under this number."""

    write: int
    record: TransactionRecord
    version: TransactionVersion
    """Level of `transaction.version`, which decides the record's form."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SendMarkers:
    """Have a marker written to each of these partitions, by whoever leads it now (WriteTxnMarkers). Report the outcomes
    under this number, each once it is known."""

    number: int
    producer: Producer
    commit: bool
    coordinator_epoch: int
    version: TransactionVersion
    """Of the transaction (WriteTxnMarkers v2)."""
    partitions: frozenset[NamedPartition]


@dataclass(frozen=True, slots=True)
class Wake:
    """Deliver a `Tick` by this time (monotonic ms). Only the earliest of the requested times must be kept; each `Tick`
    requests the next."""

    at_ms: int


@dataclass(frozen=True, slots=True)
class Noted:
    """Log message of the broker: what the coordinator does without being asked."""

    text: str


Effect: TypeAlias = Reply | Append | SendMarkers | Wake | Noted
