"""Keeps this broker's partitions in step with the metadata image: opens logs, gives and ends roles, closes logs.

Promises:
- A log is opened where the image says that this broker is a replica, and nowhere else. It is closed where the broker is
  none any more.
- One log has one role at a time, and none while a flush or a cut of an earlier role is under way.
- Carrying out the same change twice changes nothing.
- A deleted topic's waiting requests are answered before its files go.
- No log is removed that anybody counts on, even where the broker is a replica again by then (see `Assigned`).

It never decides who leads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from headrace.base.errors import HeadraceError, NoRoom
from headrace.base.ids import TopicId, TopicPartition
from headrace.broker.partitions.context import LogContext
from headrace.broker.partitions.following import FollowerPartition
from headrace.broker.partitions.logs.closing import Closing
from headrace.broker.partitions.logs.durable_wins import DurableWins
from headrace.broker.partitions.logs.strays import Strays
from headrace.broker.partitions.replica import Replica
from headrace.broker.partitions.roles import Roles
from headrace.broker.partitions.taking_up import Roomless, TakingUp, by_turns
from headrace.logs import get_logger
from headrace.metadata.delta import ImageDelta, LocalPartition
from headrace.metadata.image import EMPTY_IMAGE, MetadataImage
from headrace.storage.engine.engines import LogRemoval
from headrace.storage.engine.identity import LogIdentity
from headrace.wire.errors import ErrorCode

if TYPE_CHECKING:
    from headrace.broker.partitions.logs.frontiers import Frontiers

log = get_logger(__name__)


class Assignments:
    """See the module. One per broker. Loop-only; blocking work goes to worker threads, in the order in which it was
    asked for."""

    def __init__(self, context: LogContext, strays: Strays, frontiers: Frontiers | None) -> None:
        """`frontiers`: None: there is no store here, and history cannot be read."""
        self._assigned = context.assigned
        self._partitions = context.partitions
        self._work = context.partitions.work
        self._events = context.events
        self._flusher = context.flusher
        self._room = context.room
        self._has_store = context.has_store
        self._strays = strays
        self._durable_wins = DurableWins(
            frontiers=frontiers,
            wanted=context.assigned.history_to_lead,
            again=self.try_again,
            waits=context.partitions.waits,
            on_bug=context.on_bug,
        )
        self._roles = Roles(context, open_again=self.begin_again)
        self._closing = Closing(context, self._roles, self._durable_wins)
        self._taking_up = TakingUp(context, self._roles, open_soon=self.open_soon)
        self._is_closing = False
        """The logs are closed, or about to be: later changes of the image are for the next start."""

    # changes of the image

    def on_delta(self, delta: ImageDelta) -> None:
        """Carry out one committed change. Refusals begin at once; files are opened and deleted in worker threads."""
        self._assigned.image = delta.after
        if delta.before is EMPTY_IMAGE:
            self._work.add(partial(self._clear, delta.after), "clearing of logs that are not held any more")
        if self._has_store and delta.before.catalog is not delta.after.catalog:
            self._follow_history(delta)
        changes = delta.local_changes(self._assigned.node)
        for topic in changes.reconfigured:
            self._roles.reconfigure(topic)
        for key in changes.deleted:
            self._roles.end(key, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        for key in changes.left:
            self._roles.end(key, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        gone = [self._assigned.identity_before(delta.before, key) for key in changes.deleted]
        touched = [local for local in (*changes.leaders, *changes.followers) if not self._roles.goes_on(local)]
        if (gone or changes.left or touched) and not self._is_closing:
            self._assigned.begin_to_end((*changes.deleted, *changes.left))
            work = partial(self._carry_out, gone, changes.left, [local.key for local in touched])
            self._work.add(work, "opening and deleting of logs")

    async def _clear(self, image: MetadataImage) -> None:
        self._closing.discard(await self._strays.clear(image))

    def _follow_history(self, delta: ImageDelta) -> None:
        """Note the history of partitions. Readers find records there before they may be deleted here because the
        catalog has them."""
        before = delta.before.catalog
        roles = self._partitions.replicas if delta.topic_ids is None else self._of_topics(delta.topic_ids)
        for role in roles:
            key = role.topic_partition
            if (known := self._assigned.history(key)) is not before.get(key):
                role.on_history(known)

    def _of_topics(self, topic_ids: Iterable[TopicId]) -> Iterator[Replica]:
        for topic_id in topic_ids:
            topic = self._assigned.image.topics.get(topic_id)
            for partition in () if topic is None else topic.partitions:
                if (role := self._partitions.role(TopicPartition(topic_id, partition.index))) is not None:
                    yield role

    async def _carry_out(
        self, gone: Sequence[LogIdentity], left: Sequence[TopicPartition], touched: Sequence[TopicPartition]
    ) -> None:
        if gone:
            await self._closing.remove(gone)
        held = [local for key in touched if (local := self._assigned.local(key)) is not None]
        if closing := [*left, *(local.key for local in held if self._roles.is_of_another(local))]:
            await self._closing.leave(closing)
        self._assigned.has_ended([*(TopicPartition(each.topic_id, each.partition) for each in gone), *left])
        if changing := [key for key in touched if self._partitions.role(key) is not None]:
            await self._change_roles(changing)
        if wanted := [
            local
            for key in touched
            if self._partitions.role(key) is None and (local := self._assigned.local(key)) is not None
        ]:
            await self._open(wanted)

    async def _open(self, wanted: Sequence[LocalPartition]) -> None:
        giving_way = await self._taking_up.open(wanted)
        for key in giving_way:
            self._roles.end(key, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if giving_way:
            await self._change_roles(giving_way)

    # changes of roles

    async def _change_roles(self, keys: Sequence[TopicPartition]) -> None:
        """Change the roles of open logs: leaders become followers, or the other way round."""
        ended = [role for key in keys if (role := self._partitions.role(key)) is not None and role.has_stepped_down]
        if not ended:
            return
        self._partitions.on_departure()
        await self._closing.quiet([role.log for role in ended])
        for role in ended:
            await role.settled()
        async for role in by_turns(ended):
            key = role.topic_partition
            if self._partitions.role(key) is not role or (local := self._assigned.local_of(role)) is None:
                continue  # it is to be removed, or closed
            if self._assigned.gives_way(local, role.log) and not await self._begin_behind_history(local, role):
                continue  # it serves nothing before that is done
            if (local := self._assigned.local_of(role)) is None:
                continue
            self._roles.remove(key)
            known = min(role.high_watermark, role.log.log_end_offset)  # the log may have begun again
            has_failed = role.has_failed or (role.log.failed and role.log.read_only is None)
            self._roles.assume(local, role.log, role.producers, role.settings, known, failed=has_failed)

    async def _begin_behind_history(self, local: LocalPartition, role: Replica) -> bool:
        """Let the log give way (see `durable_wins`). False: not now; it is tried again once more is known."""
        catalog = self._assigned.image.catalog[local.key]
        try:
            producers = await self._durable_wins.begin_anew(local.key, catalog, role.log, role.producers)
        except NoRoom as error:
            log.error("a log cannot be begun anew before there is room", log=role.log.identity.name, reason=str(error))
            if role.log.failed:
                self.begin_again(local.key)
            else:
                self._room.lack(Roomless(self.try_again, local.key), is_full=True)
            return False
        except HeadraceError as error:
            log.error("a log could not be begun anew", log=role.log.identity.name, reason=str(error))
            return role.log.failed  # then it is not served
        if producers is None:
            return False
        role.producers = producers
        return True

    def try_again(self, key: TopicPartition) -> None:
        """Give the partition its role again: its history is known now, or there is room."""
        if not self._is_closing:
            self._work.add(partial(self._carry_out, [], [], [key]), "leading behind history")

    # logs that are offline

    async def open_again(self, key: TopicPartition) -> None:
        """Try once more to open a log, in case the obstacle is gone. It was tried on return."""
        self.open_soon(key)
        await self._work.settled()

    def open_soon(self, key: TopicPartition) -> None:
        """As `open_again`, without waiting for it."""
        if key in self._partitions.offline and self._partitions.role(key) is None and not self._is_closing:
            self._work.add(partial(self._carry_out, [], [], [key]), "opening of a log")

    def begin_again(self, key: TopicPartition) -> None:
        """Close a log that was being changed when the disk was full. It is opened as after a crash once there is
        room."""
        if not self._is_closing:
            self._work.add(partial(self._close_half_changed, key), "closing of a log")

    async def _close_half_changed(self, key: TopicPartition) -> None:
        role = self._partitions.role(key)
        if role is None or not role.log.failed:
            return
        await self._closing.close_uncleanly(key)
        if isinstance(role, FollowerPartition):
            self._roles.note_said(role)
        self._partitions.set_offline(key, "Its log was being changed when the disk was full.")
        self._room.lack(Roomless(self.open_soon, key))
        self._events.on_failed(key)

    # the end

    def discard(self, left: Sequence[LogRemoval]) -> None:
        """Remove the directories that `LogEngine.start` has found, beside all other work."""
        self._closing.discard(left)

    async def stop(self, *, clean: bool = True) -> None:
        """Close all logs. A clean stop flushes and acknowledges every append, then closes every log cleanly. Otherwise
        nothing more is written, and the next start recovers."""
        self._durable_wins.stop()
        await self._work.settled()
        await self._flusher.idle()
        self._is_closing = True
        await self._work.settled()  # work that was asked for meanwhile
        await self._closing.close_everything(clean=clean)
