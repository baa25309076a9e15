"""Members of a group that cost next to nothing: one connection each, all of them driven by one thread.

They do what Kafka's Java client does, in both protocols. A classic member joins (KIP-394), syncs, sends heartbeats and
joins again when it is told to, and the leader assigns. A KIP-848 member adopts what a heartbeat's answer gives it,
gives up what that takes, and reports this at once. They own partitions, and read nothing.
"""

from __future__ import annotations

import random
import selectors
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final, NamedTuple
from uuid import UUID, uuid4

from benchmarks.load.raw.raw_links import Link
from headrace.wire.apis import Api, ApiKey, api
from headrace.wire.errors import ErrorCode, error_of
from headrace.wire.headers import decode_response_header, encode_request_frame
from headrace.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    RequestTopicPartitions,
)
from headrace.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from headrace.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from headrace.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from headrace.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse

TIMEOUT_S: Final = 60.0
SESSION_TIMEOUT_MS: Final = 45_000
REBALANCE_TIMEOUT_MS: Final = 300_000
JOINING_EPOCH: Final = 0
LEAVING_EPOCH: Final = -1
VERSIONS: Final = {
    ApiKey.JOIN_GROUP: 9,
    ApiKey.SYNC_GROUP: 5,
    ApiKey.HEARTBEAT: 4,
    ApiKey.LEAVE_GROUP: 5,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: 1,
}
_SUBSCRIPTION: Final = Struct(">hih")
"""Version 0, one topic, the length of its name; then the name, and no user data (-1)."""
_ASSIGNMENT_HEAD: Final = Struct(">hih")
_PARTITION: Final = Struct(">i")


class Subscribed(NamedTuple):
    """The topics that the group reads."""

    group: str
    topic: str
    topic_id: UUID
    partitions: int
    session_ms: int = SESSION_TIMEOUT_MS
    """Of a classic member."""


class Member(ABC):
    """One of them. Its request in flight is one at most."""

    def __init__(self, bootstrap: str, subscribed: Subscribed, heartbeat_s: float) -> None:
        self.link = Link(bootstrap)
        self.asked_at = 0.0
        """When its last request left."""
        self.id = ""
        self.subscribed = subscribed
        self.heartbeat_s = heartbeat_s
        self.owned: frozenset[int] = frozenset()
        self.epoch = 0
        """Of its assignment; the classic protocol's generation."""
        self.due = float("inf")
        """When it sends its next heartbeat."""
        self.has_left = False
        self._asked = ApiKey.METADATA
        self._in_flight = False

    @property
    @abstractmethod
    def is_settled(self) -> bool:
        """It has its share of `epoch`, and nothing is under way."""
        ...

    @property
    def is_idle(self) -> bool:
        """No request of it is in flight."""
        return not self._in_flight

    @abstractmethod
    def join(self) -> None: ...
    @abstractmethod
    def leave(self) -> None: ...
    @abstractmethod
    def heartbeat(self) -> None: ...
    @abstractmethod
    def on_response(self, response: Any) -> None: ...

    def ask(self, key: ApiKey, request: Any) -> None:
        self._asked, self._in_flight, self.due, self.asked_at = key, True, float("inf"), time.perf_counter()
        frame = encode_request_frame(_codec(key), VERSIONS[key], 1, "raw", request)
        self.link.send(b"".join(bytes(part) for part in frame))

    def on_frame(self, frame: memoryview) -> None:
        codec = _codec(self._asked)
        self._in_flight = False
        _, at = decode_response_header(codec.key, VERSIONS[self._asked], frame)
        self.on_response(codec.decode_response(VERSIONS[self._asked], frame[at:]))

    def heartbeat_later(self, since: float) -> None:
        """The next is sent an interval after that, as Java's client counts from when it sent the last."""
        self.due = since + self.heartbeat_s


class ClassicMember(Member):
    """JoinGroup, SyncGroup, Heartbeat."""

    def __init__(self, bootstrap: str, subscribed: Subscribed, heartbeat_s: float) -> None:
        super().__init__(bootstrap, subscribed, heartbeat_s)
        self._settled = False

    @property
    def is_settled(self) -> bool:
        return self._settled

    def join(self) -> None:
        self._settled = False
        topic = self.subscribed.topic.encode()
        metadata = _SUBSCRIPTION.pack(0, 1, len(topic)) + topic + _PARTITION.pack(-1)
        request = JoinGroupRequest(
            group_id=self.subscribed.group,
            session_timeout_ms=self.subscribed.session_ms,
            rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
            member_id=self.id,
            protocol_type="consumer",
            protocols=(JoinGroupRequestProtocol("range", metadata),),
        )
        self.ask(ApiKey.JOIN_GROUP, request)

    def leave(self) -> None:
        leaving = (MemberIdentity(member_id=self.id),)
        self.ask(ApiKey.LEAVE_GROUP, LeaveGroupRequest(group_id=self.subscribed.group, members=leaving))

    def heartbeat(self) -> None:
        self.ask(ApiKey.HEARTBEAT, HeartbeatRequest(self.subscribed.group, self.epoch, self.id))

    def on_response(self, response: Any) -> None:
        error = error_of(response.error_code)
        if error in (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.MEMBER_ID_REQUIRED):
            self.id = getattr(response, "member_id", self.id) or self.id
            self.join()
            return
        assert error is ErrorCode.NONE, f"{self._asked.name} was answered with {error.name}"
        match response:
            case JoinGroupResponse():
                self._sync(response)
            case SyncGroupResponse():
                self.owned, self._settled = _unpacked(response.assignment), True
                self.heartbeat_later(time.perf_counter())
            case HeartbeatResponse():
                self.heartbeat_later(self.asked_at)
            case _:
                self.has_left = True

    def _sync(self, joined: JoinGroupResponse) -> None:
        self.id, self.epoch = joined.member_id, joined.generation_id
        ids = [member.member_id for member in joined.members]
        shares = tuple(
            SyncGroupRequestAssignment(id_, self._packed(range(at, self.subscribed.partitions, len(ids))))
            for at, id_ in enumerate(ids)
        )
        request = SyncGroupRequest(
            group_id=self.subscribed.group,
            generation_id=self.epoch,
            member_id=self.id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=shares,
        )
        self.ask(ApiKey.SYNC_GROUP, request)

    def _packed(self, share: Sequence[int]) -> bytes:
        topic = self.subscribed.topic.encode()
        parts = b"".join(map(_PARTITION.pack, share))
        head = _ASSIGNMENT_HEAD.pack(0, 1, len(topic)) + topic
        return head + _PARTITION.pack(len(share)) + parts + _PARTITION.pack(-1)


def _unpacked(assignment: bytes | memoryview) -> frozenset[int]:
    _, _, name = _ASSIGNMENT_HEAD.unpack_from(assignment)
    at = _ASSIGNMENT_HEAD.size + name
    (count,) = _PARTITION.unpack_from(assignment, at)
    return frozenset(_PARTITION.unpack_from(assignment, at + 4 + 4 * number)[0] for number in range(count))


class ConsumerMember(Member):
    """ConsumerGroupHeartbeat."""

    def __init__(self, bootstrap: str, subscribed: Subscribed, heartbeat_s: float) -> None:
        super().__init__(bootstrap, subscribed, heartbeat_s)
        self.id = str(uuid4())
        self._said: frozenset[int] | None = None
        """The owned partitions that it last reported to the coordinator and that were answered."""

    @property
    def is_settled(self) -> bool:
        return self.epoch > JOINING_EPOCH and self._said == self.owned

    def join(self) -> None:
        self.ask(
            ApiKey.CONSUMER_GROUP_HEARTBEAT,
            ConsumerGroupHeartbeatRequest(
                group_id=self.subscribed.group,
                member_id=self.id,
                member_epoch=JOINING_EPOCH,
                rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
                subscribed_topic_names=(self.subscribed.topic,),
                topic_partitions=(),
            ),
        )

    def leave(self) -> None:
        request = ConsumerGroupHeartbeatRequest(self.subscribed.group, self.id, LEAVING_EPOCH)
        self.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, request)

    def heartbeat(self) -> None:
        tells = self._said != self.owned
        self._said = self.owned
        owned = (RequestTopicPartitions(self.subscribed.topic_id, tuple(sorted(self.owned))),)
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.subscribed.group,
            member_id=self.id,
            member_epoch=self.epoch,
            topic_partitions=(owned if self.owned else ()) if tells else None,
        )
        self.ask(ApiKey.CONSUMER_GROUP_HEARTBEAT, request)

    def on_response(self, response: ConsumerGroupHeartbeatResponse) -> None:
        error = error_of(response.error_code)
        assert error is ErrorCode.NONE, f"a heartbeat was answered with {error.name}: {response.error_message}"
        self.epoch = response.member_epoch
        if self.epoch == LEAVING_EPOCH:
            self.has_left = True
            return
        if response.assignment is not None:
            self.owned = frozenset(
                number for topic in response.assignment.topic_partitions for number in topic.partitions
            )
        if self.owned != (self._said or frozenset()):
            self.heartbeat()
        else:
            self._said = self.owned
            self.heartbeat_later(self.asked_at)


@dataclass(slots=True)
class Herd:
    """All of them, in this thread."""

    members: list[Member]
    partitions: int

    def until(self, holds: Callable[[], bool], by: float = float("inf")) -> float:
        """Serve them until this is so, which is asked after each answer, and at `by`; when that was. Raises
        TimeoutError."""
        deadline = time.perf_counter() + TIMEOUT_S
        with selectors.DefaultSelector() as selector:
            for member in self.members:
                selector.register(member.link, selectors.EVENT_READ, member)
            while not holds():
                now = time.perf_counter()
                if now > deadline:
                    raise TimeoutError(f"the group was not settled within {TIMEOUT_S:.0f} s")
                for member in self.members:
                    if member.due <= now:
                        member.heartbeat()
                soonest = min(by, *(member.due for member in self.members))
                for key, _ in selector.select(max(0.0, min(soonest, now + 1) - now)):
                    frame = key.data.link.receive()
                    if frame is not None:
                        key.data.on_frame(frame)
        return time.perf_counter()

    def is_shared(self, after: int = 0) -> bool:
        """All have settled in one epoch later than that, and own everything between them."""
        first = self.members[0]
        return (
            first.epoch > after
            and all(member.is_settled and member.epoch == first.epoch for member in self.members)
            and len(frozenset[int]().union(*(member.owned for member in self.members))) == self.partitions
            and sum(len(member.owned) for member in self.members) == self.partitions
        )

    def is_idle(self) -> bool:
        """No request of any of them is in flight."""
        return all(member.is_idle for member in self.members)

    def spread(self) -> None:
        """Their next heartbeats over an interval, as those of members that did not all begin at once."""
        now = time.perf_counter()
        for member in self.members:
            if member.is_idle:
                member.due = now + member.heartbeat_s * random.random()

    def until_by_chance(self, intervals: int) -> None:
        """Serve them for so many of their intervals and up to one more."""
        end = time.perf_counter() + self.members[0].heartbeat_s * (intervals + random.random())
        self.until(lambda: time.perf_counter() >= end, by=end)

    def fall_silent(self) -> None:
        """They send no more heartbeats; all that they have sent is answered."""
        for member in self.members:
            member.heartbeat_s = member.due = float("inf")
        self.until(self.is_idle)

    def leave(self) -> None:
        """All of them, and close their connections."""
        self.fall_silent()
        for member in self.members:
            member.leave()
        self.until(lambda: all(member.has_left for member in self.members))
        for member in self.members:
            member.link.close()


def _codec(key: ApiKey) -> Api:
    known = api(int(key))
    assert known is not None
    return known
