"""One step in progress: the group so far and the effects so far.

Promises: the group that went in never changes. The effects keep their order, with at most one `Wake`, last.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from headrace.base.values import replaced
from headrace.coordinators.groups.configs import GroupConfig
from headrace.coordinators.groups.consumer.model import Topics
from headrace.coordinators.groups.events import AnyReply, Append, Effect, GroupRecord, Rebalancing, Reply, Wake
from headrace.coordinators.groups.model import Group, Member, Moment, TransactionalProducer, Write


@dataclass(slots=True)
class Turn:
    group: Group
    now: Moment
    config: GroupConfig
    topics: Topics
    """The cluster's present topics."""
    effects: list[Effect] = field(default_factory=list)
    wake_ms: int | None = None
    _made: dict[str, Member] | None = None
    """The group's members, if this turn made the dict: nobody else has it yet, so it changes in place."""
    _absent: str = ""
    """The member that had not joined when that was last asked; most often it still has not."""

    def finish(self) -> tuple[Group, list[Effect]]:
        if self.wake_ms is not None:
            self.effects.append(Wake(self.wake_ms))
        return self.group, self.effects

    def update(self, **changes: Any) -> None:
        self.group = replaced(self.group, **changes)

    def reply(self, waiter: int | None, reply: AnyReply) -> None:
        if waiter is not None:
            self.effects.append(Reply(waiter, reply))

    def tell(self, reason: str) -> None:
        self.effects.append(Rebalancing(reason))

    def wake(self, at_ms: int | None) -> None:
        if at_ms is not None and (self.wake_ms is None or at_ms < self.wake_ms):
            self.wake_ms = at_ms

    def append(
        self,
        records: tuple[GroupRecord, ...],
        write: Write,
        *,
        producer: TransactionalProducer | None = None,
        **changes: Any,
    ) -> None:
        """Append records; `write` describes the follow-up once they are durable. `producer`: of the transaction that
        they are a part of. `changes` are other changes of the group, made in the same copy of it."""
        number = self.group.next_write
        self.update(next_write=number + 1, writes={**self.group.writes, number: write}, **changes)
        self.effects.append(Append(number, records, producer))

    def writes_but(self, number: int) -> dict[int, Write]:
        """The writes under way without this one, which is settled."""
        return {other: write for other, write in self.group.writes.items() if other != number}

    def put(self, member: Member) -> None:
        """Add or change a member, and ask for a tick at its deadline."""
        self.put_all((member,))

    def put_all(self, members: Iterable[Member]) -> None:
        """Like `put`, for several. All puts of a turn make one copy of the group, unless members are dropped
        between."""
        made = self._made
        if made is None or made is not self.group.members:
            made = self._made = dict(self.group.members)
            self.update(members=made)
        for member in members:
            made[member.id] = member
            self.wake(member.deadline_ms)

    @property
    def all_joined(self) -> bool:
        """Whether nobody is awaited: neither a member nor an id that was handed out."""
        members = self.group.members
        absent = members.get(self._absent)
        if absent is not None and absent.join_waiter is None:
            return False
        self._absent = next((member.id for member in members.values() if member.join_waiter is None), "")
        return not self._absent and not self.group.pending

    def rename(self, old_id: str, member: Member) -> None:
        """Give a member another id and new contents. It keeps its place in the order, and stays the leader if it
        was."""
        members = [member if other.id == old_id else other for other in self.group.members.values()]
        leader = member.id if self.group.leader == old_id else self.group.leader
        self.update(members={one.id: one for one in members}, leader=leader)
        self.wake(member.deadline_ms)

    def drop(self, member_id: str) -> None:
        """Remove a member. If it was the leader, the longest-standing member becomes the leader."""
        members = {id_: member for id_, member in self.group.members.items() if id_ != member_id}
        leader = self.group.leader if self.group.leader in members else next(iter(members), None)
        self.update(members=members, leader=leader)

    def drop_pending(self, member_id: str) -> None:
        self.update(pending={id_: due for id_, due in self.group.pending.items() if id_ != member_id})

    def session(self, member: Member) -> int:
        """The end of a session that is renewed now."""
        return self.now.monotonic_ms + member.session_timeout_ms
