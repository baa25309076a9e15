"""The group coordinator of this broker: its configs, and requests to groups, beside what all coordinators do.

Promise: a member hears that it is one only from a coordinator that is in no doubt whether it still is.

It never decides for a group (`coordinators.groups` does) nor for the cluster (the controller does). The decider is
loaded with the first shard, or ahead (`broker.boot.load_ahead`).
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Final

from headrace.broker.kit.tasks import OnBug, started
from headrace.broker.shards.coordinator import Coordinator, Submit
from headrace.coordinators.groups.configs import ConsumerConfig, GroupConfig, MigrationPolicy
from headrace.logs import get_logger
from headrace.metadata.configs import group_values
from headrace.wire.errors import ErrorCode

if TYPE_CHECKING:
    from headrace.base.ids import BrokerId, TopicId
    from headrace.base.ports import Clock, Random
    from headrace.broker.cluster.driver import MetadataDriver
    from headrace.broker.groups.answers import Told
    from headrace.broker.groups.shard import GroupShard
    from headrace.broker.groups.subscriptions import SubscriptionRoom
    from headrace.broker.groups.topics import ClusterTopics
    from headrace.broker.kit.lease import Lease
    from headrace.broker.partitions.partition import Partition
    from headrace.broker.partitions.partitions import Partitions
    from headrace.coordinators.groups.consumer.model import Sight
    from headrace.coordinators.groups.events import Event
    from headrace.coordinators.groups.model import Group
    from headrace.security.authorizer import Authorizer

log = get_logger(__name__)

OFFSETS_TOPIC: Final = "__consumer_offsets"
CLIENT_ID_CHARS_MAX: Final = 200
"""The number of a client id's characters that its member id keeps."""


class GroupService(Coordinator["GroupShard"]):
    """See the module and `shards.coordinator`. Loop-only."""

    TOPIC = OFFSETS_TOPIC
    TOPIC_TITLE = "the offsets topic"
    CONFIGS = "offsets.topic"
    NOUN = "group"
    NAME_TOO_LONG = ErrorCode.INVALID_GROUP_ID

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
        authorizer: Authorizer | None = None,
    ) -> None:
        """`authorizer`: knows which topics members may describe; None: all."""
        super().__init__(
            node=node,
            partitions=partitions,
            metadata=metadata,
            submit=submit,
            random=random,
            configs=configs,
            lease=lease,
            on_bug=on_bug,
        )
        self._clock = clock
        self._authorizer = authorizer
        self.config = self._group_config()
        self._topics: ClusterTopics | None = None
        self._puttings_off: set[asyncio.Task[None]] = set()
        lease.on_regained(self._put_off)

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

    # asking

    async def ask(self, group_id: str, build: Callable[[int], Event], *, surely: bool = False) -> Told:
        """Put a request to a group. Returns the group's answer, or the error why it cannot be asked here and now.
        `surely`: ask only where no other broker can coordinate the group; in doubt, the controller is asked first."""
        shard = self.shard(group_id)
        if surely and not isinstance(shard, ErrorCode) and shard.is_in_doubt:
            await self._lease.renew()
            shard = self.shard(group_id)
            if not isinstance(shard, ErrorCode) and shard.is_in_doubt:
                return ErrorCode.NOT_COORDINATOR
        if isinstance(shard, ErrorCode):
            return shard
        return await shard.ask(group_id, build)

    async def ask_as_member(
        self, group_id: str, build: Callable[[int], Event], *, sight: Sight | None = None, surely: bool = False
    ) -> Told:
        """As `ask`, for requests whose answer tells a member that it is one. A coordinator in doubt does not answer for
        a consumer group: its heartbeat writes no record, and another coordinator may end the session meanwhile (0027).
        `sight`: the member, and the regular expression to which it subscribes; empty: perhaps one that it named before.
        """
        await self.prepare(group_id, sight)
        group = self.group(group_id)
        in_consumer_group = not (group is None or isinstance(group, ErrorCode) or group.consumer is None)
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
        return any(not isinstance(shard, ErrorCode) and shard.is_in_doubt for shard in shards)

    def groups(self) -> Iterator[Group]:
        """Iterate over all groups that this broker keeps."""
        for _, shard in sorted(self._shards.items()):
            yield from shard.groups.values()

    def topics(self) -> ClusterTopics:
        """Return the cluster's topics as they are now, for the groups that subscribe to them."""
        image = self._metadata.image
        if self._topics is None:
            from headrace.broker.groups.topics import ClusterTopics

            self._topics = ClusterTopics(image, self._authorizer)
        elif self._topics.image is not image:
            self._topics = self._topics.at(image)
        return self._topics

    async def prepare(self, group_id: str, sight: Sight | None) -> None:
        """Match the expressions of a group, and one more, against the topics as they are now, for all members where
        something has changed."""
        shard = self.shard(group_id)
        group = None if isinstance(shard, ErrorCode) else shard.groups.get(group_id)
        consumer = None if group is None else group.consumer
        patterns = set() if consumer is None else set(consumer.patterns)
        if sight is not None and sight.pattern:
            patterns.add(sight.pattern)
        if not patterns:
            return
        sights = set() if sight is None else {sight._replace(pattern=pattern) for pattern in patterns}
        topics = self.topics()
        if consumer is not None and consumer.topics_version != topics.version:
            sights |= {each for member in consumer.members.values() if (each := member.sight) is not None}
        await topics.prepare(patterns, sights)

    def new_member_id(self, client_id: str) -> str:
        """Return the client's id and a UUID, as Kafka does."""
        chance = uuid.UUID(int=self._random.getrandbits(128), version=4)
        return f"{client_id[:CLIENT_ID_CHARS_MAX]}-{chance}"

    # as a coordinator

    @cached_property
    def _room(self) -> SubscriptionRoom:
        """One for all shards."""
        from headrace.broker.groups.subscriptions import SubscriptionRoom

        return SubscriptionRoom()

    def _new_shard(self, partition: Partition) -> GroupShard:
        from headrace.broker.groups.shard import GroupShard

        return GroupShard(
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

    async def _tidied(self, shard: GroupShard) -> None:
        await shard.keep_topics(self._is_topic)

    def _is_topic(self, topic_id: TopicId) -> bool:
        return topic_id in self._metadata.image.topics

    def _sweep_interval_ms(self) -> int:
        return self._number("offsets.retention.check.interval.ms")

    async def _swept(self, shard: GroupShard) -> None:
        await shard.expire()

    def _under_way(self) -> list[asyncio.Task[None] | None]:
        return [*super()._under_way(), *self._puttings_off]

    # sessions

    def _put_off(self, lapse_s: float) -> None:
        """Extend sessions, as the lease is held again. Without it, no session of a consumer group could be extended
        here."""
        for shard in self._shards.values():
            if shard.loaded and shard.partition.has_followers:
                task = started(shard.put_off(lapse_s), "sessions of consumer groups are put off", self._on_bug)
                self._puttings_off.add(task)
                task.add_done_callback(self._puttings_off.discard)
