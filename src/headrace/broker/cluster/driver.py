"""The driver of the metadata: carries decisions to the commit log, and the committed image to its readers.

Promises:
- `image` is committed state and is swapped by one assignment.
- Only the active controller decides, and it sees every decision before, even those not yet committed.
- `submit` returns only once its result rests on committed state, and every subscriber here has seen it.
- The deltas of a subscriber add up to `image`.
- After a disk failure, nothing more is written, every waiting caller gets an error, and `on_fatal` is called once, to
  stop the process.

It never decides, never changes state but by a commit, and never waits for the disk on the event loop. Source of its
duties: docs/decisions/0016.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from headrace.base import limits
from headrace.base.errors import StorageFailure
from headrace.base.ids import BrokerId, DirectoryId, Lineage
from headrace.base.limits import METADATA_PROPOSALS_MAX
from headrace.broker.cluster.quorum.applying import Applier, Subscriber
from headrace.broker.cluster.quorum.errors import ChangeRefused as ChangeRefused
from headrace.broker.cluster.quorum.errors import ChangeTooLarge as ChangeTooLarge
from headrace.broker.cluster.quorum.errors import MetadataStopped as MetadataStopped
from headrace.broker.cluster.quorum.errors import NotController as NotController
from headrace.broker.cluster.quorum.errors import OutcomeUnknown as OutcomeUnknown
from headrace.broker.cluster.quorum.pending import Pending, Proposal
from headrace.controller.decision import Decision
from headrace.logs import get_logger
from headrace.metadata.codec import encode_events, encode_line
from headrace.metadata.events import MetadataEvent, PartitionsAdded, TopicCreated
from headrace.metadata.image import MetadataImage
from headrace.raft.membership import Change, Membership, Peer
from headrace.storage.commit_log import CommitLog, Committed, EpochOver, MemberStatus, Quorum, QuorumStatus

T = TypeVar("T")
OnController = Callable[[bool], None]
log = get_logger(__name__)

_INLINE_WEIGHT: Final = 200
"""Events and partitions up to which entries are encoded in one turn of the loop: about a millisecond."""


class MetadataDriver:
    """Cluster state on this node, over a commit log of whatever kind. To be used from one event loop."""

    def __init__(
        self, commit_log: CommitLog, *, me: BrokerId, on_fatal: Callable[[Exception], None] | None = None
    ) -> None:
        """Make the driver; `start` begins. `on_fatal`: called on the loop, once, when nothing can be committed any
        more; the process is to stop."""
        self._log = commit_log
        self._me = me
        self._on_fatal = on_fatal
        self._applier = Applier(own=self._own, on_progress=self._on_progress, on_failure=self._fail)
        self._pending: Pending | None = None
        self._turn = asyncio.Lock()
        self._encoding: asyncio.Future[None] | None = None
        """The encoding of a decision that is not yet pending. Done when it is pending, or is decided again."""
        self._room = asyncio.Semaphore(METADATA_PROPOSALS_MAX)
        self._flushing: asyncio.Handle | None = None
        self._on_controller: list[OnController] = []
        self._on_leader: list[Callable[[], None]] = []
        self._known_leader: BrokerId | None = None
        self._progress = asyncio.Event()
        self._failure: Exception | None = None
        self._started = self._stopping = False

    # state that anyone may read

    @property
    def image(self) -> MetadataImage:
        """The committed image. Read it once per request."""
        return self._applier.image

    @property
    def failure(self) -> Exception | None:
        """Why nothing can be committed any more; None while it can."""
        return self._failure

    @property
    def me(self) -> BrokerId:
        return self._me

    @property
    def leader(self) -> BrokerId | None:
        """The controller, or who is about to be it, as far as this node knows."""
        return self._log.leader

    def leader_before(self) -> tuple[BrokerId, DirectoryId, float] | None:
        """Return the last leader that was another node, and the seconds since it was last heard here."""
        return self._log.leader_before()

    @property
    def term(self) -> int:
        """The newest controller epoch that this node knows of."""
        return self._log.term

    @property
    def voters(self) -> Quorum | None:
        """The members of the commit log's quorum; None: no brokers vote on it."""
        return self._log.quorum

    @property
    def _quorum(self) -> Quorum:
        quorum = self._log.quorum
        assert quorum is not None, "a commit log without voters has no members to change"
        return quorum

    @property
    def membership(self) -> Membership:
        """The newest membership in the log, committed or not."""
        return self._quorum.membership

    @property
    def is_controller(self) -> bool:
        """Whether this node decides: it leads, and has replayed every earlier decision."""
        return self._pending is not None

    @property
    def lineage(self) -> Lineage | None:
        """The lineage of this node's log; None where that is empty, and waits for its first entries."""
        quorum = self._log.quorum
        return None if quorum is not None and quorum.is_blank else self.image.lineage

    def quorum(self) -> QuorumStatus:
        """Return the members of the quorum. Where no brokers vote, the controller stands for them, as tools expect."""
        if (quorum := self._log.quorum) is not None:
            return quorum.status()
        known = None if self.leader is None else self.image.brokers.get(self.leader)
        leader = None if known is None else Peer(known.id, known.directory_id)
        index = self.image.index
        members = (
            ()
            if leader is None
            else (MemberStatus(peer=leader, is_voter=True, log_end=index, last_fetch_ms=-1, last_caught_up_ms=-1),)
        )
        return QuorumStatus(leader=leader, epoch=self.term, high_watermark=index, members=members)

    def subscribe(self, subscriber: Subscriber) -> None:
        """Give every later delta to `subscriber`, on the loop, right after the image was swapped and before `submit`
        returns. A subscriber that raises is a bug, and fatal."""
        self._applier.subscribe(subscriber)

    def on_controller(self, callback: OnController) -> None:
        """Call `callback` on the loop, with True when this node becomes the active controller, and with False when it
        ceases to be. It must not call back into the driver; a task may."""
        self._on_controller.append(callback)

    def on_leader(self, callback: Callable[[], None]) -> None:
        """Call `callback` on the loop when this node knows another leader, or none. As `on_controller`."""
        self._on_leader.append(callback)

    async def reached(self, index: int) -> None:
        """Wait until the image is at `index` or behind it. Raises StorageFailure, MetadataStopped."""
        while self.image.index < index:
            self._check_running()
            await self._progress.wait()

    async def read_barrier(self) -> None:
        """Wait until the image holds everything that was committed anywhere before this call. Raises NotController."""
        self._check_active()
        try:
            index = await self._log.confirmed()
        except EpochOver:
            raise self._not_controller() from None
        await self.reached(index)

    # life

    async def start(self) -> None:
        """Recover the commit log, and replay the entries known to be committed. Subscribers get all of them as one
        delta from the empty image; the only voter elects itself. Raises CorruptData and StorageFailure."""
        await self._log.start(self._applier, self._after_step, self._fail)
        if self._failure is not None:
            raise self._failure
        self._started = True
        self._after_step()

    async def stop(self) -> None:
        """Commit what was submitted, as far as others let it be committed in time, then close the log. Idempotent."""
        if not self._started or self._stopping:
            return
        self._stopping = True
        if self._failure is None:
            self._flush()
            last = self._pending.last_done if self._pending is not None else None
            if last is not None:
                patience = None if self._log.is_alone else limits.RAFT_STOP_MS_MAX / 1000
                await asyncio.wait([last], timeout=patience)
        self._applier.stop()
        self._log.halt(_stopped)
        self._lose_control(OutcomeUnknown, OutcomeUnknown)
        self._tell_progress()
        await self._log.stop()

    def _check_running(self) -> None:
        if self._failure is not None:
            raise StorageFailure(f"The metadata can not be changed any more: {self._failure}") from self._failure
        if self._stopping or not self._started:
            raise _stopped()

    def _check_active(self) -> Pending:
        self._check_running()
        if self._pending is None:
            raise self._not_controller()
        return self._pending

    def _not_controller(self) -> NotController:
        leader = self.leader
        return NotController(None if leader == self._me else leader)

    # the controller

    async def submit(self, decide: Callable[[MetadataImage], Decision[T]]) -> T:
        """Decide on the newest state, commit the events, and return the decision's result.

        Returns once the state that was decided on, and the events, are committed and published. Raises:
        - NotController where this node does not decide (nothing was done).
        - OutcomeUnknown where it ceased to decide meanwhile.
        - ChangeRefused where too much is under way.
        - ChangeTooLarge where the change can never be made.
        - StorageFailure where the disk failed (whether the events are on it is then unknown).
        - MetadataStopped after `stop`.
        """
        async with self._room:
            async with self._turn:
                pending = self._check_active()
                decision, done = await self._decided(pending, decide)
            if done is None:
                await self._confirm(pending)
            else:
                await asyncio.shield(done)
            return decision.result

    async def _decided(
        self, pending: Pending, decide: Callable[[MetadataImage], Decision[T]]
    ) -> tuple[Decision[T], asyncio.Future[None] | None]:
        """Decide; return the decision, and the future to wait for where it has events. Decides again where an earlier
        decision was refused while the events were encoded."""
        while True:
            image = pending.image
            decision = decide(image)
            if not decision.events:
                return decision, None
            data = await self._encoded(decision.events)
            if self._check_active() is not pending:
                raise self._not_controller()
            if pending.image is image:
                break
        if len(data) > limits.METADATA_ENTRY_BYTES_MAX:
            raise ChangeTooLarge(len(data))
        done = pending.decide(decision.events, data)
        if self._flushing is None:  # other decisions of this turn of the loop go with it
            self._flushing = asyncio.get_running_loop().call_soon(self._flush)
        return decision, done

    async def _encoded(self, events: Sequence[MetadataEvent]) -> bytes:
        self._encoding = encoding = asyncio.get_running_loop().create_future()
        try:
            return await _encode(events)
        finally:  # callers that wait for this go on after the caller itself
            self._encoding = None
            encoding.set_result(None)

    def _flush(self) -> None:
        """Propose the decided events."""
        if self._flushing is not None:
            self._flushing.cancel()
            self._flushing = None
        pending = self._pending
        data = pending.take_unproposed() if pending is not None else ()
        if pending is None or not data:
            return
        reason = self._log.append(pending.term, pending.image.index - len(data), data)
        if reason is not None and self._pending is pending:
            pending.drop_last(len(data), lambda: ChangeRefused(reason))
        self._after_step()

    async def confirmed(self) -> None:
        """Return once everything that was seen or decided here before this call may be told, pending or committed. It
        is then committed and replayed, and this was the controller after it was seen. Raises as `submit` does where
        nothing was done."""
        if self._encoding is not None:
            await asyncio.shield(self._encoding)
        await self._confirm(self._check_active())

    async def _confirm(self, pending: Pending) -> None:
        try:
            if pending.last_done is not None:
                await asyncio.shield(pending.last_done)
        except OutcomeUnknown:  # the outcome that others wait for; a caller that only looked has done nothing
            raise self._not_controller() from None
        if not self._log.is_alone:
            await self.read_barrier()

    async def change(self, change: Change) -> None:
        """Change the membership, and return once that is committed. Raises as `submit` does."""
        async with self._turn:
            pending = self._check_active()
            self._flush()
            if self._check_active() is not pending:
                raise self._not_controller()
            refusal = self._quorum.change(change)
            if refusal is not None:
                raise ChangeRefused(refusal.value, refusal)
            done = pending.note_membership()
            self._after_step()
        await asyncio.shield(done)

    async def transfer(self, target: Peer) -> bool:
        """Hand the leadership over; return whether that was done. Raises NotController, ChangeRefused."""
        async with self._turn:
            self._check_active()
            self._flush()
            refusal = self._quorum.transfer(target)
            if refusal is not None:
                raise ChangeRefused(refusal.value, refusal)
        try:
            async with asyncio.timeout(self._quorum.patience_s):
                while self._log.holds:
                    await self._progress.wait()
        except TimeoutError:
            return False
        return True

    def _own(self, entry: Committed) -> Proposal | None:
        pending = self._pending
        return pending.take(entry.index) if pending is not None and pending.term == entry.epoch else None

    def _take_control(self) -> None:
        self._pending = Pending(self.image, self._log.term)
        if not self._log.is_alone:
            log.info("this broker is the controller", broker_id=self._me, epoch=self._log.term)
        self._tell_controller(active=True)

    def _lose_control(self, error: Callable[[], Exception], unproposed: Callable[[], Exception]) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.drop_all(error, unproposed)
            if not self._log.is_alone:
                log.info("this broker is not the controller any more", broker_id=self._me, epoch=pending.term)
            self._tell_controller(active=False)

    def _tell_controller(self, *, active: bool) -> None:
        for callback in self._on_controller:
            callback(active)

    # the quorum

    def leader_died(self, peer: Peer, term: int) -> None:
        """Note that the process of that term's leader is plainly dead, so that nobody waits for it."""
        self._quorum.leader_died(peer, term)

    def give_up(self, error: Exception) -> None:
        """Give this node's metadata up: it does not count any more. Nothing is decided here from now on, and `on_fatal`
        is called."""
        self._fail(error)

    def _after_step(self) -> None:
        """Take or lose control, where the commit log changed whether this node decides."""
        log, pending = self._log, self._pending
        if (leader := log.leader) != self._known_leader:
            self._known_leader = leader
            for callback in self._on_leader:
                callback()
        if pending is not None and (not log.holds or log.term != pending.term):
            self._lose_control(OutcomeUnknown, self._not_controller)
            self._tell_progress()
        may_decide = self._pending is None and self._started and not self._stopping and self._failure is None
        if may_decide and self.image.index == log.decided_to:
            self._take_control()

    def _on_progress(self) -> None:
        """Note that entries were applied."""
        self._tell_progress()
        self._log.on_applied()

    def _tell_progress(self) -> None:
        self._progress.set()
        self._progress = asyncio.Event()

    def _fail(self, error: Exception) -> None:
        """Commit nothing more, and give every waiting caller, and `on_fatal`, the error."""
        if self._failure is not None:
            return
        self._failure = error
        log.critical("the metadata can not be changed any more", error=str(error) or repr(error))

        def failed() -> StorageFailure:
            return StorageFailure(str(error))

        self._applier.stop()
        self._log.halt(failed)
        self._lose_control(failed, failed)
        self._tell_progress()
        if self._on_fatal is not None:
            self._on_fatal(error)


def _stopped() -> MetadataStopped:
    return MetadataStopped("This broker is stopping: ask another one, or again after it has started.")


async def _encode(events: Sequence[MetadataEvent]) -> bytes:
    """Return the events as bytes. Many small ones are encoded in several turns of the loop: a thread would hold the
    interpreter longer than each turn. A large event is encoded in a worker thread."""
    if max(map(_weight, events)) > _INLINE_WEIGHT:
        return await asyncio.get_running_loop().run_in_executor(None, encode_events, events)
    lines, weight = list[bytes](), 0
    for event in events:
        weight += _weight(event)
        if weight > _INLINE_WEIGHT:
            await asyncio.sleep(0)
            weight = _weight(event)
        lines.append(encode_line(event))
    return b"".join(lines)


def _weight(event: MetadataEvent) -> int:
    return 1 + len(event.partitions) if isinstance(event, TopicCreated | PartitionsAdded) else 1
