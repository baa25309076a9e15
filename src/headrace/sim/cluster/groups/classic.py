"""A member of a classic group: it joins, assigns if it leads, commits, and is as unreliable as real members.

It crashes, stays silent for longer than its session and returns as if nothing had happened, leaves, and joins again.
"""

from __future__ import annotations

import json
from typing import Final
from uuid import UUID

from headrace.sim.cluster.groups.history import Register
from headrace.sim.cluster.groups.judge import ClassicJudge, Share
from headrace.sim.cluster.groups.member import Member
from headrace.sim.cluster.groups.offsets import Identity, Offsets
from headrace.sim.cluster.groups.stage import ELSEWHERE, FLEETING, STEADY, Stage
from headrace.wire.apis import ApiKey
from headrace.wire.data import CONSUMER_SUBSCRIPTION
from headrace.wire.errors import ErrorCode, error_of
from headrace.wire.messages.consumer_protocol_subscription import ConsumerProtocolSubscription
from headrace.wire.messages.heartbeat import HeartbeatRequest
from headrace.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from headrace.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from headrace.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

JOIN_VERSIONS: Final = (5, 7, 9)
JOIN_SECONDS: Final = 4.0
PROTOCOL: Final = "sim"
SHARE_BEGINS: Final = b"{"
"""Assignments of a leader here are JSON."""


class ClassicMember(Member):
    """The member, as the module says: one slot, in which one life follows another."""

    def __init__(self, stage: Stage, judge: ClassicJudge, name: str, group: str, *, is_static: bool) -> None:
        super().__init__(stage, name, group, is_static=is_static)
        self._judge = judge
        self._version = self._chance.choice(JOIN_VERSIONS)
        self._session_ms = self._chance.choice((800, 1_500, 3_000))
        self._rebalance_ms = self._chance.choice((800, 2_000))
        self.session_s = self._session_ms / 1000
        self.generation = -1
        self.sharing = -1
        self._sharings: dict[int, tuple[int, tuple[SyncGroupRequestAssignment, ...]]] = {}

    def forget(self) -> None:
        self.member_id = ""
        self.generation = self.sharing = -1
        self.owned = frozenset()

    @property
    def identity(self) -> Identity:
        return Identity(self.member_id, self.generation, self.instance_id)

    async def join(self) -> bool:
        joined = await self._join()
        return joined is not None and await self._sync(joined)

    async def _join(self) -> JoinGroupResponse | None:
        subscription = CONSUMER_SUBSCRIPTION.encode(1, ConsumerProtocolSubscription(topics=(STEADY, FLEETING)))
        request = JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=self._session_ms,
            rebalance_timeout_ms=self._rebalance_ms,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type="consumer",
            protocols=(JoinGroupRequestProtocol(PROTOCOL, subscription),),
        )
        answer: JoinGroupResponse = await self._way.ask(ApiKey.JOIN_GROUP, self._version, request, seconds=JOIN_SECONDS)
        error = error_of(answer.error_code)
        if error is ErrorCode.NONE:
            self.member_id, self.generation = answer.member_id, answer.generation_id
            return answer
        if error is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
        else:
            await self._refused(error)
        return None

    async def _sync(self, joined: JoinGroupResponse) -> bool:
        leads = joined.leader == self.member_id and not joined.skip_assignment
        request = SyncGroupRequest(
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type="consumer",
            protocol_name=PROTOCOL,
            assignments=self._share_out(joined) if leads else (),
        )
        answer = await self._way.ask(ApiKey.SYNC_GROUP, 5, request, seconds=JOIN_SECONDS)
        error = error_of(answer.error_code)
        if error is not ErrorCode.NONE:
            await self._refused(error)
            return False
        if not bytes(answer.assignment).startswith(SHARE_BEGINS):
            # its leader did not know it, or this is a consumer group, which assigns by itself: not judged here
            self.owned, self.sharing = frozenset(), -1
            return True
        answered = json.loads(answer.assignment)
        self.owned: Share = frozenset((UUID(topic), index) for topic, index in answered["reads"])
        self.sharing = answered["sharing"]
        self._world.tell(
            f"{self.name} ({self.member_id[-12:]}) reads {len(self.owned)} in generation {self.generation}, "
            f"sharing {self.sharing}"
        )
        self._judge.on_share(self.generation, self.instance_id or self.member_id, self.sharing, self.owned)
        return True

    def _share_out(self, joined: JoinGroupResponse) -> tuple[SyncGroupRequestAssignment, ...]:
        number = self._stage.next_sharing()
        shares: dict[str, list[tuple[str, int]]] = {member.member_id: [] for member in joined.members}
        partitions = [(self._stage.steady, index) for index in range(self._stage.steady_partitions)]
        self._chance.shuffle(partitions)
        members = list(shares)
        for at, (topic, index) in enumerate(partitions):
            shares[members[at % len(members)]].append((str(topic), index))
        return tuple(
            SyncGroupRequestAssignment(member, json.dumps({"sharing": number, "reads": reads}).encode())
            for member, reads in shares.items()
        )

    async def beat(self) -> bool:
        request = HeartbeatRequest(
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
        )
        error = error_of((await self._way.ask(ApiKey.HEARTBEAT, 4, request)).error_code)
        if error is ErrorCode.NONE or error in ELSEWHERE:
            if error is not ErrorCode.NONE:
                self._way.is_wrong()
                await self._way.pause()
            return True
        await self._refused(error)
        return False

    def _extra(self) -> list[Register]:
        """Nobody is assigned the fleeting topic, so any member commits for it."""
        stage = self._stage
        if stage.fleeting is None or self._chance.random() < 0.5:
            return []
        return [self._offsets.some_register(stage.fleeting, stage.fleeting_partitions)]

    async def commit(self, who: Identity, registers: list[Register], offsets: Offsets) -> None:
        newest = self._judge.newest
        answered = await offsets.commit(who, registers)
        for register, error in answered.items():
            if error is ErrorCode.NONE:
                self._judge.on_committed(who.epoch, newest, self.name)
                self._has_committed(register)

    async def leave(self) -> None:
        leaver = MemberIdentity(self.member_id, self.instance_id)
        request = LeaveGroupRequest(group_id=self.group, members=(leaver,))
        await self._way.ask(ApiKey.LEAVE_GROUP, 4, request)

    async def _refused(self, error: ErrorCode) -> None:
        if error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            self.member_id = ""
        elif error in ELSEWHERE:
            self._way.is_wrong()
        elif error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL and self.may_be_refused:
            pass
        elif error not in (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION):
            self._world.problem("refused", f"{self.name} was told {error.name}")
        await self._way.pause()
