"""Closes, sets aside and deletes logs.

Promises: no log is closed while a flush of it is under way, or anybody else works on it. A log that may be the only
copy of acknowledged records is set aside, never deleted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from functools import partial

from headrace.base.errors import HeadraceError
from headrace.base.ids import TopicPartition
from headrace.base.limits import LOGS_CLOSED_AT_ONCE_MAX
from headrace.broker.kit.tasks import in_thread
from headrace.broker.partitions.context import LogContext
from headrace.broker.partitions.logs.discarding import Discarding
from headrace.broker.partitions.logs.durable_wins import DurableWins
from headrace.broker.partitions.logs.strays import may_hold_more
from headrace.broker.partitions.roles import Roles
from headrace.logs import get_logger
from headrace.storage.engine.engines import LogRemoval
from headrace.storage.engine.identity import LogIdentity
from headrace.storage.engine.logs import PartitionLog
from headrace.wire.errors import ErrorCode

log = get_logger(__name__)


class Closing:
    """See the module. One per broker. Loop-only; blocking work goes to worker threads."""

    def __init__(self, context: LogContext, roles: Roles, durable_wins: DurableWins) -> None:
        self._engine = context.engine
        self._flusher = context.flusher
        self._assigned = context.assigned
        self._partitions = context.partitions
        self._events = context.events
        self._roles = roles
        self._durable_wins = durable_wins
        self._discarding = Discarding(context.on_bug)

    def discard(self, left: Sequence[LogRemoval]) -> None:
        """Remove directories that are left of deleted logs, beside all other work."""
        self._discarding.add(left)

    async def quiet(self, logs: Sequence[PartitionLog]) -> None:
        """Return once no flush of the logs is under way, and nobody else works on them. The caller has made sure that
        nothing of them can be flushed then."""
        await self._flusher.round_over()
        await self._events.release(logs)

    async def remove(self, gone: Sequence[LogIdentity]) -> None:
        """Close and delete logs, once no flush of theirs is under way. A log that may be the only copy of acknowledged
        records is set aside."""
        keys = [TopicPartition(identity.topic_id, identity.partition) for identity in gone]
        logs = await self._let_go(keys, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        kept = [identity for identity in gone if may_hold_more(identity, self._assigned.image)]
        self._discarding.add(await in_thread(lambda: self._delete(logs, gone, kept)))

    async def leave(self, keys: Sequence[TopicPartition]) -> None:
        """Close the logs that are handed over; their files stay until nobody needs them."""
        logs = await self._let_go(keys, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        await in_thread(partial(close_all, logs, clean=True))

    async def close_uncleanly(self, key: TopicPartition) -> None:
        """Close a log that was being changed. It is recovered when it is opened again."""
        logs = await self._let_go([key], ErrorCode.KAFKA_STORAGE_ERROR)
        await in_thread(partial(close_all, logs, clean=False))

    async def _let_go(self, keys: Sequence[TopicPartition], error: ErrorCode) -> list[PartitionLog]:
        """End the roles of these partitions and all work on their logs. Returns the open logs."""
        logs: list[PartitionLog] = []
        for key in keys:
            self._partitions.clear_offline(key)
            self._roles.forget_notes(key)
            self._durable_wins.forget(key)
            if (role := self._roles.remove(key)) is not None:
                role.step_down(error)
                await role.settled()
                logs.append(role.log)
        self._partitions.on_departure()
        await self.quiet(logs)
        return logs

    def _delete(
        self, logs: Sequence[PartitionLog], gone: Sequence[LogIdentity], kept: Collection[LogIdentity]
    ) -> list[LogRemoval]:
        """Delete the logs of `gone`, in a worker thread; those in `kept` are set aside. Returns what is left, which
        nobody waits for."""
        for each in logs:
            _close(each, clean=each.identity in kept and not each.failed)
        left = []
        for identity in gone:
            try:
                if identity in kept:
                    self._set_aside(identity)
                else:
                    left.append(self._engine.begin_delete(identity))
            except (OSError, HeadraceError) as error:
                log.warning("a deleted partition's files are left", topic=identity.topic_name, reason=str(error))
        return [each for each in left if each is not None]

    def _set_aside(self, identity: LogIdentity) -> None:
        """Set a log aside, in a worker thread. Raises OSError, HeadraceError."""
        files = self._engine.files
        if files is None:
            return  # it was left where the next owner finds it
        is_there = files.stamped(identity) is not None
        if is_there and (directory := files.set_aside(identity)) is not None:
            log.error(
                "a partition was recovered elsewhere, behind durable history, while this broker was thought gone for "
                "good: its log is set aside, and what it has beyond that is nowhere else",
                topic=identity.topic_name,
                partition=identity.partition,
                kept_in=str(directory),
            )

    # the end

    async def close_everything(self, *, clean: bool) -> None:
        """Close all logs and the engine, once all other work on them is over. Clean: as in `Assignments.stop`."""
        await self._discarding.stop()
        await self._flusher.idle()
        replicas = self._partitions.replicas
        for role in replicas:
            role.step_down(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            if clean and not role.log.failed:
                role.snapshot_producers()
        for role in replicas:
            await role.settled()
        logs = [role.log for role in self._partitions.replicas]
        shares = [logs[first::LOGS_CLOSED_AT_ONCE_MAX] for first in range(LOGS_CLOSED_AT_ONCE_MAX)]
        await asyncio.gather(*(in_thread(partial(close_all, share, clean=clean)) for share in shares if share))
        await in_thread(partial(self._close_engine, clean=clean))
        self._partitions.clear()

    def _close_engine(self, *, clean: bool) -> None:
        """Close the engine, in a worker thread, after every log was closed."""
        try:
            self._engine.close(clean=clean)
        except OSError as error:
            log.warning("the journal was not closed cleanly", reason=str(error))


def close_all(logs: Sequence[PartitionLog], *, clean: bool) -> None:
    """Close logs, in a worker thread. One that has failed is never closed cleanly."""
    for each in logs:
        _close(each, clean=clean and not each.failed)


def _close(partition_log: PartitionLog, *, clean: bool) -> None:
    """Close a log, in a worker thread. One that cannot be closed cleanly is recovered at the next start."""
    try:
        partition_log.close(clean=clean)
    except (OSError, HeadraceError) as error:
        log.warning("a log was not closed cleanly", log=partition_log.identity.name, reason=str(error))
