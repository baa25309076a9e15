"""The transaction coordinator of this broker.

Promises, beside those of every coordinator: an answer that rests on no record is of a state that nobody else has
changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Final

from headrace.base.limits import TRANSACTION_GATE_WAIT_MS_MAX
from headrace.broker.shards.coordinator import Coordinator
from headrace.controller.decision import Refusal
from headrace.coordinators.transactions.events import AddReply, Event
from headrace.coordinators.transactions.model import Standing, Terms, Transaction, TransactionConfig, TransactionVersion
from headrace.coordinators.transactions.views import described
from headrace.metadata.configs import broker_value
from headrace.metadata.features import FEATURES
from headrace.wire.errors import ErrorCode

if TYPE_CHECKING:
    from headrace.base.ports import Clock
    from headrace.broker.partitions.partition import Partition
    from headrace.broker.transactions.shard import Markers, NewProducerId, Told, TransactionShard
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

    def __init__(self, *, clock: Clock, markers: Markers, new_producer_id: NewProducerId, **common: Any) -> None:
        """`new_producer_id` gives a producer id that nobody has. `common`: see `Coordinator`."""
        self._clock = clock
        self._markers = markers
        self._new_producer_id = new_producer_id
        self._known_terms: dict[int, Terms] = {}
        """By leader epoch."""
        self._terms_of: object = None
        """The configs that they have."""
        super().__init__(**common)

    def _new_shard(self, partition: Partition) -> TransactionShard:
        from headrace.broker.transactions.shard import TransactionShard

        return TransactionShard(
            partition,
            terms=lambda: self._terms(partition.leader_epoch),
            clock=self._clock,
            lease=self._lease,
            markers=self._markers,
            new_producer_id=self._new_producer_id,
            on_lost=self._on_lost,
            on_bug=self._on_bug,
        )

    def _terms(self, epoch: int) -> Terms:
        """The terms of a leadership as the configs are now. They are made once for each state of these."""
        configs = self._metadata.image.broker_configs
        if configs is not self._terms_of:
            self._terms_of, self._known_terms = configs, {}
        if epoch not in self._known_terms:
            self._known_terms[epoch] = self._new_terms(epoch)
        return self._known_terms[epoch]

    def _new_terms(self, epoch: int) -> Terms:
        two_phase = "transaction.two.phase.commit.enable"
        config = TransactionConfig(
            transaction_max_timeout_ms=self._number("transaction.max.timeout.ms"),
            transactional_id_expiration_ms=self._number("transactional.id.expiration.ms"),
            transaction_two_phase_commit_enable=broker_value(
                self._metadata.image, self._configs, two_phase, node=self._node
            ).boolean(),
        )
        version = TransactionVersion(FEATURES["transaction.version"])
        return Terms(coordinator_epoch=epoch, version=version, config=config)

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

    async def ask_to_add(self, transactional_id: str, build: Callable[[int], Event]) -> Told:
        """As `ask`, with an event that adds partitions. Where the transaction before is being ended, its end is waited
        for, TRANSACTION_GATE_WAIT_MS_MAX at the longest. Kafka answers CONCURRENT_TRANSACTIONS at once, and its
        clients ask again after a pause that is longer than most ends take."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + TRANSACTION_GATE_WAIT_MS_MAX / 1000
        while True:
            told = await self.ask(transactional_id, build)
            if not (isinstance(told, AddReply) and told.error is ErrorCode.CONCURRENT_TRANSACTIONS):
                return told
            shard = self.shard(transactional_id)
            left = deadline - loop.time()
            if left <= 0 or isinstance(shard, ErrorCode):
                return told
            if (rest := shard.at_rest(transactional_id)) is not None:
                await asyncio.wait([rest], timeout=left)
                if not rest.done():
                    rest.cancel()

    def shard(self, name: str) -> TransactionShard | ErrorCode:
        return super().shard(name) if name else ErrorCode.INVALID_REQUEST

    def described(self, transactional_id: str) -> Standing | ErrorCode:
        """Return how an id stands on record, or the error for who asks."""
        shard = self.shard(transactional_id)
        if isinstance(shard, ErrorCode):
            return shard
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
