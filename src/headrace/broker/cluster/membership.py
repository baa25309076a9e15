"""This broker's membership in the cluster: it registers, sends heartbeats, and leaves.

Promises:
- A process is one incarnation, and serves nothing before it has replayed its own registration.
- It is `ready` only once it is unfenced.
- Where another process takes its place, or it is removed, it stops by itself and says so.
- Where the store of the commit log has lost its registration, it registers again, as the same incarnation. So it does
  where a late request of a dead process of its own directory, which it holds alone, has taken its place.
- It notices within a heartbeat of its session's end that the controller does not hear it.
- A broker that is told to stop goes on for a moment where followers of its partitions are about to be in sync. So
  brokers may be restarted one after the other.

It never decides: the controller does. Sources: KIP-631; DESIGN "Birth, identity, membership".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final

from headrace.base.errors import HeadraceError, UsageError
from headrace.base.ids import BrokerId, TopicPartition
from headrace.base.limits import (
    LEAVE_WAIT_MS_MAX,
    PARTITIONS_SEARCHED_PER_TURN_MAX,
    REGISTRATION_LATE_MS_MAX,
    REGISTRATION_PATIENCE_MS,
    REGISTRATION_TOLD_MS,
    REGISTRATIONS_LATE_MAX,
    STATES_TOLD_MAX,
    SUCCESSORS_WAIT_MS_MAX,
)
from headrace.broker.cluster.control import Control
from headrace.broker.cluster.driver import MetadataDriver
from headrace.broker.core import Incarnation
from headrace.broker.home.identity import Identity
from headrace.broker.home.lineage import Superseded
from headrace.broker.kit.lease import Lease, lease_s
from headrace.broker.kit.tasks import OnBug, started
from headrace.broker.told_wait import ToldWait
from headrace.controller.asks.brokers import Heartbeat, RegisterBroker
from headrace.controller.decision import Refusal
from headrace.logs import get_logger
from headrace.metadata.delta import ImageDelta
from headrace.metadata.image import EMPTY_IMAGE, MetadataImage
from headrace.metadata.levels import METADATA_LEVEL, METADATA_LEVEL_MIN
from headrace.metadata.values import BrokerImage, Endpoint, Engine
from headrace.wire.ailments import State
from headrace.wire.errors import ErrorCode

log = get_logger(__name__)

PARTITIONS_TOLD_MAX: Final = 5
"""Partitions that one line of the log names."""


class Membership:
    """One per process. `follow` gets the image from this process's own registration on. `on_end` gets the reason where
    another process has taken its place. `on_contact` is called at every heartbeat, with whether the controller heard
    one within the last session."""

    def __init__(
        self,
        *,
        identity: Identity,
        incarnation: Incarnation,
        metadata: MetadataDriver,
        control: Control,
        interval_s: float,
        session_s: float,
        lag_max_s: float,
        on_contact: Callable[[bool], None],
        follow: Callable[[ImageDelta], None],
        is_full: Callable[[], bool],
        states: Callable[[], Sequence[State]],
        now_ms: Callable[[], int],
        on_end: OnBug,
    ) -> None:
        self._identity = identity
        self._incarnation = incarnation
        self._metadata = metadata
        self._control = control
        self._interval_s, self._session_s = interval_s, session_s
        self.lease = Lease(lease_s(session_s, lag_max_s), self._beat)
        self._on_contact = on_contact
        self._follow = follow
        self._is_full = is_full
        self._states = states
        self._now_ms = now_ms
        self._on_end = on_end
        self._level = METADATA_LEVEL
        self._changed = asyncio.Event()
        """Set when the image has changed since it was last cleared."""
        self._registered = asyncio.Event()
        """Set when this process's registration is in the image."""
        self._follows = False
        """Whether it has been there once."""
        self._ask: RegisterBroker | None = None
        """Its registration, once it was asked for."""
        self._began_at = 0.0
        """When it first asked to be registered, in the loop's time."""
        self._returns = 0
        """How often a late request of a dead process has taken its place."""
        self._returning: asyncio.Task[None] | None = None
        """A registration that is asked for again."""
        self._over = False
        self._beats: asyncio.Task[None] | None = None
        self._contact: asyncio.Task[None] | None = None
        self._heard_at = 0.0
        """When the last accepted heartbeat was sent, in the loop's time."""
        self._lacking: dict[BrokerId, tuple[str, ...]] = {}
        metadata.subscribe(self._on_delta)

    async def register(self, endpoints: Sequence[Endpoint], rack: str | None, *, engine: Engine = Engine.LOCAL) -> None:
        """Become this broker's incarnation, and wait until that is replayed here, however long it takes to find a
        controller. Raises UsageError where it cannot be, Superseded where its metadata counts no more."""
        identity = self._identity
        self._began_at = asyncio.get_running_loop().time()
        self._ask = RegisterBroker(
            cluster_id=identity.cluster_id,
            broker_id=identity.broker_id,
            directory_id=identity.directory_id,
            incarnation=self._incarnation.id,
            endpoints=tuple(endpoints),
            rack=rack,
            engine=engine,
            level=self._level,
            level_min=min(self._level, METADATA_LEVEL_MIN),
            lineage=None if self._metadata.lineage is None else str(self._metadata.lineage),
        )
        await self._be_registered(self._ask)

    async def _be_registered(self, ask: RegisterBroker) -> None:
        wait = ToldWait()
        await self._ask_to_be_registered(ask)
        while not self._registered.is_set():
            try:
                async with asyncio.timeout(REGISTRATION_TOLD_MS / 1000):
                    await self._registered.wait()
            except TimeoutError:
                if (failure := self._metadata.failure) is not None:
                    raise failure from None
                known = self._metadata.image.index
                log.warning("registered, and waits for the quorum's log to tell", known_to=known, seconds=wait.seconds)
                await self._ask_to_be_registered(ask)  # it may have been removed, from the quorum too, unheard

    async def _ask_to_be_registered(self, ask: RegisterBroker) -> None:
        """Ask until the controller has done it, or this broker has heard so. For one incarnation it is done once."""
        wait, loop = ToldWait(), asyncio.get_running_loop()
        patience_ends_at = loop.time() + REGISTRATION_PATIENCE_MS / 1000
        while isinstance(epoch := await self._control.submit(ask), Refusal) and not self._registered.is_set():
            if epoch.code in (ErrorCode.INCONSISTENT_CLUSTER_ID, ErrorCode.INVALID_REGISTRATION):
                raise UsageError(epoch.message)
            if epoch.code is ErrorCode.INCONSISTENT_VOTER_SET:
                raise Superseded(epoch.message)
            if epoch.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION:
                if loop.time() >= patience_ends_at:
                    raise UsageError(epoch.message)
                await asyncio.sleep(self._interval_s / 10)  # the other one may be dead, and not yet missed
            if (failure := self._metadata.failure) is not None:
                raise failure
            if wait.is_due():
                log.warning("waiting to be registered", reason=epoch.message, seconds=wait.seconds)

    async def become_ready(self) -> None:
        """Have this broker unfenced, once its logs are open, and keep it so."""
        while not self.is_unfenced and not self._over:
            answer = await self._beat()
            if (failure := self._metadata.failure) is not None:
                raise failure
            if answer is not True and not self.is_unfenced:
                await asyncio.sleep(self._interval_s / 10)
        self._heard_at = asyncio.get_running_loop().time()
        self._beats = started(self._keep_beating(), "heartbeats", self._on_end)
        self._contact = started(self._watch_contact(), "contact with the controller", self._on_end)

    @property
    def is_unfenced(self) -> bool:
        known = self._mine(self._metadata.image)
        return known is not None and not known.fenced

    @property
    def is_heard(self) -> bool:
        """Whether the controller has answered within the last session, and this broker has replayed what it answered
        from."""
        return asyncio.get_running_loop().time() - self._heard_at < self._session_s

    async def leave(self) -> None:
        """Hand leadership to others as far as they can lead, before this broker stops; the controller's too, where it
        was this one."""
        await self._await_successors()
        self._over = True
        self.lease.end()
        for task in (self._beats, self._contact, self._returning):
            if task is not None:
                task.cancel()
        image = self._metadata.image
        others = [broker.id for broker in image.live_brokers() if broker.id != self._identity.broker_id]
        is_last = not others and not image.shares_logs  # there, another process may come in its place at once
        if is_last or not self.is_unfenced:
            return
        answer = await self._told_to_stop()
        if isinstance(answer, Refusal):
            log.warning("stops without having taken its leave", reason=answer.message)
        elif self._metadata.is_controller:
            await self._hand_over(others)

    async def _told_to_stop(self) -> bool | Refusal:
        """Tell the controller. Where that is this broker, it may have many partitions to give away: then this goes on
        for as long as the metadata changes."""
        leaving = asyncio.ensure_future(self._control.submit(self._heartbeat(stopping=True), wait_ms=LEAVE_WAIT_MS_MAX))
        try:
            known = -1
            while known != (known := self._metadata.image.index):
                if (await asyncio.wait([leaving], timeout=LEAVE_WAIT_MS_MAX / 1000))[0]:
                    return leaving.result()
            return Refusal(ErrorCode.REQUEST_TIMED_OUT, "The metadata's log takes no changes.")
        finally:
            leaving.cancel()

    async def _await_successors(self) -> None:
        """Wait for followers of partitions that no other broker could lead by now, until they are in sync, or time is
        up."""
        is_alone = len(self._metadata.image.live_brokers()) < 2
        waiting = [] if is_alone or not self.is_unfenced else await self._without_successor()
        if not waiting:
            return
        told = {"partitions": len(waiting), "first": self._named(waiting)}
        log.info("waits for followers to be in sync before it stops", **told, seconds_max=SUCCESSORS_WAIT_MS_MAX / 1000)
        begun = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(SUCCESSORS_WAIT_MS_MAX / 1000):
                while self.is_unfenced and (waiting := list(filter(self._lacks_successor, waiting))):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            told = {"partitions": len(waiting), "first": self._named(waiting)}
            waited = round(asyncio.get_running_loop().time() - begun, 1)
            log.warning("stops while nobody else can lead what it leads", **told, seconds=waited)

    def _named(self, keys: Sequence[TopicPartition]) -> list[str]:
        """Return the names of the first of them, for people."""
        topics = self._metadata.image.topics
        known = [f"{topics[key.topic_id].name}-{key.partition}" for key in keys if key.topic_id in topics]
        return known[:PARTITIONS_TOLD_MAX]

    async def _without_successor(self) -> list[TopicPartition]:
        """Return the partitions without a successor. The search runs in turns of the loop, for there may be very
        many."""
        everywhere, found = self._metadata.image.all_partitions(), list[TopicPartition]()
        while some := list(islice(everywhere, PARTITIONS_SEARCHED_PER_TURN_MAX)):
            ours = (
                TopicPartition(topic.id, one.index) for topic, one in some if one.leader == self._identity.broker_id
            )
            found += filter(self._lacks_successor, ours)
            await asyncio.sleep(0)
        return found

    def _lacks_successor(self, place: TopicPartition) -> bool:
        """Whether this broker leads the partition, another live one copies it, and no other live one is in sync."""
        me, image = self._identity.broker_id, self._metadata.image
        partition = image.partition(place)
        if partition is None or partition.leader != me:
            return False
        others = (image.brokers.get(broker) for broker in partition.replicas if broker != me)
        live = {known.id for known in others if known is not None and not known.fenced}
        return bool(live.difference(partition.removing)) and live.isdisjoint(partition.isr)

    async def _hand_over(self, others: Sequence[BrokerId]) -> None:
        members = self._metadata.quorum().members
        voters = [member for member in members if member.is_voter and member.peer.node in others]
        if not voters:
            return
        try:
            await self._metadata.transfer(max(voters, key=lambda member: member.log_end).peer)
        except HeadraceError as error:
            log.info("the controller's work was not handed over", reason=str(error))

    # heartbeats

    def _heartbeat(self, *, stopping: bool = False) -> Heartbeat:
        return Heartbeat(
            broker_id=self._identity.broker_id,
            broker_epoch=self._incarnation.epoch,
            ready=not stopping,
            stopping=stopping,
            is_full=self._is_full(),
            states=tuple(self._states())[:STATES_TOLD_MAX],
            clock_ms=self._now_ms(),
            level=self._level,
        )

    async def _beat(self) -> bool | Refusal:
        asked_at = asyncio.get_running_loop().time()
        answer = await self._control.submit(
            self._heartbeat(), wait_ms=max(1, int(min(self._interval_s, self._session_s) * 1000))
        )
        if not isinstance(answer, Refusal):
            self._heard_at = max(self._heard_at, asked_at)
            self.lease.extend(asked_at)
        return answer

    async def _keep_beating(self) -> None:
        pause_s = self._interval_s
        while not self._over:
            await asyncio.sleep(pause_s)
            answer = await self._beat()
            pause_s = self._interval_s
            if isinstance(answer, Refusal):
                log.info("a heartbeat was not taken", reason=answer.message)
                pause_s /= 10  # there is a lease to lose

    async def _watch_contact(self) -> None:
        """Report the contact at every interval. This does not wait for a heartbeat under way, which may take long."""
        while not self._over:
            await asyncio.sleep(self._interval_s)
            self._on_contact(self.is_heard)

    # changes of the image

    def _mine(self, image: MetadataImage) -> BrokerImage | None:
        """Return this broker, where the process that registered last is this one."""
        known = image.brokers.get(self._identity.broker_id)
        return known if known is not None and known.incarnation == self._incarnation.id else None

    def _on_delta(self, delta: ImageDelta) -> None:
        mine = self._mine(delta.after)
        self._look_at_listeners(delta)
        self._changed.set()
        was_registered = self._registered.is_set()
        if mine is not None:
            self._incarnation.epoch = mine.epoch
            self._registered.set()
        if self._follows:
            self._follow(delta)
        elif mine is not None:
            self._follows = True
            self._follow(ImageDelta(EMPTY_IMAGE, delta.after))
        if mine is None and was_registered and not self._over:
            self._lose_registration(delta)

    def _lose_registration(self, delta: ImageDelta) -> None:
        is_late = self._is_of_a_dead_process(delta.after)
        if delta.may_lack_changes or is_late:
            assert self._ask is not None, "it was registered"
            why = "it was taken by a late request of a dead process" if is_late else "it is lost with other changes"
            log.warning("this broker registers again", reason=why)
            self._registered.clear()
            self._returns += is_late
            self._returning = started(self._be_registered(self._ask), "registration", self._on_end)
        else:
            self._over = True
            self._on_end(HeadraceError(self._why_over(delta.after)))

    def _is_of_a_dead_process(self, image: MetadataImage) -> bool:
        """Whether a process of this broker's own directory took its place, which only one process holds at a time. It
        is so early that the request may have been on its way since before. Brokers of a shared log need no directory of
        their own."""
        known = image.brokers.get(self._identity.broker_id)
        is_ours = known is not None and known.directory_id == self._identity.directory_id
        age_s = asyncio.get_running_loop().time() - self._began_at
        is_early = age_s < REGISTRATION_LATE_MS_MAX / 1000 and self._returns < REGISTRATIONS_LATE_MAX
        return is_ours and not image.shares_logs and is_early

    def _why_over(self, image: MetadataImage) -> str:
        broker_id = self._identity.broker_id
        if broker_id in image.brokers:
            return f"Another process has registered as broker {broker_id}: choose another id for one of them."
        return f"Broker {broker_id} was removed from the cluster: start it again where it shall come back."

    def _look_at_listeners(self, delta: ImageDelta) -> None:
        """Log, once, a broker that lacks a listener that others have: their clients cannot reach it."""
        if delta.before.brokers == delta.after.brokers:
            return
        lacking = delta.after.missing_listeners()
        for broker, names in lacking.items():
            if self._lacking.get(broker) != names:
                log.error(
                    "a broker lacks listeners that others have; its clients by those cannot reach it",
                    broker_id=broker,
                    listeners=list(names),
                )
        self._lacking = lacking
