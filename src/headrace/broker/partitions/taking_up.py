"""Opens the logs of partitions that this broker is to hold, and takes them up: each gets its role.

Promises: a log that cannot be opened is offline, answered with KAFKA_STORAGE_ERROR and logged, and keeps nothing else
from being served.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypeVar

from headrace.base.errors import NoRoom
from headrace.base.ids import NO_EPOCH, NO_LEADER, TopicPartition
from headrace.base.limits import LOGS_TAKEN_UP_PER_TURN_MAX
from headrace.broker.kit.tasks import in_thread
from headrace.broker.partitions.context import LogContext
from headrace.broker.partitions.logs.closing import close_all
from headrace.broker.partitions.logs.opening import Opened, Opener, Wanted
from headrace.broker.partitions.roles import Roles
from headrace.broker.partitions.settings import log_config, partition_settings
from headrace.logs import get_logger
from headrace.metadata.configs import TopicConfig
from headrace.metadata.delta import LocalPartition
from headrace.replica.recovery_start import recovery_start
from headrace.storage.engine.faults import Damage, StampMismatch
from headrace.storage.engine.logs import PartitionLog

log = get_logger(__name__)

T = TypeVar("T")


class Roomless(NamedTuple):
    """`Waiting`: a log that could not be opened, or changed, for want of room."""

    again: Callable[[TopicPartition], None]
    """Tries again."""
    key: TopicPartition
    has_stepped_down: bool = False

    def go_on(self) -> bool:
        self.again(self.key)
        return True


class TakingUp:
    """See the module. One per broker. Loop-only; logs are opened in worker threads."""

    def __init__(self, context: LogContext, roles: Roles, open_soon: Callable[[TopicPartition], None]) -> None:
        """`open_soon` tries once more to open a log, as there is room."""
        self._opener = Opener(context.engine, context.clock)
        self._assigned = context.assigned
        self._partitions = context.partitions
        self._room = context.room
        self._events = context.events
        self._roles = roles
        self._open_soon = open_soon

    async def open(self, wanted: Sequence[LocalPartition]) -> list[TopicPartition]:
        """Open logs and give them their roles. Returns the partitions that this broker is to lead, but whose logs have
        to give way to history first: these have no leader yet."""
        topics = {local.topic.id: local.topic for local in wanted}
        image = self._assigned.image
        configs = {topic_id: self._assigned.config(topic, image) async for topic_id, topic in by_turns(topics.items())}
        results = await self._opened(wanted, [configs[local.topic.id] for local in wanted])
        unwanted: list[PartitionLog] = []
        giving_way: list[TopicPartition] = []
        async for local, result in by_turns(zip(wanted, results, strict=True)):
            now = self._assigned.local(local.key)
            if now is not None and now.partition.assignment_epoch == local.partition.assignment_epoch:
                if not isinstance(result, Exception) and self._assigned.gives_way(now, result.log):
                    now = LocalPartition(now.topic, replace(now.partition, leader=NO_LEADER))
                    giving_way.append(now.key)
                self._take_up(now, configs[local.topic.id], result)
            elif not isinstance(result, Exception):  # not its any more: later work deletes its files
                unwanted.append(result.log)
        if unwanted:
            await in_thread(partial(close_all, unwanted, clean=True))
        if self._assigned.image is not image:  # configs may have changed while the logs were being opened
            self._roles.reconfigure_all(topics)
        return giving_way

    async def _opened(
        self, wanted: Sequence[LocalPartition], configs: Sequence[TopicConfig]
    ) -> list[Opened | Exception]:
        asked = [self._asked(local, config) for local, config in zip(wanted, configs, strict=True)]
        results = await self._opener.open_all(asked)
        for at, (local, result) in enumerate(zip(wanted, results, strict=True)):
            if isinstance(result, StampMismatch) and self._assigned.is_copied_again(local.key):
                results[at] = await self._opener.open_aside(asked[at])
        return results

    def _asked(self, local: LocalPartition, config: TopicConfig) -> Wanted:
        identity = self._assigned.identity(local.topic, local.partition.index, local.partition.assignment_epoch)
        node, partition = self._assigned.node, local.partition
        epoch = partition.leader_epoch if partition.leader == node else NO_EPOCH
        return Wanted(identity, log_config(config), partial(recovery_start, partition, node), epoch)

    def _take_up(self, local: LocalPartition, config: TopicConfig, opened: Opened | Exception) -> None:
        if isinstance(opened, Exception):
            self._refuse(local, opened)
            return
        partition_log, producers = opened
        self._partitions.clear_offline(local.key)
        _tell_oddities(local, partition_log)
        tell_damage(local.topic.name, local.partition.index, partition_log, partition_log.damages)
        files, copied = partition_log.files, partition_log.copying
        if files is not None and not (files.was_closed or partition_log.config.fsync):
            self._roles.note_crash(local.key)
        settings = partition_settings(config, internal=local.topic.internal)
        self._roles.assume(local, partition_log, producers, settings, partition_log.log_start_offset)
        has_replaced = copied is not None and copied.has_replaced
        if partition_log.damages or partition_log.read_only is not None or has_replaced:
            self._events.on_damaged(local.key)

    def _refuse(self, local: LocalPartition, error: Exception) -> None:
        """Note that a log cannot be opened."""
        if isinstance(error, NoRoom):
            self._room.lack(Roomless(self._open_soon, local.key))
        if self._partitions.offline.get(local.key) == str(error):
            return  # it was tried again, and is logged already
        self._partitions.set_offline(local.key, str(error))
        log.error(
            "partition offline: its log could not be opened",
            topic=local.topic.name,
            partition=local.partition.index,
            reason=str(error),
        )
        self._events.on_failed(local.key)


async def by_turns(things: Iterable[T]) -> AsyncIterator[T]:
    """Iterate over some things in each turn of the event loop, so that others have theirs."""
    for number, thing in enumerate(things, 1):
        yield thing
        if number % LOGS_TAKEN_UP_PER_TURN_MAX == 0:
            await asyncio.sleep(0)


def _tell_oddities(local: LocalPartition, partition_log: PartitionLog) -> None:
    files = partition_log.files
    if files is not None and files.set_aside is not None:
        log.warning(
            "another topic's files were under this name and are kept beside it",
            topic=local.topic.name,
            partition=local.partition.index,
            kept_in=str(files.set_aside),
        )
    if partition_log.read_only is not None:
        log.error(
            "partition for reading only: what was flushed last is gone; put it back and restart the broker, or "
            "copy what is left to another topic",
            topic=local.topic.name,
            partition=local.partition.index,
            reason=partition_log.read_only,
        )


def tell_damage(topic: str, partition: int, partition_log: PartitionLog, damages: Sequence[Damage]) -> None:
    """Log one line for each range: what is wrong, and what to do."""
    files = partition_log.files
    for damage in damages:
        log.error(
            "a log is damaged: fetches in this range are answered with CORRUPT_MESSAGE, all else is served; put back a "
            "sound copy of the file and restart the broker, or let consumers seek to next_offset",
            topic=topic,
            partition=partition,
            first_offset=damage.start,
            next_offset=damage.end,
            reason=damage.reason,
            **({} if files is None else files.where(damage)),
        )
