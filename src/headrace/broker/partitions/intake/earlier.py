"""Decides whether a batch has to wait for others that its producer sent before it, and that may still come here.

They may come late for three reasons. The previous owner of the partition still carries batches here after a hand-over.
Nobody led it here yet. Or they were refused for a passing reason. Promises: no batch of an idempotent producer
is appended before one that it sent earlier and that may still be appended. Loop-only.
"""

from __future__ import annotations

from headrace.base.ids import Offset
from headrace.base.limits import CARRIED_UNTIL_MS_MAX
from headrace.base.ports import Buffer, Clock
from headrace.broker.partitions.intake.overtaking import Overtaking
from headrace.broker.partitions.intake.turned_away import TurnedAway
from headrace.broker.partitions.replica import WriteRefusal
from headrace.replica.producers import ProducerStates
from headrace.wire.batches import HEADER_BYTES, BatchHeader, parse_header


class EarlierBatches:
    """The earlier batches of all producers of one partition, under one leader."""

    __slots__ = ("_clock", "_overtaking", "_producers", "_taken_over_at", "_turned_away")

    def __init__(self, producers: ProducerStates, clock: Clock) -> None:
        self._producers = producers
        self._clock = clock
        self._overtaking = Overtaking()
        self._turned_away = TurnedAway()
        self._taken_over_at: float | None = None
        """When the last hand-over to this broker was finished, as long as batches may be carried to it."""

    def begin_overtaking(self) -> None:
        """Note that the partition may be written to from now on: for a while, batches may overtake others."""
        self._overtaking.begin(self._clock.monotonic())

    def end_overtaking(self) -> None:
        """Note that missing batches are lost, and will not come again."""
        self._overtaking.end()

    def on_taken_over(self) -> None:
        """Note the end of a hand-over to this broker: its previous owner carries batches here for a while."""
        self._taken_over_at = self._clock.monotonic()

    def on_duplicate(self, producer_id: int) -> None:
        """Note a batch of this producer that was appended before."""
        self._overtaking.on_duplicate(producer_id, self._clock.monotonic())

    def turned_away(self, records: Buffer, refusal: WriteRefusal) -> WriteRefusal:
        """Return the refusal, and note it: later batches of an unknown producer must not be appended before this
        one."""
        if len(records) >= HEADER_BYTES:
            header = parse_header(records)
            if header.base_sequence >= 0 and self._producers.last_offset(header.producer_id) is None:
                self._turned_away.note(header, self._clock.monotonic())
        return refusal

    def are_awaited_before(self, header: BatchHeader) -> bool:
        """Whether a batch that fits behind those that are known of its producer may follow others."""
        if self._taken_over_at is not None and self._may_lack_others(header):
            return True
        return bool(self._turned_away) and self._turned_away.awaits_another(header, self._clock.monotonic())

    def may_still_come(self, header: BatchHeader, start_offset: Offset) -> bool:
        """Whether batches that the producer sent before this one, its first here, may have come too early, or are still
        carried here. `start_offset`: where the leader's epoch began."""
        if not self._producers.skips(header):
            return False
        if self._awaits_carried:
            return True
        producer_id = header.producer_id
        last = self._producers.last_offset(producer_id)
        is_first = last is not None and last < start_offset
        return is_first and self._overtaking.may_be(producer_id, self._clock.monotonic())

    def _may_lack_others(self, header: BatchHeader) -> bool:
        """Whether the batch may follow others that are still carried here: it is not its producer's first, and that
        producer is unknown. The batch of a producer that was forgotten long ago is accepted once nothing is carried."""
        is_first = header.producer_id < 0 or header.base_sequence == 0
        return not is_first and self._producers.last_offset(header.producer_id) is None and self._awaits_carried

    @property
    def _awaits_carried(self) -> bool:
        """Whether the previous owner may still carry batches here that came before the present ones."""
        if self._taken_over_at is None:
            return False
        if self._clock.monotonic() >= self._taken_over_at + CARRIED_UNTIL_MS_MAX / 1000:
            self._taken_over_at = None
        return self._taken_over_at is not None
