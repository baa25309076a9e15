"""The members of the quorum and how far each has the log, as its leader sees it: for DescribeQuorum (KIP-595, KIP-836,
KIP-853)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace.base.limits import PEERS_MAX
from headrace.raft.core import Raft
from headrace.raft.leading import Leadership
from headrace.raft.membership import Peer
from headrace.raft.messages import AppendAnswer, HeartbeatAnswer, Message
from headrace.storage.commit_log import MemberStatus, QuorumStatus


@dataclass(slots=True)
class _Heard:
    """The last that was heard of a member."""

    at_ms: int
    log_end: int
    """The leader's log end at that time."""
    caught_up_ms: int = -1


class Watch:
    """Notes when members were heard from. `now_ms`: wall-clock time; None: it is not known, and times are -1."""

    def __init__(self, now_ms: Callable[[], int] | None) -> None:
        self._now_ms = now_ms
        self._heard: dict[Peer, _Heard] = {}

    def on_message(self, core: Raft, message: Message) -> None:
        """Note a message before the core gets it."""
        if not isinstance(message, AppendAnswer | HeartbeatAnswer) or self._now_ms is None:
            return
        role = core.role
        progress = role.progress_of(message.source) if isinstance(role, Leadership) else None
        if progress is None or message.term != core.term:
            return
        match = max(progress.match_index, message.match_index if isinstance(message, AppendAnswer) else 0)
        now, end = self._now_ms(), core.log.last_index
        heard = self._heard.get(message.source)
        if heard is None:
            if len(self._heard) >= PEERS_MAX:
                self._heard.clear()
            heard = self._heard[message.source] = _Heard(now, end)
        elif match >= heard.log_end:  # it has everything that there was when it last spoke
            heard.caught_up_ms = max(heard.caught_up_ms, heard.at_ms)
        if match >= end:
            heard.caught_up_ms = now
        heard.at_ms, heard.log_end = now, end

    def describe(self, core: Raft) -> QuorumStatus:
        membership = core.membership
        members = [self._member(core, peer, is_voter=True) for peer in sorted(membership.voters)]
        members += [self._member(core, peer, is_voter=False) for peer in sorted(membership.learners)]
        return QuorumStatus(
            leader=core.leader, epoch=core.term, high_watermark=core.log.commit_index, members=tuple(members)
        )

    def _member(self, core: Raft, peer: Peer, *, is_voter: bool) -> MemberStatus:
        role, now = core.role, -1 if self._now_ms is None else self._now_ms()
        if peer == core.me:
            own = core.log.durable_index
            return MemberStatus(
                peer=peer,
                is_voter=is_voter,
                log_end=own,
                last_fetch_ms=now,
                last_caught_up_ms=now if core.leads else -1,
            )
        progress = role.progress_of(peer) if isinstance(role, Leadership) else None
        heard = self._heard.get(peer) if progress is not None else None
        return MemberStatus(
            peer=peer,
            is_voter=is_voter,
            log_end=-1 if progress is None else progress.match_index,
            last_fetch_ms=-1 if heard is None else heard.at_ms,
            last_caught_up_ms=-1 if heard is None else heard.caught_up_ms,
        )
