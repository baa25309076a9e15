"""Commits and fetches of one client, in any version; it reports them to the ledger and the judges."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from headrace.sim.client import Lost
from headrace.sim.cluster.groups.history import NOTHING, Clear, Commit, Look, Register
from headrace.sim.cluster.groups.stage import STEADY, Stage, Way
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode, error_of
from headrace.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from headrace.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)

COMMIT_VERSIONS: Final = (7, 8, 9, 9, 10)
EPOCH_VERSIONS: Final = (9, 10)
"""Versions for members of consumer groups."""
FETCH_VERSIONS: Final = (5, 7, 8, 9, 10)
BY_ID: Final = 10
MANY_GROUPS: Final = 8
UNKNOWN: Final = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)
"""Errors after which the record may still be written."""
UNANSWERED_MAX: Final = 8
"""Deletions of one register with unknown outcome. With more, the judge would have too many orders to try."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity with which a client commits and fetches; by default, no member."""

    member_id: str = ""
    epoch: int = -1
    """Its generation, or member epoch."""
    instance_id: str | None = None


class Offsets:
    """The offsets of one client of one group."""

    def __init__(self, stage: Stage, name: str, group: str, way: Way, chance: random.Random) -> None:
        self._stage = stage
        self._name = name
        self._group = group
        self._way = way
        self._chance = chance

    def some_register(self, topic_id: UUID, count: int) -> Register:
        return Register(self._group, topic_id, self._chance.randrange(count))

    async def commit(
        self, who: Identity, registers: Sequence[Register], *, versions: Sequence[int] = COMMIT_VERSIONS
    ) -> dict[Register, ErrorCode]:
        """Commit a new offset of each; returns the error of each. Raises Lost where the outcome is unknown."""
        await self._found()
        stage, node = self._stage, self._way.node
        by_name = all(register.topic_id == stage.steady for register in registers)
        version = self._chance.choice(versions) if by_name else BY_ID
        registers = sorted(registers)  # in the order of the request, topic by topic
        commits = [Commit(register, stage.ledger.next_offset()) for register in registers]
        stage.ledger.asks_for(commits)
        called = stage.ledger.now()
        seen = [stage.judge.glimpse(key, node) for key in stage.partitions] if stage.keeps_records else []
        request = self._commit_request(who, commits, version)
        try:
            answer = await self._way.ask(ApiKey.OFFSET_COMMIT, version, request)
        except Lost:
            for commit in commits:
                stage.ledger.unknown(self._name, commit, called)
            raise
        answered = [error_of(each.error_code) for topic in answer.topics for each in topic.partitions]
        for commit, error in zip(commits, answered, strict=True):
            self._stage.world.tell(f"{self._name} commits {commit.offset} for {commit.register}: {error.name}")
            if error is ErrorCode.NONE:
                stage.ledger.done(self._name, commit, called)
                for glimpse in seen:
                    stage.judge.on_recorded(glimpse, _tag(commit))
            elif error in UNKNOWN:
                stage.ledger.unknown(self._name, commit, called)
        if any(error in UNKNOWN or error.retriable for error in answered):
            self._way.is_wrong()
        return dict(zip(registers, answered, strict=True))

    async def _found(self) -> None:
        try:
            await self._way.find()
        except Lost:
            self._way.is_wrong()
            await self._way.pause()
            raise

    def _commit_request(self, who: Identity, commits: Sequence[Commit], version: int) -> OffsetCommitRequest:
        by_topic: dict[UUID, list[OffsetCommitRequestPartition]] = {}
        for commit in commits:
            by_topic.setdefault(commit.register.topic_id, []).append(
                OffsetCommitRequestPartition(
                    partition_index=commit.register.partition,
                    committed_offset=commit.offset,
                    committed_metadata=_tag(commit).decode(),
                )
            )
        topics = (
            OffsetCommitRequestTopic(topic_id=topic_id, partitions=tuple(partitions))
            if version >= BY_ID
            else OffsetCommitRequestTopic(name=STEADY, partitions=tuple(partitions))
            for topic_id, partitions in by_topic.items()
        )
        return OffsetCommitRequest(
            group_id=self._group,
            generation_id_or_member_epoch=who.epoch,
            member_id=who.member_id,
            group_instance_id=who.instance_id,
            topics=tuple(topics),
        )

    async def look(
        self, registers: Sequence[Register], *, who: Identity | None = None, node: int | None = None
    ) -> bool:
        """Fetch from broker `node`, or from the coordinator. Returns whether it was answered."""
        if node is None:
            await self._found()
            node = self._way.node
        by_name = all(register.topic_id == self._stage.steady for register in registers)
        version = self._chance.choice(FETCH_VERSIONS) if by_name and who is None else BY_ID
        called = self._stage.ledger.now()
        request = self._fetch_request(registers, who, version)
        try:
            answer = await self._way.call(node, ApiKey.OFFSET_FETCH, version, request)
        except Lost:
            self._way.is_wrong()
            await self._way.pause()
            raise
        error, topics = _flat(answer, version)
        if error is not ErrorCode.NONE:
            if error in UNKNOWN or error.retriable:
                self._way.is_wrong()
                await self._way.pause()
            return False
        self._way.tells("offsets")
        found = {
            (topic.topic_id if version >= BY_ID else self._stage.steady, each.partition_index): each
            for topic in topics
            if version >= BY_ID or topic.name == STEADY
            for each in topic.partitions
        }
        for register in registers:
            answered = found.get((register.topic_id, register.partition))
            if answered is None or answered.error_code == ErrorCode.NONE:
                offset = NOTHING if answered is None else answered.committed_offset
                text = f"{self._name} is told by {node}: {register} is at {offset}"
                self._stage.world.tell(text)
                self._stage.ledger.done(self._name, Look(register), called, offset)
                if answered is not None and offset != NOTHING and (answered.metadata or "") != f"({offset})":
                    self._stage.world.problem("metadata", f"{text}, with {answered.metadata}")
        return True

    def _fetch_request(self, registers: Sequence[Register], who: Identity | None, version: int) -> OffsetFetchRequest:
        by_topic: dict[UUID, list[int]] = {}
        for register in registers:
            by_topic.setdefault(register.topic_id, []).append(register.partition)
        if version < MANY_GROUPS:
            [indexes] = by_topic.values()
            old = (OffsetFetchRequestTopic(STEADY, tuple(indexes)),)
            return OffsetFetchRequest(group_id=self._group, topics=None if self._chance.random() < 0.3 else old)
        topics = tuple(
            OffsetFetchRequestTopics(topic_id=topic_id, partition_indexes=tuple(indexes))
            if version >= BY_ID
            else OffsetFetchRequestTopics(name=STEADY, partition_indexes=tuple(indexes))
            for topic_id, indexes in by_topic.items()
        )
        group = OffsetFetchRequestGroup(
            group_id=self._group,
            member_id=None if who is None else who.member_id,
            member_epoch=-1 if who is None else who.epoch,
            topics=topics,
        )
        return OffsetFetchRequest(groups=(group,))

    # deletions

    def cleared(self, registers: Iterable[Register], called: int) -> None:
        for register in registers:
            self._stage.ledger.done(self._name, Clear(register), called)

    def may_be_cleared(self, registers: Iterable[Register], called: int) -> None:
        for register in registers:
            self._stage.ledger.unknown(self._name, Clear(register), called)

    def too_many_unknown(self) -> bool:
        """Whether as many deletions are in doubt as can be judged."""
        unknown: dict[Register, int] = {}
        for each in self._stage.ledger.operations:
            if isinstance(each.action, Clear) and each.returned is None and each.action.register.group == self._group:
                unknown[each.action.register] = unknown.get(each.action.register, 0) + 1
        return max(unknown.values(), default=0) >= UNANSWERED_MAX

    def is_no_group(self, called: int) -> None:
        """A client was told that the group does not exist, so nothing is committed for a topic that still exists."""
        for register in self._stage.ledger.registers(self._group):
            if register.topic_id == self._stage.steady:
                self._stage.ledger.done(self._name, Look(register), called, NOTHING)


def _tag(commit: Commit) -> bytes:
    return f"({commit.offset})".encode()


def _flat(answer: Any, version: int) -> tuple[ErrorCode, Sequence[Any]]:
    """The error and the topics, from either form of the answer."""
    if version < MANY_GROUPS:
        return error_of(answer.error_code), answer.topics
    [group] = answer.groups
    return error_of(group.error_code), group.topics
