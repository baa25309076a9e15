"""A member of a consumer group (KIP-848): it has one request for everything, and gives partitions up before it takes
more.

Like real clients, it repeats all fields after a lost answer, and takes nothing from an old answer.
"""

from __future__ import annotations

import asyncio
from typing import Final
from uuid import UUID

from headrace.sim.cluster.groups.history import Register
from headrace.sim.cluster.groups.judge import ConsumerJudge, Share
from headrace.sim.cluster.groups.member import Member
from headrace.sim.cluster.groups.offsets import EPOCH_VERSIONS, Identity, Offsets
from headrace.sim.cluster.groups.stage import ELSEWHERE, FLEETING, STEADY, Stage
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode, error_of
from headrace.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, RequestTopicPartitions

JOINS: Final = 0
LEAVES: Final = -1
LEAVES_FOR_NOW: Final = -2
REVOKE_SECONDS_MAX: Final = 0.3
FENCED: Final = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.GROUP_ID_NOT_FOUND)
"""The last one: the group was deleted, or changed its type, when it had no members."""


class ConsumerMember(Member):
    """The member, as the module says: one slot, in which one life follows another."""

    def __init__(
        self, stage: Stage, judge: ConsumerJudge, name: str, group: str, *, is_static: bool, session_s: float
    ) -> None:
        super().__init__(stage, name, group, is_static=is_static)
        self._judge = judge
        self._version = self._chance.choice((0, 1, 1))
        self._assignor = self._chance.choice((None, "uniform", "range"))
        self.session_s = session_s
        self.rebalance_s = 2 * session_s
        self.epoch = JOINS
        self._target: Share = frozenset()
        self._said: Share | None = None
        """The partitions that it last reported to own, and that were answered; None: the next request repeats all
        fields."""

    def forget(self) -> None:
        self.member_id = f"{self.name}.{self.lives}" if self._version >= 1 else ""
        self._start_anew()

    def _start_anew(self) -> None:
        self.epoch = JOINS
        self.owned = self._target = frozenset()
        self._said = None

    @property
    def identity(self) -> Identity:
        return Identity(self.member_id, self.epoch, self.instance_id)

    async def join(self) -> bool:
        return await self._beat()

    async def beat(self) -> bool:
        if self.owned != self._target:
            await asyncio.sleep(self._chance.random() * REVOKE_SECONDS_MAX)
            self.owned = self._target
        return await self._beat()

    async def _beat(self) -> bool:
        owned = None if self._said == self.owned else self.owned
        whole = self._said is None
        sent_at = self._world.loop.time()
        if owned is not None:
            self._judge.on_sent(self.member_id, owned)
        self._said = None
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group,
            member_id=self.member_id,
            member_epoch=self.epoch,
            instance_id=self.instance_id,
            rebalance_timeout_ms=int(self.rebalance_s * 1000) if whole else -1,
            subscribed_topic_names=(STEADY, FLEETING) if whole else None,
            server_assignor=self._assignor if whole else None,
            topic_partitions=None if owned is None else _by_topic(owned),
        )
        answer = await self._way.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, self._version, request)
        error = error_of(answer.error_code)
        if error is not ErrorCode.NONE:
            await self._refused(error)
            return False
        self._way.tells("an assignment")
        self.member_id, self.epoch = answer.member_id or self.member_id, answer.member_epoch
        self._said = self.owned
        if answer.assignment is not None:
            self._take_up(
                frozenset(
                    (each.topic_id, index) for each in answer.assignment.topic_partitions for index in each.partitions
                )
            )
        self._judge.on_told(self.member_id, sent_at, self._target)
        return True

    def _take_up(self, target: Share) -> None:
        if target != self._target:
            text = f"{self.name} ({self.member_id[-12:]}) is to read {_answered(target)} at epoch {self.epoch}"
            self._world.tell(f"{text}, and has {_answered(self.owned)}")
        self._target = target
        if self.owned <= target:
            self.owned = target  # nothing must be given up first

    async def commit(self, who: Identity, registers: list[Register], offsets: Offsets) -> None:
        member = who.member_id
        readers = {each: self._judge.others(member, (each.topic_id, each.partition)) for each in registers}
        answered = await offsets.commit(who, registers, versions=EPOCH_VERSIONS)
        for register, error in answered.items():
            if error is ErrorCode.NONE:
                self._judge.on_committed(member, (register.topic_id, register.partition), readers[register])
                self._has_committed(register)

    async def leave(self) -> None:
        self._judge.on_sent(self.member_id, frozenset())
        for_now = self.instance_id is not None and self._chance.random() < 0.7
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.group,
            member_id=self.member_id,
            member_epoch=LEAVES_FOR_NOW if for_now else LEAVES,
            instance_id=self.instance_id,
        )
        if self.member_id:
            await self._way.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, self._version, request)

    async def _refused(self, error: ErrorCode) -> None:
        if error in FENCED:
            self._judge.on_sent(self.member_id, frozenset())
            self._start_anew()
        elif error in ELSEWHERE:
            self._way.is_wrong()
        elif error is not ErrorCode.UNRELEASED_INSTANCE_ID:
            self._world.problem("refused", f"{self.name} was told {error.name}")
        await self._way.pause()


def _by_topic(owned: Share) -> tuple[RequestTopicPartitions, ...]:
    found: dict[UUID, list[int]] = {}
    for topic, index in sorted(owned):
        found.setdefault(topic, []).append(index)
    return tuple(RequestTopicPartitions(topic, tuple(indexes)) for topic, indexes in found.items())


def _answered(share: Share) -> str:
    return ", ".join(f"{str(topic)[:4]}-{index}" for topic, index in sorted(share)) or "nothing"
