"""A coordinator of this broker: it finds the shard that keeps a name, and makes the internal topic.

Promises:
- Only the leader of a name's partition of the topic, found by Kafka's hash, keeps it.
- Until that partition has been read, its names are loading.
- The topic is made when a client first asks for a coordinator.

It never decides for a name (its machine does) nor for the cluster (the controller does).
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeAlias, TypeVar

from headrace.base.errors import HeadraceError
from headrace.base.ids import BrokerId, PartitionIndex, TopicPartition
from headrace.base.limits import GROUP_LOADS_AT_ONCE, GROUP_NAME_CHARS_MAX, GROUPS_READY_MS_MAX, RECORDS_FETCH_RETRY_MS
from headrace.base.ports import Random
from headrace.broker.cluster.driver import MetadataDriver
from headrace.broker.kit.lease import Lease
from headrace.broker.kit.tasks import OnBug, started
from headrace.broker.partitions.partition import Partition
from headrace.broker.partitions.partitions import Partitions
from headrace.broker.shards.shard import Shard
from headrace.controller.decision import Refusal
from headrace.coordinators.partitioning import partition_for
from headrace.logs import get_logger
from headrace.metadata.configs import broker_value
from headrace.metadata.delta import ImageDelta
from headrace.metadata.image import BrokerImage, MetadataImage
from headrace.metadata.values import PartitionImage, TopicImage
from headrace.storage.engine.faults import Unreachable
from headrace.wire.errors import ErrorCode

if TYPE_CHECKING:
    from headrace.controller.asks.topics import CreateTopics, TopicAnswers

log = get_logger(__name__)

Submit: TypeAlias = "Callable[[CreateTopics], Awaitable[TopicAnswers | Refusal]]"
"""Has the controller create topics."""

Kind = TypeVar("Kind", bound=Shard[Any, Any])
"""The coordinator's own kind of shard."""


class Coordinator(ABC, Generic[Kind]):
    """See the module. Loop-only. It follows the image from its construction on; `stop` ends that."""

    TOPIC: ClassVar[str]
    """Name of the internal topic."""
    TOPIC_TITLE: ClassVar[str]
    """The topic in words."""
    CONFIGS: ClassVar[str]
    """The start of the names of configs that say how the topic is made."""
    NOUN: ClassVar[str]
    """The word for one that is kept."""
    NAME_TOO_LONG: ClassVar[ErrorCode]
    """The error for a name that is longer than any."""

    def __init__(
        self,
        *,
        node: BrokerId,
        partitions: Partitions,
        metadata: MetadataDriver,
        submit: Submit,
        random: Random,
        configs: Mapping[str, str],
        lease: Lease,
        on_bug: OnBug,
    ) -> None:
        self._node = node
        self._partitions = partitions
        self._metadata = metadata
        self._submit = submit
        self._random = random
        self._configs = configs
        self._lease = lease
        self._on_bug = on_bug
        self._hints = Counter[int]()
        self._looked_up_in: MetadataImage | None = None
        self._topic: TopicImage | None = None
        self._shards: dict[PartitionIndex, Kind] = {}
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

    # for each coordinator to say

    @abstractmethod
    def _new_shard(self, partition: Partition) -> Kind:
        """A shard of this partition, not loaded yet."""

    @abstractmethod
    def _sweep_interval_ms(self) -> int:
        """The time between two sweeps, as of now."""

    @abstractmethod
    async def _swept(self, shard: Kind) -> None:
        """Look at everything in a loaded shard for what has outlived its time."""

    async def _tidied(self, shard: Kind) -> None:
        """The cluster's topics may have changed, or the shard was just loaded."""

    # configs

    def _number(self, key: str) -> int:
        return broker_value(self._metadata.image, self._configs, key, node=self._node).number()

    def _text(self, key: str) -> str:
        return broker_value(self._metadata.image, self._configs, key, node=self._node).text()

    def _names(self, key: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name.strip() for name in self._text(key).split(",")))

    # looking up

    async def make_sure(self) -> None:
        """Ask the controller. Its answer, if any, dispels all doubts."""
        await self._lease.renew()

    @property
    def shards(self) -> tuple[Kind, ...]:
        """The shards of this broker, loaded or not."""
        return tuple(self._shards.values())

    @property
    def loading(self) -> bool:
        """Whether there may be names that no shard gives yet."""
        topic = self._metadata.image.topic(self.TOPIC)
        if topic is None:
            return False
        return any(
            partition.leader == self._node and not self._is_settled(partition.index) for partition in topic.partitions
        )

    def _is_settled(self, index: PartitionIndex) -> bool:
        shard = self._shards.get(index)
        return (shard is not None and shard.loaded) or index in self._unreadable

    def shard(self, name: str) -> Kind | ErrorCode:
        """Return the shard that keeps the name, where that is this broker and it is ready; else an error. Nothing is
        looked up by a name that is too long."""
        if len(name) > GROUP_NAME_CHARS_MAX:
            return self.NAME_TOO_LONG
        topic = self._kept_in()
        if topic is None or self._stopping:
            return ErrorCode.NOT_COORDINATOR
        index = PartitionIndex(partition_for(name, len(topic.partitions)))
        if topic.partitions[index].leader != self._node:
            return ErrorCode.NOT_COORDINATOR
        partition = self._find(topic, index)
        shard = self._shards.get(index)
        if isinstance(partition, Partition):
            if shard is not None and shard.loaded and shard.partition is partition:
                return shard
            if self._unreadable.get(index) is partition:
                return ErrorCode.COORDINATOR_NOT_AVAILABLE
        elif partition is ErrorCode.KAFKA_STORAGE_ERROR:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        self._look_again()
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS

    def loaded(self, index: PartitionIndex) -> Kind | None:
        """Return the shard of a partition of the topic, where this broker keeps it and has loaded it."""
        shard = self._shards.get(index)
        return shard if shard is not None and shard.loaded else None

    def is_unreadable(self, index: PartitionIndex) -> bool:
        """Whether the partition's log could not be read, so that nothing is kept from it."""
        return index in self._unreadable

    def _kept_in(self) -> TopicImage | None:
        """The topic as it is now, looked up once in each image."""
        image = self._metadata.image
        if image is not self._looked_up_in:
            self._looked_up_in, self._topic = image, image.topic(self.TOPIC)
        return self._topic

    def _find(self, topic: TopicImage, index: PartitionIndex) -> Partition | ErrorCode:
        return self._partitions.find(TopicPartition(topic.id, index), self._metadata.image)

    def coordinator(self, name: str) -> BrokerImage | Refusal:
        """Return the broker to ask about a name. Where the controller does not hear this one, others may coordinate in
        its place."""
        if len(name) > GROUP_NAME_CHARS_MAX:
            message = f"A {self.NOUN}'s name can't be longer than {GROUP_NAME_CHARS_MAX} characters."
            return Refusal(self.NAME_TOO_LONG, message)
        image = self._metadata.image
        topic = image.topic(self.TOPIC)
        if topic is not None:
            part = topic.partitions[partition_for(name, len(topic.partitions))]
            leader = (
                self._successor(part) if part.leader == self._node and self._is_doubted(topic, part) else part.leader
            )
            broker = image.brokers.get(leader)
            if broker is not None and not broker.fenced:
                return broker
        message = f"The {self.NOUN}'s partition has no leader now; try again."
        return Refusal(ErrorCode.COORDINATOR_NOT_AVAILABLE, message)

    def _is_doubted(self, topic: TopicImage, part: PartitionImage) -> bool:
        """Whether this broker leads the partition, and the controller does not hear it."""
        partition = self._find(topic, part.index)
        return isinstance(partition, Partition) and partition.is_doubted

    def _successor(self, part: PartitionImage) -> BrokerId:
        """One of those that may lead in this broker's place, another one each time. A client that asks only this broker
        (librdkafka asks the one that it used last) gets away from it so."""
        others = [broker for broker in part.isr if broker != self._node]
        hint, self._hints[part.index] = self._hints[part.index], self._hints[part.index] + 1
        return others[hint % len(others)] if others else part.leader

    # the topic

    async def topic_is_there(self) -> Refusal | None:
        """Create the topic where it does not exist. Returns None once it does, else the refusal."""
        return None if self._metadata.image.topic(self.TOPIC) is not None else await self._create_topic()

    async def _create_topic(self) -> Refusal | None:
        """Create the topic, and wait until this broker can keep names. Callers that come meanwhile wait for the
        same."""
        async with self._creating:
            if self._metadata.image.topic(self.TOPIC) is not None:
                return None
            refusal = await self._submit_topic()
            if refusal is None and self._keeper is not None:
                await asyncio.wait([self._keeper])
                if self._loads:
                    await asyncio.wait(self._loads, timeout=GROUPS_READY_MS_MAX / 1000)
            return refusal

    async def _submit_topic(self) -> Refusal | None:
        from headrace.controller.asks.topics import CreateTopics
        from headrace.controller.topics import NewTopic, topic_id_of

        desired = self._number(f"{self.CONFIGS}.replication.factor")
        replicas = min(desired, max(1, len(self._metadata.image.live_brokers())))
        topic_id = None
        while topic_id is None:
            topic_id = topic_id_of(self._random.getrandbits(128))
        topic = NewTopic(
            topic_id=topic_id,
            name=self.TOPIC,
            partitions=self._number(f"{self.CONFIGS}.num.partitions"),
            replication_factor=replicas,
            desired_replicas=desired,
            configs=self._topic_configs(),
        )
        answers = await self._submit(CreateTopics(topics=(topic,)))
        refusal = answers if isinstance(answers, Refusal) else answers[0].refusal
        if refusal is None or refusal.code is ErrorCode.TOPIC_ALREADY_EXISTS:
            log.info(f"{self.TOPIC_TITLE} was made", topic=self.TOPIC, partitions=topic.partitions)
            return None
        log.error(f"{self.TOPIC_TITLE} cannot be made now", reason=refusal.message)
        return Refusal(ErrorCode.COORDINATOR_NOT_AVAILABLE, refusal.message)

    def _topic_configs(self) -> dict[str, str]:
        """The configs with which the topic is made."""
        return {"cleanup.policy": "compact", "segment.bytes": str(self._number(f"{self.CONFIGS}.segment.bytes"))}

    # following the image

    def _on_delta(self, delta: ImageDelta) -> None:
        for _, after in delta.changed_topics():
            if after is None or after.name == self.TOPIC:
                self._look_again()
                return

    def _look_again(self) -> None:
        """Bring the shards in step with the partitions that this broker leads."""
        self._stale = True
        if not self._stopping and (self._keeper is None or self._keeper.done()):
            self._keeper = started(self._keep(), f"{self.NOUN} shards", self._on_bug)

    async def _keep(self) -> None:
        while self._stale and not self._stopping:
            self._stale = False
            await self._partitions.settled()
            self._keep_shards()
            for shard in list(self._shards.values()):
                await self._tidied(shard)

    def _keep_shards(self) -> None:
        """Start and end shards. Each is loaded by itself: it waits until its log is committed to the end, for which
        other replicas may be missing."""
        led = self._led()
        for index, shard in list(self._shards.items()):
            if led.get(index) is not shard.partition:
                shard.lose()
        for index, partition in led.items():
            if index not in self._shards and self._unreadable.get(index) is not partition:
                shard = self._shards[index] = self._new_shard(partition)
                load = started(self._load(index, shard), f"{self.NOUN}s of one partition", self._on_bug)
                self._loads.add(load)
                load.add_done_callback(self._loads.discard)

    def _led(self) -> dict[PartitionIndex, Partition]:
        """Return the partitions of the topic that this broker serves."""
        topic = self._metadata.image.topic(self.TOPIC)
        if topic is None:
            return {}
        found = {partition.index: self._find(topic, partition.index) for partition in topic.partitions}
        return {index: partition for index, partition in found.items() if isinstance(partition, Partition)}

    async def _load(self, index: PartitionIndex, shard: Kind) -> None:
        partition = shard.partition
        try:
            await shard.ready()
            async with self._reading:
                await shard.load()
            await self._tidied(shard)
        except Unreachable:
            await asyncio.sleep(RECORDS_FETCH_RETRY_MS / 1000)
            shard.lose()  # and it is loaded from its beginning
        except (OSError, HeadraceError) as error:
            event = f"{self.NOUN}s cannot be loaded: their partition's log cannot be read"
            log.error(event, topic=self.TOPIC, partition=index, reason=str(error))
            self._unreadable[index] = partition
            partition.on_unreadable(error, None)
            shard.lose()

    def _on_lost(self, shard: Kind) -> None:
        index = shard.partition.topic_partition.partition
        if self._shards.get(index) is shard:
            del self._shards[index]
        self._look_again()

    # expiry

    def _sweep_later(self) -> None:
        later = self._sweep_interval_ms() / 1000
        self._sweeper = asyncio.get_running_loop().call_later(later, self._begin_sweep)

    def _begin_sweep(self) -> None:
        self._sweep = started(self._sweep_all(), f"expiry in {self.TOPIC_TITLE}", self._on_bug)

    async def _sweep_all(self) -> None:
        for shard in list(self._shards.values()):
            if shard.loaded:
                await self._swept(shard)
        if not self._stopping:
            self._sweep_later()

    # ending

    def begin_stop(self) -> None:
        """Accept nothing more, and send away the clients that wait for others. Writes under way go on."""
        self._stopping = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        for shard in self._shards.values():
            shard.refuse_parked()

    def _under_way(self) -> list[asyncio.Task[None] | None]:
        """Return the tasks that `stop` has to end."""
        return [self._keeper, self._sweep, *self._loads]

    async def stop(self) -> None:
        """End what is under way. Nobody asks this coordinator any more."""
        self.begin_stop()
        for task in self._under_way():
            if task is not None and not task.done():
                task.cancel()
                await asyncio.wait([task])
        for shard in list(self._shards.values()):
            shard.lose()
