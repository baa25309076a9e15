"""Copies damaged logs again from their leaders, a few at a time (decision 0023).

A copy first leaves the ISR, in an entry that begins a leader epoch. In that epoch, before its leader hears anything of
it, it is dropped. Then it is copied and joins the ISR like any new one.

Promises:
- No copy is dropped that anybody counts on.
- No broker leaves an ISR that would then have too few members, or for a leader with the same damage.
- The dropped log is kept in another directory until the new copy is in sync.
- An obstacle is logged once, and the copy is tried again for as long as it may become possible.

Loop-only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from headrace.base.errors import HeadraceError, StorageFailure
from headrace.base.ids import LAST_OFFSET, NO_LEADER, BrokerEpoch, BrokerId, TopicPartition
from headrace.base.limits import AILMENTS_TOLD_MAX, RENEWAL_LOOK_MS, RENEWAL_ROOM_FACTOR, RENEWALS_AT_ONCE_MAX
from headrace.broker.cluster.control import Control
from headrace.broker.kit.tasks import OnBug, in_thread, started
from headrace.broker.partitions.following import FollowerPartition
from headrace.broker.partitions.partition import Partition
from headrace.broker.partitions.partitions import Partitions
from headrace.broker.partitions.replica import Replica
from headrace.controller.decision import Refusal
from headrace.logs import get_logger
from headrace.wire.ailments import Ailment
from headrace.wire.errors import ErrorCode

log = get_logger(__name__)

NO_OTHERS: Final = "nobody else is in sync: start the brokers of its other replicas"
NONE_SOUND: Final = "no other replica in sync is known to be sound: put back a sound copy of the file"
TOO_FEW: Final = "too few would be in sync without it (min.insync.replicas): bring back or add a replica"
LEADER_DAMAGED: Final = "its leader has damage in the same place: put back a sound copy of the file on either"
NO_ROOM: Final = "what it has cannot be kept beside the new copy: give the volume room"
STUCK: Final = "its leader cannot send what comes next: put back a sound copy of the leader's file"


class Wish(NamedTuple):
    """A copy that could begin again."""

    role: Replica
    successor: BrokerId = NO_LEADER
    """The next leader, where this broker leads now."""


class Renewals:
    """One per broker."""

    def __init__(
        self,
        *,
        node: BrokerId,
        broker_epoch: Callable[[], BrokerEpoch],
        partitions: Partitions,
        control: Control,
        copy: Callable[[FollowerPartition], None],
        on_bug: OnBug,
    ) -> None:
        """`copy` has a partition copied from its leader, from where it is now."""
        self._node = node
        self._broker_epoch = broker_epoch
        self._partitions = partitions
        self._control = control
        self._copy = copy
        self._on_bug = on_bug
        self._noted: dict[TopicPartition, None] = {}
        """Partitions that are damaged, are being copied again, or have a kept log that may go."""
        self._under_way: dict[TopicPartition, None] = {}
        """The part of `_noted` that may be dropped as soon as nobody counts on it, or has been."""
        self._let_in: set[TopicPartition] = set()
        """The part of `_noted` that was in sync, and not led here, since it began again: nobody needs the kept log."""
        self._obstacles: dict[TopicPartition, str] = {}
        """Why a damaged copy stays so, as it was logged."""
        self._looking: asyncio.Task[None] | None = None
        self._stopped = False

    def note(self, key: TopicPartition) -> None:
        """Note that the partition's log is damaged, or that a log is kept beside it."""
        self._noted[key] = None
        if self._looking is None and not self._stopped:
            self._looking = started(self._look_on(), "renewal of damaged copies", self._on_bug)

    def note_let_in(self, key: TopicPartition) -> None:
        """Note that the copy is in sync, so that nobody needs the log that is kept beside it."""
        self._let_in.add(key)

    def is_to_begin_again(self, copy: FollowerPartition) -> bool:
        """Whether the copy is to be dropped now. See `PartitionEvents`."""
        return copy.topic_partition in self._under_way and _is_ill(copy) and copy.may_be_dropped

    def obstacle(self, key: TopicPartition) -> str | None:
        """Return why a damaged copy cannot be copied again now, as a clause that says what to do. None: it can, as far
        as is known."""
        return self._obstacles.get(key)

    def ailments(self) -> Sequence[Ailment]:
        """Return everything that is damaged, or cannot be led without its history."""
        roles = [role for key in self._noted if (role := self._partitions.role(key)) is not None]
        found = [each for role in roles if (each := self._ailment(role)) is not None]
        found += self._waiting()
        return found[:AILMENTS_TOLD_MAX]

    def _waiting(self) -> Iterator[Ailment]:
        """Iterate over partitions that this broker is to lead, once their durable history is read."""
        for key, todo in self._partitions.waits.items():
            if (role := self._partitions.role(key)) is not None:
                ends_at = -1 if role.history is None else role.history.next_offset
                yield Ailment(role.topic, key.partition, True, ends_at, ends_at, todo)

    def _ailment(self, role: Replica) -> Ailment | None:
        """Return the partition's damage; None: it is sound, and goes on."""
        key = role.topic_partition
        obstacle = self._obstacles.get(key, "")
        stuck_at = role.stuck_at if isinstance(role, FollowerPartition) else None
        if stuck_at is not None:
            start, end = stuck_at, stuck_at
        elif _is_ill(role):
            start, end = role.damaged or (role.log.log_start_offset, LAST_OFFSET)
        else:
            return None
        leads = isinstance(role, Partition)
        return Ailment(role.topic, key.partition, leads, start, -1 if end == LAST_OFFSET else end, obstacle)

    async def stop(self) -> None:
        self._stopped = True
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    async def _look_on(self) -> None:
        try:
            await asyncio.sleep(0)
            while self._noted:
                await self._look()
                await asyncio.sleep(RENEWAL_LOOK_MS / 1000)
        finally:
            self._looking = None

    async def _look(self) -> None:
        wishes: list[Wish] = []
        for key in list(self._noted):
            role = self._partitions.role(key)
            if role is None or role.has_failed:
                self._forget(key)
            elif _is_ill(role):
                if key in self._under_way:
                    self._push(role)
                elif isinstance(wish := self._wish(role), Wish):
                    wishes.append(wish)
                elif wish is not None:
                    self._hinder(role, wish)
            else:
                await self._see_to_sound(role)
        if wishes := await self._affordable(wishes):
            await self._begin(wishes)

    def _forget(self, key: TopicPartition) -> None:
        self._noted.pop(key, None)
        self._under_way.pop(key, None)
        self._let_in.discard(key)
        self._obstacles.pop(key, None)

    # obstacles

    def _wish(self, role: Replica) -> Wish | str | None:
        """Return a wish, or an obstacle, where it has to wait and somebody can do something about it. None: it will be
        known soon."""
        if isinstance(role, Partition):
            return self._wish_of_leader(role)
        assert isinstance(role, FollowerPartition), "it leads or follows"
        if role.leader == NO_LEADER or role.is_changing:
            return None
        if role.is_blocked:
            return Wish(role)
        if (report := role.leader_report) is None:
            return None
        if report.damaged is not None and report.damaged[1] > role.log.log_start_offset:
            return LEADER_DAMAGED
        return Wish(role)

    def _wish_of_leader(self, role: Partition) -> Wish | str | None:
        if role.availability is not ErrorCode.NONE:
            return None
        standings = role.isr.leader
        others = [each for each in standings.isr if each != self._node]
        if not others:
            return NO_OTHERS
        start = role.log.log_start_offset
        known = standings.followers
        sound = [each for each in others if each in known and known[each].readable_from <= start]
        return Wish(role, sound[0]) if sound else NONE_SOUND

    def _hinder(self, role: Replica, obstacle: str) -> None:
        key = role.topic_partition
        if self._obstacles.get(key) != obstacle:
            self._obstacles[key] = obstacle
            log.warning(
                "a damaged log is not copied anew now",
                topic=role.topic,
                partition=key.partition,
                obstacle=obstacle,
            )

    async def _affordable(self, wishes: list[Wish]) -> list[Wish]:
        """Return the wishes for which there is room, and not too many at once."""
        roles = [self._partitions.role(key) for key in self._under_way]
        going = [role for role in roles if not (isinstance(role, FollowerPartition) and role.waits_for_others)]
        count = RENEWALS_AT_ONCE_MAX - len(going)
        if count <= 0 or not wishes:
            return []
        try:
            room = (await self._partitions.space()).usable
        except OSError:
            room = 0
        room -= RENEWAL_ROOM_FACTOR * sum(role.log.size_bytes for role in going if role is not None)
        found: list[Wish] = []
        for wish in wishes:
            room -= RENEWAL_ROOM_FACTOR * wish.role.log.size_bytes
            if room < 0:
                self._hinder(wish.role, NO_ROOM)
            elif len(found) < count:
                found.append(wish)
        return found

    # leaving the ISR

    async def _begin(self, wishes: list[Wish]) -> None:
        asking: list[Wish] = []
        for wish in wishes:
            self._let_in.discard(wish.role.topic_partition)
            self._under_way[wish.role.topic_partition] = None  # first: the epoch in which it may go may come at once
            if isinstance(wish.role, FollowerPartition) and wish.role.may_be_dropped:
                self._push(wish.role)
            else:
                asking.append(wish)
        if not asking:
            return
        from headrace.controller.asks.replicas import RenewCopies
        from headrace.controller.renewals import CopyRenewal

        ask = RenewCopies(
            broker_id=self._node,
            broker_epoch=self._broker_epoch(),
            copies=tuple(
                CopyRenewal(
                    topic_id=role.topic_partition.topic_id,
                    partition=role.topic_partition.partition,
                    leader_epoch=role.leader_epoch,
                    successor=successor,
                )
                for role, successor in asking
            ),
        )
        answer: tuple[ErrorCode, ...] | Refusal
        try:
            answer = await self._control.submit(ask)
        except HeadraceError as error:
            answer = Refusal(ErrorCode.UNKNOWN_SERVER_ERROR, str(error))
        if isinstance(answer, Refusal):
            log.info("the controller did not answer for damaged copies; asked again", reason=answer.message)
            answer = (answer.code,) * len(asking)
        for (role, _), code in zip(asking, answer, strict=True):
            if code is ErrorCode.NONE:
                self._obstacles.pop(role.topic_partition, None)
                continue
            self._forego(role)
            if code is ErrorCode.NOT_ENOUGH_REPLICAS:
                self._hinder(role, TOO_FEW)

    def _forego(self, role: Replica) -> None:
        """Put it off: others have their turn first."""
        key = role.topic_partition
        self._under_way.pop(key, None)
        self._noted.pop(key, None)
        self._noted[key] = None

    def _push(self, role: Replica) -> None:
        """Have the copy dropped, where nobody counts on it and that is not under way; else the controller is asked
        again."""
        if not isinstance(role, FollowerPartition):
            if not role.has_stepped_down:  # else it is about to follow
                self._forego(role)
        elif role.is_changing:
            return
        elif not self.is_to_begin_again(role):
            self._forego(role)
        elif role.leader != NO_LEADER:
            self._copy(role)

    # once it is sound

    async def _see_to_sound(self, role: Replica) -> None:
        key = role.topic_partition
        if isinstance(role, FollowerPartition) and not role.is_in_sync:
            if role.stuck_at is not None:
                self._obstacles[key] = STUCK
            return
        if role.has_replaced and isinstance(role, Partition) and key not in self._let_in:
            return  # it may lead by an unclean election, with less than it had
        self._forget(key)
        copying = role.log.copying
        if copying is None or not copying.has_replaced:
            return
        log.info("a copy that was begun anew is in sync", topic=role.topic, partition=key.partition)
        try:
            await in_thread(copying.drop_replaced)
        except StorageFailure as error:
            log.warning("what a copy replaced is left", topic=role.topic, partition=key.partition, reason=str(error))


def _is_ill(role: Replica) -> bool:
    return role.is_damaged or (isinstance(role, FollowerPartition) and role.in_doubt is not None)
