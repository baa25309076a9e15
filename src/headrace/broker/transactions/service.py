"""The transaction coordinator of this broker.

Promises, beside those of every coordinator: an answer that rests on no record is of a state that nobody else has
changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Final

from headrace.broker.shards.coordinator import Coordinator
from headrace.controller.decision import Refusal
from headrace.wire.errors import ErrorCode

if TYPE_CHECKING:
    from headrace.base.ports import Clock
    from headrace.broker.partitions.partition import Partition
    from headrace.broker.transactions.shard import Markers, NewProducerId, Told, TransactionShard
    from headrace.broker.transactions.terms import KnownTerms
    from headrace.coordinators.transactions.events import Event
    from headrace.coordinators.transactions.model import Standing, Transaction
    from headrace.metadata.image import BrokerImage

TRANSACTION_TOPIC: Final = "__transaction_state"
NAMELESS: Final = "A transactional id has at least one character."


class TransactionService(Coordinator["TransactionShard"]):
    """See the module."""

    TOPIC: ClassVar[str] = TRANSACTION_TOPIC
    TOPIC_TITLE: ClassVar[str] = "the topic of transactions"
    CONFIGS: ClassVar[str] = "transaction.state.log"
    NOUN: ClassVar[str] = "transactional id"
    NAME_TOO_LONG: ClassVar[ErrorCode] = ErrorCode.INVALID_REQUEST

    def __init__(
        self, *, clock: Clock, markers: Callable[[], Markers], new_producer_id: NewProducerId, **common: Any
    ) -> None:
        """`markers` gives who has them written. `new_producer_id` gives a producer id that nobody has. `common`: see
        `Coordinator`."""
        self._clock = clock
        self._markers = markers
        self._new_producer_id = new_producer_id
        super().__init__(**common)

    def _new_shard(self, partition: Partition) -> TransactionShard:
        from headrace.broker.transactions.shard import TransactionShard

        return TransactionShard(
            partition,
            terms=lambda: self._terms.at(partition.leader_epoch),
            clock=self._clock,
            lease=self._lease,
            markers=self._markers(),
            new_producer_id=self._new_producer_id,
            on_lost=self._on_lost,
            on_bug=self._on_bug,
        )

    @cached_property
    def _terms(self) -> KnownTerms:
        from headrace.broker.transactions.terms import KnownTerms

        return KnownTerms(self._metadata, self._configs, self._node)

    # asking

    async def ask(self, transactional_id: str, build: Callable[[int], Event]) -> Told:
        """Put a request to a transactional id. Returns its answer, or the error why it cannot be asked here and now. In
        doubt, the controller is asked first. Else an answer that needs no record might be of an old state, and a leader
        might begin again a transaction that has ended."""
        shard = self.shard(transactional_id)
        if not isinstance(shard, ErrorCode) and shard.is_in_doubt:
            await self.make_sure()
            shard = self.shard(transactional_id)
            if not isinstance(shard, ErrorCode) and shard.is_in_doubt:
                return ErrorCode.NOT_COORDINATOR
        return shard if isinstance(shard, ErrorCode) else await shard.ask(transactional_id, build)

    def shard(self, name: str) -> TransactionShard | ErrorCode:
        return super().shard(name) if name else ErrorCode.INVALID_REQUEST

    def described(self, transactional_id: str) -> Standing | ErrorCode:
        """Return how an id stands on record, or the error for who asks."""
        shard = self.shard(transactional_id)
        if isinstance(shard, ErrorCode):
            return shard
        from headrace.coordinators.transactions.views import described

        return described(transactional_id, shard.kept.get(transactional_id))

    def transactions(self) -> Iterator[Transaction]:
        """Iterate over all transactional ids that this broker keeps."""
        for _, shard in sorted(self._shards.items()):
            yield from shard.kept.values()

    # the coordinator, and the topic

    def coordinator(self, name: str) -> BrokerImage | Refusal:
        return super().coordinator(name) if name else Refusal(ErrorCode.INVALID_REQUEST, NAMELESS)

    # expiry

    def _sweep_interval_ms(self) -> int:
        return self._number("transaction.remove.expired.transaction.cleanup.interval.ms")

    async def _swept(self, shard: TransactionShard) -> None:
        await shard.expire()
