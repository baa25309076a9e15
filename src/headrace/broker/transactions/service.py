"""The transaction coordinator of this broker: it finds the shard that keeps a transactional id, and makes its topic.

Promises:
- Only the leader of an id's partition of `__transaction_state`, found by Kafka's hash, decides about it.
- Until that partition has been read, its ids are loading.
- The topic is made when a client first asks for a coordinator.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Final

import structlog

from headrace.base.errors import HeadraceError
from headrace.base.ids import BrokerId, PartitionIndex, TopicPartition
from headrace.base.limits import (
    GROUP_LOADS_AT_ONCE,
    GROUPS_READY_MS_MAX,
    RECORDS_FETCH_RETRY_MS,
    TRANSACTIONAL_ID_CHARS_MAX,
)
from headrace.base.ports import Clock, Random
from headrace.broker.cluster.driver import MetadataDriver
from headrace.broker.kit.lease import Lease
from headrace.broker.kit.tasks import OnBug, started
from headrace.broker.partitions.partition import Partition
from headrace.broker.partitions.partitions import Partitions
from headrace.broker.transactions.shard import Markers, NewProducerId, Told, TransactionShard
from headrace.controller.asks import CreateTopics, TopicAnswers
from headrace.controller.decision import Refusal
from headrace.controller.topics import NewTopic, topic_id_of
from headrace.coordinators.partitioning import partition_for
from headrace.coordinators.transactions.events import Event
from headrace.coordinators.transactions.model import Standing, Terms, Transaction, TransactionConfig, TransactionVersion
from headrace.coordinators.transactions.views import described
from headrace.metadata.configs import broker_value
from headrace.metadata.delta import ImageDelta
from headrace.metadata.features import FEATURES
from headrace.metadata.image import BrokerImage
from headrace.metadata.values import TopicImage
from headrace.storage.engine.faults import Unreachable
from headrace.wire.errors import ErrorCode

log = structlog.get_logger(__name__)

TRANSACTION_TOPIC: Final = "__transaction_state"
ON_SHARED_LOGS: Final = "Transactions need brokers with logs of their own: these have theirs in Redis."
Submit = Callable[[CreateTopics], Awaitable[TopicAnswers | Refusal]]
"""Has the controller create topics."""


class TransactionService:
    """See the module. Loop-only. It follows the image from its construction on; `stop` ends that."""

    def __init__(
        self,
        *,
        node: BrokerId,
        partitions: Partitions,
        metadata: MetadataDriver,
        submit: Submit,
        clock: Clock,
        random: Random,
        configs: Mapping[str, str],
        lease: Lease,
        markers: Markers,
        new_producer_id: NewProducerId,
        on_bug: OnBug,
    ) -> None:
        self._node = node
        self._partitions = partitions
        self._metadata = metadata
        self._submit = submit
        self._clock = clock
        self._random = random
        self._configs = configs
        self._lease = lease
        self._markers = markers
        self._new_producer_id = new_producer_id
        self._on_bug = on_bug
        self._shards: dict[PartitionIndex, TransactionShard] = {}
        self._unreadable: dict[PartitionIndex, Partition] = {}
        """Partitions whose log could not be read, as this broker led them then."""
        self._stopping = False
        self._stale = False
        self._keeper: asyncio.Task[None] | None = None
        self._loads: set[asyncio.Task[None]] = set()
        self._reading = asyncio.Semaphore(GROUP_LOADS_AT_ONCE)
        self._creating = asyncio.Lock()
        self._sweeper: asyncio.TimerHandle | None = None
        self._sweep: asyncio.Task[None] | None = None
        metadata.subscribe(self._on_delta)
        self._sweep_later()

    def _number(self, key: str) -> int:
        return broker_value(self._metadata.image, self._configs, key, node=self._node).number()

    def _terms(self, epoch: int) -> Terms:
        config = TransactionConfig(
            transaction_max_timeout_ms=self._number("transaction.max.timeout.ms"),
            transactional_id_expiration_ms=self._number("transactional.id.expiration.ms"),
            transaction_two_phase_commit_enable=broker_value(
                self._metadata.image, self._configs, "transaction.two.phase.commit.enable", node=self._node
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
        if isinstance(shard, TransactionShard) and shard.is_in_doubt:
            await self._lease.renew()
            shard = self.shard(transactional_id)
            if isinstance(shard, TransactionShard) and shard.is_in_doubt:
                return ErrorCode.NOT_COORDINATOR
        return shard if isinstance(shard, ErrorCode) else await shard.ask(transactional_id, build)

    def described(self, transactional_id: str) -> Standing | ErrorCode:
        """Return how an id stands on record, or the error for who asks."""
        shard = self.shard(transactional_id) if transactional_id else None
        if isinstance(shard, ErrorCode):
            return shard
        return described(transactional_id, None if shard is None else shard.kept.get(transactional_id))

    def transactions(self) -> Iterator[Transaction]:
        """Iterate over all transactional ids that this broker keeps."""
        for _, shard in sorted(self._shards.items()):
            yield from shard.kept.values()

    @property
    def loading(self) -> bool:
        """Whether there may be ids that `transactions` does not give yet."""
        topic = self._metadata.image.topic(TRANSACTION_TOPIC)
        if topic is None:
            return False
        return any(each.leader == self._node and not self._is_settled(each.index) for each in topic.partitions)

    def _is_settled(self, index: PartitionIndex) -> bool:
        shard = self._shards.get(index)
        return (shard is not None and shard.loaded) or index in self._unreadable

    def shard(self, transactional_id: str) -> TransactionShard | ErrorCode:
        """Return the shard that keeps the id, where that is this broker and it is ready; else an error."""
        if not transactional_id or len(transactional_id) > TRANSACTIONAL_ID_CHARS_MAX:
            return ErrorCode.INVALID_REQUEST
        topic = self._metadata.image.topic(TRANSACTION_TOPIC)
        if topic is None or self._stopping:
            return ErrorCode.NOT_COORDINATOR
        index = PartitionIndex(partition_for(transactional_id, len(topic.partitions)))
        if topic.partitions[index].leader != self._node:
            return ErrorCode.NOT_COORDINATOR
        partition, shard = self._find(topic, index), self._shards.get(index)
        if isinstance(partition, Partition):
            if shard is not None and shard.loaded and shard.partition is partition:
                return shard
            if self._unreadable.get(index) is partition:
                return ErrorCode.COORDINATOR_NOT_AVAILABLE
        elif partition is ErrorCode.KAFKA_STORAGE_ERROR:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        self._look_again()
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    def _find(self, topic: TopicImage, index: PartitionIndex) -> Partition | ErrorCode:
        return self._partitions.find(TopicPartition(topic.id, index), self._metadata.image)

    # the coordinator, and the topic

    async def topic_is_there(self) -> Refusal | None:
        """Create the topic where it does not exist. Returns None once it does, else the refusal."""
        if self._metadata.image.shares_logs:
            return Refusal(ErrorCode.INVALID_REQUEST, ON_SHARED_LOGS)
        return None if self._metadata.image.topic(TRANSACTION_TOPIC) is not None else await self._create_topic()

    def coordinator(self, transactional_id: str) -> BrokerImage | Refusal:
        """Return the broker to ask about a transactional id."""
        if not transactional_id or len(transactional_id) > TRANSACTIONAL_ID_CHARS_MAX:
            message = f"A transactional id has 1 to {TRANSACTIONAL_ID_CHARS_MAX} characters."
            return Refusal(ErrorCode.INVALID_REQUEST, message)
        image = self._metadata.image
        topic = image.topic(TRANSACTION_TOPIC)
        if topic is not None:
            leader = topic.partitions[partition_for(transactional_id, len(topic.partitions))].leader
            broker = image.brokers.get(leader)
            if broker is not None and not broker.fenced:
                return broker
        return Refusal(ErrorCode.COORDINATOR_NOT_AVAILABLE, "The id's partition has no leader now; try again.")

    async def _create_topic(self) -> Refusal | None:
        async with self._creating:
            if self._metadata.image.topic(TRANSACTION_TOPIC) is not None:
                return None
            refusal = await self._submit_topic()
            if refusal is None and self._keeper is not None:
                await asyncio.wait([self._keeper])
                if self._loads:
                    await asyncio.wait(self._loads, timeout=GROUPS_READY_MS_MAX / 1000)
            return refusal

    async def _submit_topic(self) -> Refusal | None:
        desired = self._number("transaction.state.log.replication.factor")
        replicas = min(desired, max(1, len(self._metadata.image.live_brokers())))
        topic_id = None
        while topic_id is None:
            topic_id = topic_id_of(self._random.getrandbits(128))
        topic = NewTopic(
            topic_id=topic_id,
            name=TRANSACTION_TOPIC,
            partitions=self._number("transaction.state.log.num.partitions"),
            replication_factor=replicas,
            desired_replicas=desired,
            configs={
                "cleanup.policy": "compact",
                "segment.bytes": str(self._number("transaction.state.log.segment.bytes")),
            },
        )
        answers = await self._submit(CreateTopics(topics=(topic,)))
        refusal = answers if isinstance(answers, Refusal) else answers[0].refusal
        if refusal is None or refusal.code is ErrorCode.TOPIC_ALREADY_EXISTS:
            log.info("the topic of transactions was made", topic=TRANSACTION_TOPIC, partitions=topic.partitions)
            return None
        log.error("the topic of transactions cannot be made now", reason=refusal.message)
        return Refusal(ErrorCode.COORDINATOR_NOT_AVAILABLE, refusal.message)

    # following the image

    def _on_delta(self, delta: ImageDelta) -> None:
        for _, after in delta.changed_topics():
            if after is None or after.name == TRANSACTION_TOPIC:
                self._look_again()
                return

    def _look_again(self) -> None:
        """Bring the shards in step with the partitions that this broker leads."""
        self._stale = True
        if not self._stopping and (self._keeper is None or self._keeper.done()):
            self._keeper = started(self._keep(), "transaction shards", self._on_bug)

    async def _keep(self) -> None:
        while self._stale and not self._stopping:
            self._stale = False
            await self._partitions.settled()
            self._keep_shards()

    def _keep_shards(self) -> None:
        """Start and end shards. Each is loaded by itself: it waits until its log is committed to the end."""
        led = self._led()
        for index, shard in list(self._shards.items()):
            if led.get(index) is not shard.partition:
                shard.lose()
        for index, partition in led.items():
            if index not in self._shards and self._unreadable.get(index) is not partition:
                shard = self._shards[index] = self._new_shard(partition)
                load = started(self._load(index, shard), "transactional ids of one partition", self._on_bug)
                self._loads.add(load)
                load.add_done_callback(self._loads.discard)

    def _new_shard(self, partition: Partition) -> TransactionShard:
        return TransactionShard(
            partition,
            terms=self._terms(partition.leader_epoch),
            clock=self._clock,
            lease=self._lease,
            markers=self._markers,
            new_producer_id=self._new_producer_id,
            on_lost=self._on_lost,
            on_bug=self._on_bug,
        )

    def _led(self) -> dict[PartitionIndex, Partition]:
        """Return the partitions of the topic that this broker serves."""
        topic = self._metadata.image.topic(TRANSACTION_TOPIC)
        if topic is None:
            return {}
        found = {partition.index: self._find(topic, partition.index) for partition in topic.partitions}
        return {index: partition for index, partition in found.items() if isinstance(partition, Partition)}

    async def _load(self, index: PartitionIndex, shard: TransactionShard) -> None:
        partition = shard.partition
        try:
            await shard.ready()
            async with self._reading:
                await shard.load()
        except Unreachable:
            await asyncio.sleep(RECORDS_FETCH_RETRY_MS / 1000)
            shard.lose()  # and it is loaded from its beginning
        except (OSError, HeadraceError) as error:
            log.error(
                "transactional ids cannot be loaded: their partition's log cannot be read",
                topic=TRANSACTION_TOPIC,
                partition=index,
                reason=str(error),
            )
            self._unreadable[index] = partition
            partition.on_unreadable(error, None)
            shard.lose()

    def _on_lost(self, shard: TransactionShard) -> None:
        index = shard.partition.topic_partition.partition
        if self._shards.get(index) is shard:
            del self._shards[index]
        self._look_again()

    # expiry

    def _sweep_later(self) -> None:
        interval_s = self._number("transaction.remove.expired.transaction.cleanup.interval.ms") / 1000
        self._sweeper = asyncio.get_running_loop().call_later(interval_s, self._begin_sweep)

    def _begin_sweep(self) -> None:
        self._sweep = started(self._expire(), "expiry of transactional ids", self._on_bug)

    async def _expire(self) -> None:
        for shard in list(self._shards.values()):
            if shard.loaded:
                await shard.expire()
        if not self._stopping:
            self._sweep_later()

    # ending

    def begin_stop(self) -> None:
        """Accept nothing more. Writes under way go on."""
        self._stopping = True
        if self._sweeper is not None:
            self._sweeper.cancel()

    async def stop(self) -> None:
        """End what is under way. Nobody asks this service any more."""
        self.begin_stop()
        for task in (self._keeper, self._sweep, *self._loads):
            if task is not None and not task.done():
                task.cancel()
                await asyncio.wait([task])
        for shard in list(self._shards.values()):
            shard.lose()
