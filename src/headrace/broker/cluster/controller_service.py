"""The work of the active controller besides deciding: it answers requests of brokers, keeps their sessions, and grows
the quorum.

Promises:
- Every change goes through `MetadataDriver.submit`; nothing is decided while this node does not lead.
- Every answer, to heartbeats and in refusals too, rests on the newest committed state.
- A broker is fenced for silence, or at once where its process is plainly dead, never for this node's own pauses.

Sources: KIP-631, KIP-853; DESIGN "Birth, identity, membership".
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any, Final, TypeVar

from headrace.base.errors import HeadraceError
from headrace.base.ids import BrokerEpoch, BrokerId, ClusterId, DirectoryId
from headrace.base.limits import (
    CLOCK_DIFFERENCE_MS_MAX,
    RAFT_ELECTION_TICKS,
    RAFT_TICK_MS,
    REPLACED_SESSION_PART_MAX,
)
from headrace.base.ports import Clock
from headrace.broker.cluster.driver import ChangeRefused, MetadataDriver, NotController
from headrace.broker.cluster.quorum.errors import ChangeTooLarge
from headrace.broker.cluster.transitions import BrokerTransitions
from headrace.broker.cluster.voters import NoVoters, Voters, not_done
from headrace.broker.kit.tasks import OnBug, started
from headrace.controller.asks.asking import Ask, Command, Setting
from headrace.controller.asks.brokers import ChangeVoter, Heartbeat, ReadQuorum, RegisterBroker, RemoveBroker
from headrace.controller.brokers import refused_registration, register_broker
from headrace.controller.decision import Decision, Refusal, stale
from headrace.controller.levels import raise_level, within_levels
from headrace.controller.lost_quorum import other_lineage
from headrace.controller.sessions import Sessions
from headrace.logs import get_logger
from headrace.metadata.configs import broker_value
from headrace.metadata.image import MetadataImage
from headrace.raft.membership import Peer
from headrace.wire.ailments import NO_STORE, State
from headrace.wire.errors import ErrorCode

log = get_logger(__name__)

T = TypeVar("T")
TICKS_PER_SESSION: Final = 6
REPLACED_AFTER_S_MAX: Final = 2 * RAFT_ELECTION_TICKS * RAFT_TICK_MS / 1000
"""The silence of a controller that counts after it is replaced. Earlier silence may have been this node's own."""


class ControllerService:
    """One per broker; at work only while its node is the active controller."""

    def __init__(
        self,
        *,
        node: BrokerId,
        cluster_id: ClusterId,
        configs: Mapping[str, str],
        metadata: MetadataDriver,
        clock: Clock,
        has_store: bool = False,
        on_bug: OnBug,
    ) -> None:
        self.cluster_id = cluster_id
        self._node = node
        self._metadata = metadata
        self._clock = clock
        self._on_bug = on_bug
        self._setting = Setting(configs, node, has_store)
        self._session_s = broker_value(metadata.image, configs, "broker.session.timeout.ms").number() / 1000
        wanted = broker_value(metadata.image, configs, "controller.voters").number()
        votes = metadata.voters is not None
        self.voters = Voters(metadata=metadata, wanted=wanted) if votes else NoVoters(metadata)
        self._sessions: Sessions | None = None
        """The sessions of this leadership; None: there is none."""
        self._settling = BrokerTransitions(metadata)
        """The brokers' transitions in the last leadership."""
        self._ticks: asyncio.Task[None] | None = None
        self._hasty: dict[BrokerId, asyncio.Task[None]] = {}
        """Fencings of dead brokers under way: a death may be reported more than once, and counts once."""
        self._seen_dead: dict[BrokerId, tuple[BrokerEpoch, float]] = {}
        """Incarnations whose process was seen dead before this node was the controller, with the time. Where it was
        true, other nodes have reported one that is older than a session. Those are here, too, whose fencing failed."""
        self._heard: dict[BrokerId, Sequence[State]] = {}
        self._full: set[BrokerId] = set()
        """Brokers that reported a full disk with their last heartbeat to this node."""

    # the leadership

    def begin(self) -> None:
        """`ControllerWork`."""
        now = self._clock.monotonic()
        self._settling = BrokerTransitions(self._metadata)
        self._sessions = sessions = Sessions(timeout_s=self._session_s, me=self._node, now=now)
        if (before := self._metadata.leader_before()) is not None:
            self._go_on_with(sessions, *before, now)
        self._ticks = started(self._tick(sessions), "controller's sessions", self._on_bug)
        seen, self._seen_dead = self._seen_dead, {}
        for broker, (epoch, seen_at) in seen.items():
            known = self._metadata.image.brokers.get(broker)
            if known is not None and known.epoch == epoch and now - seen_at <= self._session_s:
                self.on_peer_dead(broker)

    def end(self) -> None:
        """`ControllerWork`."""
        if self._ticks is not None:
            self._ticks.cancel()
        self._sessions = self._ticks = None
        self._full, self._heard = set(), {}

    def _go_on_with(
        self, sessions: Sessions, node: BrokerId, directory: DirectoryId, silent_s: float, now: float
    ) -> None:
        """Continue the session of the previous controller: this node heard it not long before it was replaced."""
        known = self._metadata.image.brokers.get(node)
        if known is not None and known.directory_id == directory:
            silent_s = min(silent_s, REPLACED_AFTER_S_MAX, self._session_s * REPLACED_SESSION_PART_MAX)
            sessions.heard(known.id, known.epoch, now - silent_s)

    async def _tick(self, sessions: Sessions) -> None:
        while self._sessions is sessions:
            try:
                for broker, epoch in sessions.tick(self._metadata.image, self._clock.monotonic()):
                    silent = partial(self._is_silent, sessions, broker)
                    await self._fence(broker, epoch, f"it was silent for {self._session_s:g} s", still=silent)
                await self._settling.go_on()
                await self.voters.readmit()
                await self.voters.grow()
            except HeadraceError as error:
                log.info("the controller's work is put off", reason=str(error))
            await asyncio.sleep(sessions.wait_s(self._clock.monotonic(), self._session_s / TICKS_PER_SESSION))

    def on_peer_dead(self, broker: BrokerId) -> None:
        """Note that a broker's process is plainly dead, as seen from here. This is often the controller's. Where
        another broker died with it, this node may know best. The next controller may have had no connection to that
        broker as a voter, but may have copied from it."""
        known = self._metadata.image.brokers.get(broker)
        if self._sessions is None:
            if known is not None:
                self._seen_dead[broker] = known.epoch, self._clock.monotonic()
        elif broker not in self._hasty:
            task = started(self._fence_dead(self._sessions, broker), "fencing of a dead broker", self._on_bug)
            self._hasty[broker] = task
            task.add_done_callback(lambda _: self._hasty.pop(broker))

    async def _fence_dead(self, sessions: Sessions, broker: BrokerId) -> None:
        died_at = self._clock.monotonic()
        if (dead := sessions.died(self._metadata.image, broker, died_at)) is None:
            return
        try:
            await self._fence(*dead, "its process is dead")
        except HeadraceError as error:
            log.info("a dead broker is left to its session", broker_id=broker, reason=str(error))
            self._seen_dead[broker] = dead[1], died_at  # where this leadership ended first, the next one does it

    def _is_silent(self, sessions: Sessions, broker: BrokerId) -> bool:
        return not sessions.has(broker, self._clock.monotonic())

    async def _fence(
        self, broker: BrokerId, epoch: BrokerEpoch, reason: str, *, still: Callable[[], bool] = lambda: True
    ) -> None:
        known = self._metadata.image.brokers.get(broker)
        if known is not None and known.epoch == epoch and await self._settling.fence(known, still=still) is None:
            log.warning("broker fenced", broker_id=broker, reason=reason)

    # requests

    async def answer(self, ask: Ask[Any]) -> Any:
        """Return the result or a Refusal, once it rests on committed entries. Raises NotController, and HeadraceError
        where nothing can be committed or the outcome is unknown."""
        sessions = self._sessions
        if sessions is None:
            raise NotController(self._metadata.leader)
        match ask:
            case Command():
                try:
                    return await self._metadata.submit(partial(self._decided, ask))
                except ChangeTooLarge as error:
                    return Refusal(ErrorCode.POLICY_VIOLATION, str(error))
                except ChangeRefused as error:
                    return not_done(str(error))
            case Heartbeat():
                return await self._on_heartbeat(sessions, ask)
            case RegisterBroker():
                return await self._register(sessions, ask)
            case RemoveBroker():
                return await self._remove(ask)
            case ChangeVoter():
                return await self.voters.change_voter(ask)
            case ReadQuorum():
                return await self._confirmed(self.voters.view())
            case _:
                raise AssertionError(f"nobody answers {type(ask).__name__}")

    def _decided(self, ask: Command[T], image: MetadataImage) -> Decision[T | Refusal]:
        quorum = self._metadata.voters
        voters = () if quorum is None else tuple(peer.node for peer in quorum.membership.voters)
        setting = replace(self._setting, unable=self.storeless(), voters=voters, full=self._full)
        return within_levels(ask.decide(image, setting), image, voters)

    async def _confirmed(self, seen: T) -> T:
        """Return what was seen just now, once it may be told. This node may have been deposed without knowing it, and
        its decisions may never be committed. Raises NotController."""
        await self._metadata.confirmed()
        return seen

    async def _register(self, sessions: Sessions, ask: RegisterBroker) -> BrokerEpoch | Refusal:
        if ask.cluster_id != self.cluster_id:
            return register_refusal(ask.cluster_id, self.cluster_id, ask.broker_id)
        if (strange := other_lineage(self._metadata.image, ask.broker_id, ask.lineage)) is not None:
            return await self._confirmed(strange)
        wanted: dict[str, Any] = {
            field.name: getattr(ask, field.name) for field in fields(ask) if field.name != "lineage"
        }
        wanted["in_session"] = sessions.has(ask.broker_id, self._clock.monotonic())

        def at_once(image: MetadataImage) -> bool:
            """Whether the broker is alone: then it need not ask to be unfenced, for it decides itself."""
            alone = ask.broker_id == self._node and set(image.brokers) <= {self._node}
            return alone and self._settling.may_come_at_once(ask.broker_id)

        def decide(image: MetadataImage) -> Decision[BrokerEpoch | Refusal]:
            wanted["in_session"] = sessions.has(ask.broker_id, self._clock.monotonic())  # it may have been heard since
            return register_broker(image, **wanted, unfenced=at_once(image))

        if (refusal := refused_registration(self._metadata.image, **wanted)) is not None:
            return await self._confirmed(refusal)  # nothing is changed for it
        peer = Peer(ask.broker_id, ask.directory_id)
        if (problem := await self.voters.admit(peer)) is not None:
            return problem
        if not at_once(self._metadata.image):
            await self._settling.make_way(ask)
        epoch = await self._metadata.submit(decide)
        if not isinstance(epoch, Refusal):
            sessions.heard(ask.broker_id, epoch, self._clock.monotonic())
        return epoch

    async def _on_heartbeat(self, sessions: Sessions, ask: Heartbeat) -> bool | Refusal:
        known = self._metadata.image.brokers.get(ask.broker_id)
        if known is None or known.epoch != ask.broker_epoch:
            return await self._confirmed(stale(ask.broker_id, ask.broker_epoch))
        sessions.heard(ask.broker_id, ask.broker_epoch, self._clock.monotonic())
        (self._full.add if ask.is_full else self._full.discard)(ask.broker_id)
        self._note_states(ask)
        if ask.level > known.level:
            raised = partial(raise_level, broker_id=known.id, broker_epoch=known.epoch, level=ask.level)
            await self._metadata.submit(raised)
        if ask.stopping and not known.fenced:
            refusal = await self._settling.fence(known)
            log.info("broker stops", broker_id=ask.broker_id)
            return False if refusal is None else refusal
        if ask.ready and not ask.stopping and known.fenced:
            refusal = await self._settling.unfence(known)
            if refusal is not None:
                return refusal
            log.info("broker unfenced", broker_id=ask.broker_id)
            return True
        return await self._standing(ask)

    def _note_states(self, ask: Heartbeat) -> None:
        """Note the broker's problems, and the difference of its clock, as far as that can be seen from here."""
        broker, known = ask.broker_id, self._heard.get(ask.broker_id, ())
        states = [state for state in ask.states if state.kind != "clock"]
        differs_ms = ask.clock_ms - self._clock.now_ms() if ask.clock_ms else 0
        if abs(differs_ms) > CLOCK_DIFFERENCE_MS_MAX:
            text = (
                f"its clock and that of the controller, broker {self._node}, are {abs(differs_ms) / 1000:.0f} s apart"
            )
            todo = "set the clocks by NTP: retention, and records' times, go by them"
            states.append(State(kind="clock", text=text, todo=todo))
            if not any(state.kind == "clock" for state in known):
                log.warning("the clocks of two brokers differ", broker_id=broker, what=text, todo=todo)
        if states:
            self._heard[broker] = states
        else:
            self._heard.pop(broker, None)

    @property
    def heard(self) -> Mapping[BrokerId, Sequence[State]]:
        """The problems that registered brokers reported with their last heartbeats; empty where this node is not the
        controller."""
        known = self._metadata.image.brokers
        return {} if self._sessions is None else {key: said for key, said in self._heard.items() if key in known}

    def storeless(self) -> Mapping[BrokerId, str]:
        """Return the registered brokers that reported no durable store, though there is history, with what each
        said."""
        return {
            broker: state.text for broker, states in self.heard.items() for state in states if state.kind == NO_STORE
        }

    async def _standing(self, ask: Heartbeat) -> bool | Refusal:
        """Return whether the broker is unfenced, by all decisions so far. Its lease rests on this. Nobody else decided
        until its heartbeat was sent, and every later controller knows that it was heard."""
        await self._metadata.confirmed()
        known = self._metadata.image.brokers.get(ask.broker_id)
        if known is None or known.epoch != ask.broker_epoch:
            return stale(ask.broker_id, ask.broker_epoch)
        return not known.fenced

    async def _remove(self, ask: RemoveBroker) -> Refusal | None:
        from headrace.controller.removal import remove_broker

        decide = partial(remove_broker, broker_id=ask.broker_id)
        refusal = decide(self._metadata.image).result
        if refusal is not None:
            return await self._confirmed(refusal)
        refusal = await self._settling.release(ask.broker_id)
        if refusal is not None:
            return refusal
        if (problem := await self.voters.remove(ask.broker_id)) is not None:
            return problem
        return await self._metadata.submit(decide)


def register_refusal(theirs: ClusterId, ours: ClusterId, broker_id: BrokerId) -> Refusal:
    """Return the refusal of a directory of another cluster."""
    return Refusal(
        ErrorCode.INCONSISTENT_CLUSTER_ID,
        f"The data directory of broker {broker_id} belongs to cluster {theirs}, but this is {ours}: start it with "
        "another directory, or name addresses of its own cluster.",
    )
