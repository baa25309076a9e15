"""The group coordinator of this broker: it finds the shard that keeps a group, and makes the offsets topic.

Promises:
- Only the leader of a group's partition of `__consumer_offsets`, found by Kafka's hash, keeps the group.
- Until that partition has been read, its groups are loading.
- The topic is made when a client first asks for a coordinator.

It never decides for a group (`coordinators.groups` does) nor for the cluster (the controller does).
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

import structlog

from headrace.base.errors import HeadraceError
from headrace.base.ids import BrokerId, PartitionIndex, TopicId, TopicPartition
from headrace.base.limits import GROUP_LOADS_AT_ONCE, GROUP_NAME_CHARS_MAX, GROUPS_READY_MS_MAX, RECORDS_FETCH_RETRY_MS
from headrace.base.ports import Clock, Random
from headrace.broker.cluster.driver import MetadataDriver
from headrace.broker.groups.answers import Told
from headrace.broker.groups.shard import GroupShard
from headrace.broker.groups.subscriptions import SubscriptionRoom
from headrace.broker.groups.topics import ClusterTopics
from headrace.broker.kit.lease import Lease
from headrace.broker.kit.tasks import OnBug, started
from headrace.broker.partitions.partition import Partition
from headrace.broker.partitions.partitions import Partitions
from headrace.controller.asks import CreateTopics, TopicAnswers
from headrace.controller.decision import Refusal
from headrace.controller.topics import NewTopic, topic_id_of
from headrace.coordinators.groups.consumer.heartbeats import ConsumerConfig
from headrace.coordinators.groups.events import Event
from headrace.coordinators.groups.model import Group, GroupConfig, MigrationPolicy
from headrace.coordinators.partitioning import partition_for
from headrace.metadata.configs import broker_value, group_values
from headrace.metadata.delta import ImageDelta
from headrace.metadata.image import BrokerImage, MetadataImage
from headrace.metadata.values import TopicImage
from headrace.storage.engine.faults import Unreachable
from headrace.wire.errors import ErrorCode

log = structlog.get_logger(__name__)

OFFSETS_TOPIC: Final = "__consumer_offsets"
CLIENT_ID_CHARS_MAX: Final = 200
"""The number of a client id's characters that its member id keeps."""


Submit = Callable[[CreateTopics], Awaitable[TopicAnswers | Refusal]]
"""Has the controller create topics."""


class GroupService:
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
        self._room = SubscriptionRoom()
        self._on_bug = on_bug
        self.config = self._group_config()
        self._topics = ClusterTopics(metadata.image)
        self._looked_up_in: MetadataImage | None = None
        self._offsets_topic: TopicImage | None = None
        self._shards: dict[PartitionIndex, GroupShard] = {}
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
        self._puttings_off: set[asyncio.Task[None]] = set()
        metadata.subscribe(self._on_delta)
        lease.on_regained(self._put_off)
        self._sweep_later()

    def _group_config(self) -> GroupConfig:
        return GroupConfig(
            group_min_session_timeout_ms=self._number("group.min.session.timeout.ms"),
            group_max_session_timeout_ms=self._number("group.max.session.timeout.ms"),
            group_initial_rebalance_delay_ms=self._number("group.initial.rebalance.delay.ms"),
            group_max_size=self._number("group.max.size"),
            consumer=ConsumerConfig(
                group_consumer_session_timeout_ms=self._number("group.consumer.session.timeout.ms"),
                group_consumer_heartbeat_interval_ms=self._number("group.consumer.heartbeat.interval.ms"),
                group_consumer_max_size=self._number("group.consumer.max.size"),
                group_consumer_assignors=self._names("group.consumer.assignors"),
            ),
            migration=MigrationPolicy(self._text("group.consumer.migration.policy")),
            offset_metadata_max_bytes=self._number("offset.metadata.max.bytes"),
            offsets_commit_timeout_ms=self._number("offsets.commit.timeout.ms"),
            offsets_retention_ms=self._number("offsets.retention.minutes") * 60_000,
        )

    def config_of(self, group_id: str) -> GroupConfig:
        """Return the configs of the group as of now: its own, and the cluster's for the rest."""
        image = self._metadata.image
        if group_id not in image.group_configs:
            return self.config
        own = group_values(image, group_id, self._configs, node=self._node)
        consumer = replace(
            self.config.consumer,
            group_consumer_session_timeout_ms=own["consumer.session.timeout.ms"].number(),
            group_consumer_heartbeat_interval_ms=own["consumer.heartbeat.interval.ms"].number(),
        )
        return replace(self.config, consumer=consumer)

    def _number(self, key: str) -> int:
        return broker_value(self._metadata.image, self._configs, key, node=self._node).number()

    def _text(self, key: str) -> str:
        return broker_value(self._metadata.image, self._configs, key, node=self._node).text()

    def _names(self, key: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name.strip() for name in self._text(key).split(",")))

    # asking

    async def ask(self, group_id: str, build: Callable[[int], Event], *, surely: bool = False) -> Told:
        """Put a request to a group. Returns the group's answer, or the error why it cannot be asked here and now.
        `surely`: ask only where no other broker can coordinate the group; in doubt, the controller is asked first."""
        shard = self.shard(group_id)
        if surely and isinstance(shard, GroupShard) and shard.is_in_doubt:
            await self._lease.renew()
            shard = self.shard(group_id)
            if isinstance(shard, GroupShard) and shard.is_in_doubt:
                return ErrorCode.NOT_COORDINATOR
        if isinstance(shard, ErrorCode):
            return shard
        return await shard.ask(group_id, build)

    async def ask_as_member(
        self, group_id: str, build: Callable[[int], Event], *, pattern: str | None = None, surely: bool = False
    ) -> Told:
        """As `ask`, for requests whose answer tells a member that it is one. A coordinator in doubt does not answer for
        a consumer group: its heartbeat writes no record, and another coordinator may end the session meanwhile (0027).
        `pattern`: the regular expression to which the member subscribes."""
        await self.prepare(group_id, pattern)
        group = self.group(group_id)
        in_consumer_group = isinstance(group, Group) and group.consumer is not None
        return await self.ask(group_id, build, surely=surely or in_consumer_group)

    def ready_for_member(self, group_id: str, pattern: str | None, *, surely: bool) -> GroupShard | ErrorCode | None:
        """Return the shard that `ask_as_member` would ask, or the error that it would give, where it need not wait.
        Else None."""
        shard = self.shard(group_id)
        if isinstance(shard, ErrorCode):
            return shard
        group = shard.groups.get(group_id)
        consumer = None if group is None else group.consumer
        if pattern or (consumer is not None and consumer.patterns):
            return None
        return None if (surely or consumer is not None) and shard.is_in_doubt else shard

    def group(self, group_id: str) -> Group | ErrorCode | None:
        """Return a group as it stands; None where it does not exist; else the error why this broker cannot say."""
        shard = self.shard(group_id)
        return shard if isinstance(shard, ErrorCode) else shard.groups.get(group_id)

    def committed(self, group_id: str) -> Group | ErrorCode | None:
        """As `group`, for its committed offsets. Returns NOT_COORDINATOR where another broker may lead by now. It may
        have later offsets, and a consumer that went back to older ones would read records twice. See
        `broker.kit.lease`, and `make_sure`."""
        shard = self.shard(group_id)
        if isinstance(shard, ErrorCode):
            return shard
        return ErrorCode.NOT_COORDINATOR if shard.is_in_doubt else shard.groups.get(group_id)

    def is_in_doubt(self, group_ids: Iterable[str]) -> bool:
        """Whether, as far as this broker knows, another may coordinate one of these groups by now."""
        if self._lease.is_held:
            return False
        shards = map(self.shard, group_ids)
        return any(isinstance(shard, GroupShard) and shard.is_in_doubt for shard in shards)

    async def make_sure(self) -> None:
        """Ask the controller. Its answer, if any, dispels all doubts."""
        await self._lease.renew()

    def groups(self) -> Iterator[Group]:
        """Iterate over all groups that this broker keeps."""
        for _, shard in sorted(self._shards.items()):
            yield from shard.groups.values()

    @property
    def shards(self) -> tuple[GroupShard, ...]:
        """The shards of this broker, loaded or not."""
        return tuple(self._shards.values())

    @property
    def loading(self) -> bool:
        """Whether there may be groups that `groups` does not give yet."""
        image = self._metadata.image
        topic = image.topic(OFFSETS_TOPIC)
        if topic is None:
            return False
        return any(
            partition.leader == self._node and not self._is_settled(partition.index) for partition in topic.partitions
        )

    def _is_settled(self, index: PartitionIndex) -> bool:
        shard = self._shards.get(index)
        return (shard is not None and shard.loaded) or index in self._unreadable

    def shard(self, group_id: str) -> GroupShard | ErrorCode:
        """Return the shard that keeps the group, where that is this broker and it is ready; else an error.
        INVALID_GROUP_ID means that the name is longer than any group's, and nothing is looked up by it."""
        if len(group_id) > GROUP_NAME_CHARS_MAX:
            return ErrorCode.INVALID_GROUP_ID
        topic = self._kept_in()
        if topic is None or self._stopping:
            return ErrorCode.NOT_COORDINATOR
        index = PartitionIndex(partition_for(group_id, len(topic.partitions)))
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

    def _kept_in(self) -> TopicImage | None:
        """The offsets topic as it is now, looked up once in each image."""
        image = self._metadata.image
        if image is not self._looked_up_in:
            self._looked_up_in, self._offsets_topic = image, image.topic(OFFSETS_TOPIC)
        return self._offsets_topic

    def _find(self, topic: TopicImage, index: PartitionIndex) -> Partition | ErrorCode:
        return self._partitions.find(TopicPartition(topic.id, index), self._metadata.image)

    def topics(self) -> ClusterTopics:
        """Return the cluster's topics as they are now, for the groups that subscribe to them."""
        if self._topics.image is not self._metadata.image:
            self._topics = self._topics.at(self._metadata.image)
        return self._topics

    async def prepare(self, group_id: str, pattern: str | None) -> None:
        """Match the expressions of a group, and one more, against the topics as they are now."""
        shard = self.shard(group_id)
        group = None if isinstance(shard, ErrorCode) else shard.groups.get(group_id)
        consumer = None if group is None else group.consumer
        patterns = [] if consumer is None else list(consumer.patterns)
        if patterns or pattern:
            await self.topics().prepare([*patterns, pattern] if pattern else patterns)

    def new_member_id(self, client_id: str) -> str:
        """Return the client's id and a UUID, as Kafka does."""
        chance = uuid.UUID(int=self._random.getrandbits(128), version=4)
        return f"{client_id[:CLIENT_ID_CHARS_MAX]}-{chance}"

    # the coordinator, and the topic

    async def topic_is_there(self) -> Refusal | None:
        """Create the offsets topic where it does not exist. Returns None once it does, else the refusal."""
        return None if self._metadata.image.topic(OFFSETS_TOPIC) is not None else await self._create_topic()

    def coordinator(self, group_id: str) -> BrokerImage | Refusal:
        """Return the broker to ask about a group."""
        if len(group_id) > GROUP_NAME_CHARS_MAX:
            message = f"A group's name can't be longer than {GROUP_NAME_CHARS_MAX} characters."
            return Refusal(ErrorCode.INVALID_GROUP_ID, message)
        image = self._metadata.image
        topic = image.topic(OFFSETS_TOPIC)
        if topic is not None:
            leader = topic.partitions[partition_for(group_id, len(topic.partitions))].leader
            broker = image.brokers.get(leader)
            if broker is not None and not broker.fenced:
                return broker
        return Refusal(ErrorCode.COORDINATOR_NOT_AVAILABLE, "The group's partition has no leader now; try again.")

    async def _create_topic(self) -> Refusal | None:
        """Create the topic, and wait until this broker can keep groups. Callers that come meanwhile wait for the
        same."""
        async with self._creating:
            if self._metadata.image.topic(OFFSETS_TOPIC) is not None:
                return None
            refusal = await self._submit_topic()
            if refusal is None and self._keeper is not None:
                await asyncio.wait([self._keeper])
                if self._loads:
                    await asyncio.wait(self._loads, timeout=GROUPS_READY_MS_MAX / 1000)
            return refusal

    async def _submit_topic(self) -> Refusal | None:
        image = self._metadata.image
        desired = self._number("offsets.topic.replication.factor")
        replicas = min(desired, max(1, len(image.live_brokers())))
        topic_id = None
        while topic_id is None:
            topic_id = topic_id_of(self._random.getrandbits(128))
        topic = NewTopic(
            topic_id=topic_id,
            name=OFFSETS_TOPIC,
            partitions=self._number("offsets.topic.num.partitions"),
            replication_factor=replicas,
            desired_replicas=desired,
            configs={
                "cleanup.policy": "compact",
                "segment.bytes": str(self._number("offsets.topic.segment.bytes")),
            },
        )
        answers = await self._submit(CreateTopics(topics=(topic,)))
        refusal = answers if isinstance(answers, Refusal) else answers[0].refusal
        if refusal is None or refusal.code is ErrorCode.TOPIC_ALREADY_EXISTS:
            log.info("the offsets topic was made", topic=OFFSETS_TOPIC, partitions=topic.partitions)
            return None
        log.error("the offsets topic cannot be made now", reason=refusal.message)
        return Refusal(ErrorCode.COORDINATOR_NOT_AVAILABLE, refusal.message)

    # following the image

    def _on_delta(self, delta: ImageDelta) -> None:
        for _, after in delta.changed_topics():
            if after is None or after.name == OFFSETS_TOPIC:
                self._look_again()
                return

    def _look_again(self) -> None:
        """Bring the shards in step with the partitions that this broker leads."""
        self._stale = True
        if not self._stopping and (self._keeper is None or self._keeper.done()):
            self._keeper = started(self._keep(), "group shards", self._on_bug)

    async def _keep(self) -> None:
        while self._stale and not self._stopping:
            self._stale = False
            await self._partitions.settled()
            self._keep_shards()
            for shard in list(self._shards.values()):
                await shard.keep_topics(self._is_topic)

    def _is_topic(self, topic_id: TopicId) -> bool:
        return topic_id in self._metadata.image.topics

    def _keep_shards(self) -> None:
        """Start and end shards. Each is loaded by itself: it waits until its log is committed to the end, for which
        other replicas may be missing."""
        led = self._led()
        for index, shard in list(self._shards.items()):
            if led.get(index) is not shard.partition:
                shard.lose()
        for index, partition in led.items():
            if index not in self._shards and self._unreadable.get(index) is not partition:
                shard = GroupShard(
                    partition,
                    config=self.config,
                    config_of=self.config_of,
                    clock=self._clock,
                    topics=self.topics,
                    lease=self._lease,
                    room=self._room,
                    on_lost=self._on_lost,
                    on_bug=self._on_bug,
                )
                self._shards[index] = shard
                load = started(self._load(index, shard), "groups of one partition", self._on_bug)
                self._loads.add(load)
                load.add_done_callback(self._loads.discard)

    def _led(self) -> dict[PartitionIndex, Partition]:
        """Return the partitions of the offsets topic that this broker serves."""
        topic = self._metadata.image.topic(OFFSETS_TOPIC)
        if topic is None:
            return {}
        found = {partition.index: self._find(topic, partition.index) for partition in topic.partitions}
        return {index: partition for index, partition in found.items() if isinstance(partition, Partition)}

    async def _load(self, index: PartitionIndex, shard: GroupShard) -> None:
        partition = shard.partition
        try:
            await shard.ready()
            async with self._reading:
                await shard.load()
            await shard.keep_topics(self._is_topic)
        except Unreachable:
            await asyncio.sleep(RECORDS_FETCH_RETRY_MS / 1000)
            shard.lose()  # and it is loaded from its beginning
        except (OSError, HeadraceError) as error:
            log.error(
                "groups cannot be loaded: their partition's log cannot be read",
                topic=OFFSETS_TOPIC,
                partition=index,
                reason=str(error),
            )
            self._unreadable[index] = partition
            partition.on_unreadable(error, None)
            shard.lose()

    def _on_lost(self, shard: GroupShard) -> None:
        index = shard.partition.topic_partition.partition
        if self._shards.get(index) is shard:
            del self._shards[index]
        self._look_again()

    # sessions

    def _put_off(self, lapse_s: float) -> None:
        """Extend sessions, as the lease is held again. Without it, no session of a consumer group could be extended
        here."""
        for shard in self._shards.values():
            if shard.loaded and shard.partition.has_followers:
                task = started(shard.put_off(lapse_s), "sessions of consumer groups are put off", self._on_bug)
                self._puttings_off.add(task)
                task.add_done_callback(self._puttings_off.discard)

    # expiry

    def _sweep_later(self) -> None:
        interval_s = self._number("offsets.retention.check.interval.ms") / 1000
        self._sweeper = asyncio.get_running_loop().call_later(interval_s, self._begin_sweep)

    def _begin_sweep(self) -> None:
        self._sweep = started(self._expire(), "expiry of committed offsets", self._on_bug)

    async def _expire(self) -> None:
        for shard in list(self._shards.values()):
            if shard.loaded:
                await shard.expire()
        if not self._stopping:
            self._sweep_later()

    # ending

    def begin_stop(self) -> None:
        """Accept nothing more, and send away the members that wait for others. Writes under way go on."""
        self._stopping = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        for shard in self._shards.values():
            shard.refuse_parked()

    async def stop(self) -> None:
        """End what is under way. Nobody asks this service any more."""
        self.begin_stop()
        for task in (self._keeper, self._sweep, *self._loads, *self._puttings_off):
            if task is not None and not task.done():
                task.cancel()
                await asyncio.wait([task])
        for shard in list(self._shards.values()):
            shard.lose()
