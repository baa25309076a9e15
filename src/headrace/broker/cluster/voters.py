"""Changes the quorum, as the active controller: learners come in, become voters, and go.

Promises: one change at a time. A learner becomes a voter only once it has caught up, and while there are fewer voters
than there shall be. A vote that an operator has taken is not given back.

Source: KIP-853.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final

from headrace.base.errors import HeadraceError
from headrace.base.ids import BrokerId
from headrace.broker.cluster.driver import ChangeRefused, MetadataDriver
from headrace.controller.asks.brokers import ChangeVoter, QuorumReplica, QuorumView
from headrace.controller.decision import Refusal
from headrace.controller.voters import outlook, promotable, withhold_vote, wrongly_withheld
from headrace.logs import get_logger
from headrace.raft.membership import AddLearner, Demote, MembershipRefusal, Peer, Promote, Remove
from headrace.storage.commit_log import QuorumStatus
from headrace.wire.errors import ErrorCode

log = get_logger(__name__)

FINAL: Final = (MembershipRefusal.LAST_VOTER, MembershipRefusal.NO_LIVE_QUORUM)
"""Refusals that no second try changes: an operator has to act."""


class Voters:
    """One per broker whose metadata brokers vote on; at work only while its node is the active controller. All methods
    raise as `MetadataDriver.submit` does."""

    def __init__(self, *, metadata: MetadataDriver, wanted: int) -> None:
        """`wanted`: how many voters there shall be (`controller.voters`)."""
        self._metadata = metadata
        self._wanted = wanted
        self._joining = asyncio.Lock()
        """One change of the quorum at a time."""
        self._voting = asyncio.Lock()
        """One cause of such changes at a time: an operator's request is noted and done before learners are looked
        at."""

    def view(self) -> QuorumView:
        """Return the quorum as it is now, with its outlook."""
        view = _view(self._metadata.quorum())
        return replace(view, outlook=outlook(self._metadata.image, view, self._wanted))

    # brokers' membership

    async def admit(self, peer: Peer) -> Refusal | None:
        """Return once the quorum has this member. Where it is none, it becomes a learner."""
        is_member = any(member.peer == peer for member in self._metadata.quorum().members)
        return None if is_member else await self._change(AddLearner(peer))

    async def readmit(self) -> None:
        """Give every live broker the log, even one that came back in the middle of its own removal."""
        members = {member.peer for member in self._metadata.quorum().members}
        for broker in self._metadata.image.live_brokers():
            peer = Peer(broker.id, broker.directory_id)
            if peer not in members:
                await self._change(AddLearner(peer))
                return

    async def remove(self, broker_id: BrokerId) -> Refusal | None:
        """Remove a broker from the quorum."""
        for member in self._metadata.quorum().members:
            if member.peer.node == broker_id:
                problem = await self._change(Remove(member.peer))
                if problem is not None:
                    return problem
        return None

    # votes

    async def grow(self) -> None:
        """Promote a learner where there are fewer voters than there shall be. Does not wait for an operator's
        change."""
        if self._voting.locked():
            return
        async with self._voting:
            image, view = self._metadata.image, _view(self._metadata.quorum())
            for broker_id in wrongly_withheld(image, view):
                await self._metadata.submit(partial(withhold_vote, broker_id=broker_id, withheld=False))
            for learner in promotable(image, view, self._wanted):
                if await self._change(Promote(Peer(learner.broker_id, learner.directory_id))) is None:
                    return

    async def change_voter(self, ask: ChangeVoter) -> Refusal | None:
        """Change a vote, as an operator asked."""
        for member in self._metadata.quorum().members:
            peer = member.peer
            if peer.node == ask.broker_id and ask.directory_id in (None, peer.directory):
                if member.is_voter == ask.voter:
                    what = "is a voter" if ask.voter else "is no voter"
                    code = ErrorCode.DUPLICATE_VOTER if ask.voter else ErrorCode.VOTER_NOT_FOUND
                    return await self._confirmed(Refusal(code, f"Broker {ask.broker_id} {what} already."))
                return await self._change_vote(peer, voter=ask.voter)
        message = f"Broker {ask.broker_id} is no member of the quorum, or has another directory: see 'headrace quorum'."
        return await self._confirmed(Refusal(ErrorCode.VOTER_NOT_FOUND, message))

    async def _change_vote(self, peer: Peer, *, voter: bool) -> Refusal | None:
        """Change a vote. A demotion is noted first, or the broker would be promoted at once. Where the change is
        refused, or its controller dies with it, `grow` removes the note. Only the change itself is answered: a
        controller that is deposed right after it has done what was asked."""
        async with self._voting:
            if not voter:
                await self._metadata.submit(partial(withhold_vote, broker_id=peer.node, withheld=True))
            refusal = await self._change(Promote(peer) if voter else Demote(peer))
            if voter == (refusal is None):
                with suppress(HeadraceError):
                    await self._metadata.submit(partial(withhold_vote, broker_id=peer.node, withheld=False))
            return refusal

    # changes

    async def _change(self, change: AddLearner | Promote | Demote | Remove) -> Refusal | None:
        """Change the quorum; return why it was not changed, or None. Raises where the outcome is unknown."""
        async with self._joining:
            try:
                await self._metadata.change(change)
            except ChangeRefused as error:
                if error.refusal not in FINAL:
                    return not_done(str(error))
                return await self._confirmed(Refusal(ErrorCode.INVALID_REQUEST, str(error)))
        log.info("the quorum was changed", change=type(change).__name__, broker_id=change.peer.node)
        return None

    async def _confirmed(self, refusal: Refusal) -> Refusal:
        """Return the refusal, once it may be told. Raises NotController."""
        await self._metadata.confirmed()
        return refusal


class NoVoters:
    """In the place of `Voters` where no brokers vote, since their metadata is kept elsewhere."""

    def __init__(self, metadata: MetadataDriver) -> None:
        self._metadata = metadata

    def view(self) -> QuorumView:
        """Return the controller as the only voter, as tools expect, with an outlook that says why."""
        kept = f"its metadata is in {self._metadata.image.engine}, and any broker that lives may be the controller"
        return replace(_view(self._metadata.quorum()), outlook=f"the quorum is one in name: {kept}")

    async def admit(self, peer: Peer) -> None:
        """Any broker may come."""

    async def readmit(self) -> None:
        """Nobody needs it."""

    async def remove(self, broker_id: BrokerId) -> None:
        """Any broker may go."""

    async def grow(self) -> None:
        """Nobody becomes a voter."""

    async def change_voter(self, ask: ChangeVoter) -> Refusal:
        """Return the refusal."""
        await self._metadata.confirmed()
        message = f"No brokers vote here: the cluster's metadata is in {self._metadata.image.engine}."
        return Refusal(ErrorCode.UNSUPPORTED_VERSION, message)


def not_done(reason: str) -> Refusal:
    """Return the refusal where nothing was done and the request may be repeated, as where nobody is the controller."""
    return Refusal(ErrorCode.NOT_CONTROLLER, reason)


def _view(status: QuorumStatus) -> QuorumView:
    return QuorumView(
        leader=BrokerId(-1) if status.leader is None else status.leader.node,
        epoch=status.epoch,
        high_watermark=status.high_watermark,
        replicas=tuple(
            QuorumReplica(
                broker_id=member.peer.node,
                directory_id=member.peer.directory,
                voter=member.is_voter,
                log_end_offset=member.log_end,
                last_fetch_ms=member.last_fetch_ms,
                last_caught_up_ms=member.last_caught_up_ms,
            )
            for member in sorted(status.members, key=lambda member: member.peer)
        ),
    )
