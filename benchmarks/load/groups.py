"""Cases of groups: `make bench-groups`.

They measure how soon a hundred members are a stable group, and how soon the others own everything when one leaves. A
third case is how many commits a coordinator takes in a second.

The members are raw clients (`benchmarks.load.group_members`), equal for both brokers: a hundred Java consumers would be
most of what two cores have to do. All timings that the protocols leave to settings are equal on both.
"""

from __future__ import annotations

import statistics
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from benchmarks.load.cases import ANSWER_TIMEOUT_S, About, Better, Entrant, Figures, Target, portion, topic_on
from benchmarks.load.clusters import HEADRACE_CLUSTER, KAFKA_CLUSTER
from benchmarks.load.group_members import (
    SESSION_TIMEOUT_MS,
    VERSIONS,
    ClassicMember,
    ConsumerMember,
    Herd,
    Member,
    Subscribed,
)
from benchmarks.load.raw.raw_links import LEADER_POLL_S, Link, drive
from benchmarks.load.rivals import Durability, Headrace, Kafka, Rival
from headrace.wire.apis import Api, ApiKey, api
from headrace.wire.errors import ErrorCode, error_of
from headrace.wire.headers import decode_response_header, encode_request_frame
from headrace.wire.messages.find_coordinator import FindCoordinatorRequest
from headrace.wire.messages.heartbeat import HeartbeatRequest
from headrace.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from headrace.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)

MEMBERS: Final = 100
MEMBERS_MIN: Final = 10
"""Of a scaled case."""
PARTITIONS: Final = 200
HEARTBEAT_MS: Final = 100
"""Of every member. A member learns of a rebalance by its next heartbeat, so that this is part of each figure."""
COORDINATOR_VERSION: Final = 2
METADATA_VERSION: Final = 12
COMMIT_VERSION: Final = 8
OFFSETS_TOPIC: Final = "__consumer_offsets"

HEADRACE_AT_ONCE: Final = "headrace-no-delay"
KAFKA_AT_ONCE: Final = "kafka-no-delay"
HEADRACE_DELAYED: Final = "headrace-with-delay"
KAFKA_DELAYED: Final = "kafka-with-delay"
DELAY_MS: Final = 3_000
"""group.initial.rebalance.delay.ms as both have it by default; the others have 0."""


LEAVES: Final = 10
"""In a run, one after the other; the rate is the median."""
STEADY_INTERVALS: Final = 3
"""Of heartbeats, and a part of one by chance, before a member dies: nobody does when it suits."""
SESSION_MS: Final = 6_000
"""After which a member that is silent is out: the least that Kafka allows a classic member."""


def _rivals(delay_ms: int) -> tuple[dict[str, str], dict[str, str]]:
    """Settings of both, for this initial delay."""
    both = {
        "group.initial.rebalance.delay.ms": str(delay_ms),
        "group.consumer.heartbeat.interval.ms": str(HEARTBEAT_MS),
        "group.consumer.session.timeout.ms": str(SESSION_MS),
    }
    least = {
        "group.consumer.min.heartbeat.interval.ms": str(HEARTBEAT_MS),
        "group.consumer.min.session.timeout.ms": str(SESSION_MS),
    }
    return both, {**both, **least}


_AT_ONCE, _DELAYED = _rivals(0), _rivals(DELAY_MS)
GROUP_RIVALS: Final[Mapping[str, Callable[[Path], Rival]]] = {
    HEADRACE_AT_ONCE: partial(Headrace, name=HEADRACE_AT_ONCE, configs=_AT_ONCE[0]),
    KAFKA_AT_ONCE: partial(Kafka, name=KAFKA_AT_ONCE, configs=_AT_ONCE[1]),
    HEADRACE_DELAYED: partial(Headrace, name=HEADRACE_DELAYED, configs=_DELAYED[0]),
    KAFKA_DELAYED: partial(Kafka, name=KAFKA_DELAYED, configs=_DELAYED[1]),
}
"""Both with default settings, but for these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """From the first request of so many members, all at once, to a group in which each has its share; in seconds."""

    about: About
    member: type[Member]
    members: int = MEMBERS

    def run(self, entrant: Entrant) -> Figures:
        with herd(entrant, self.about.name, self.member, self.members) as (members, begun):
            seconds = members.until(members.is_shared) - begun
        return Figures(rate=seconds, others={"epochs": members.members[0].epoch})

    def scaled(self, factor: float) -> Join:
        return replace(self, members=max(MEMBERS_MIN, portion(self.members, factor)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebalance:
    """From the request of a member that leaves to a group in which the others own everything; in milliseconds."""

    about: About
    member: type[Member]
    members: int = MEMBERS

    def run(self, entrant: Entrant) -> Figures:
        millis = []
        with herd(entrant, self.about.name, self.member, self.members + LEAVES) as (members, _):
            members.until(members.is_shared)
            for _ in range(LEAVES):
                members.until(members.is_idle)
                leaver, epoch, begun = members.members.pop(), members.members[0].epoch, time.perf_counter()
                leaver.leave()
                millis.append(1000 * (members.until(partial(members.is_shared, epoch)) - begun))
                leaver.link.close()
        return Figures(rate=statistics.median(millis), others={"min_ms": min(millis), "max_ms": max(millis)})

    def scaled(self, factor: float) -> Rebalance:
        return replace(self, members=max(MEMBERS_MIN, portion(self.members, factor)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """Milliseconds from the last heartbeat of a member that falls silent to a group in which the others own everything.
    They include the session, which must pass before anybody may know of it."""

    about: About
    member: type[Member]
    members: int = MEMBERS

    def run(self, entrant: Entrant) -> Figures:
        with herd(entrant, self.about.name, self.member, self.members + 1, SESSION_MS) as (members, _):
            members.until(members.is_shared)
            members.spread()
            members.until_by_chance(STEADY_INTERVALS)
            dead, epoch = members.members.pop(), members.members[0].epoch
            dead.link.close()
            millis = 1000 * (members.until(partial(members.is_shared, epoch)) - dead.asked_at)
        return Figures(rate=millis, others={"after_session_ms": millis - SESSION_MS})

    def scaled(self, factor: float) -> Death:
        return replace(self, members=max(MEMBERS_MIN, portion(self.members, factor)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Commits:
    """So many OffsetCommit requests of one group's members, one of each in flight; the rate is requests a second."""

    about: About
    member: type[Member]
    requests: int
    offsets: int
    """In each of them."""
    members: int = MEMBERS

    def run(self, entrant: Entrant) -> Figures:
        keep_offsets(entrant)
        with herd(entrant, self.about.name, self.member, self.members) as (members, _):
            members.until(members.is_shared)
            members.fall_silent()
            each = self.requests // self.members
            committers = [Committer(member, self.offsets, each) for member in members.members]
            begun = time.perf_counter()
            drive(committers)
            seconds = time.perf_counter() - begun
        latencies = [latency for committer in committers for latency in committer.latencies]
        cuts = statistics.quantiles(latencies, n=100)
        rate = len(latencies) / seconds
        others = {"offsets_per_s": rate * self.offsets}
        return Figures(
            rate=rate, others={**others, "latency_p50_ms": cuts[49] * 1000, "latency_p99_ms": cuts[98] * 1000}
        )

    def scaled(self, factor: float) -> Commits:
        return replace(self, requests=max(self.members, portion(self.requests, factor)))


class Committer:
    """`Actor`: a member that commits the same again and again, encoded once. The answers are the same too."""

    def __init__(self, member: Member, offsets: int, requests: int) -> None:
        self.link = member.link
        self.latencies: list[float] = []
        self._left = requests
        self._answer: bytes | None = None
        self._sent_at = 0.0
        subscribed = member.subscribed
        partitions = tuple(
            OffsetCommitRequestPartition(index, committed_offset=1_000 + index) for index in range(offsets)
        )
        request = OffsetCommitRequest(
            group_id=subscribed.group,
            generation_id_or_member_epoch=member.epoch,
            member_id=member.id,
            topics=(OffsetCommitRequestTopic(name=subscribed.topic, partitions=partitions),),
        )
        frame = encode_request_frame(_codec(ApiKey.OFFSET_COMMIT), COMMIT_VERSION, 1, "raw", request)
        self._frame = b"".join(bytes(part) for part in frame)

    def begin(self) -> None:
        self._sent_at = time.perf_counter()
        self.link.send(self._frame)

    def on_answer(self, answer: memoryview) -> bool:
        self.latencies.append(time.perf_counter() - self._sent_at)
        if self._answer is None:
            self._answer = bytes(answer)
            _check_committed(answer)
        assert answer == self._answer, "a commit was answered otherwise than the first"
        self._left -= 1
        if self._left:
            self.begin()
        return not self._left


def _check_committed(answer: memoryview) -> None:
    _, at = decode_response_header(int(ApiKey.OFFSET_COMMIT), COMMIT_VERSION, answer)
    response = _codec(ApiKey.OFFSET_COMMIT).decode_response(COMMIT_VERSION, answer[at:])
    errors = {error_of(partition.error_code) for topic in response.topics for partition in topic.partitions}
    assert errors == {ErrorCode.NONE}, f"a commit was answered with {errors}"


@contextmanager
def herd(
    entrant: Entrant, name: str, member: type[Member], count: int, session_ms: int = SESSION_TIMEOUT_MS
) -> Iterator[tuple[Herd, float]]:
    """Members of a new group, connected and joining, and since when. They leave at the end."""
    group = f"{name}-{uuid.uuid4().hex[:8]}"
    with topic_on(entrant, name, PARTITIONS) as topic:
        link = Link(_first(entrant.rival.bootstrap))
        wanted = MetadataRequest(topics=(MetadataRequestTopic(name=topic),))
        (told,) = link.ask(_codec(ApiKey.METADATA), METADATA_VERSION, wanted).topics
        coordinator = await_coordinator(link, group)
        link.close()
        subscribed = Subscribed(group, topic, told.topic_id, PARTITIONS, session_ms)
        members = [member(coordinator, subscribed, HEARTBEAT_MS / 1000) for _ in range(count)]
        found, begun = Herd(members, PARTITIONS), time.perf_counter()
        for one in members:
            one.join()
        yield found, begun
        found.leave()


def _first(bootstrap: str) -> str:
    """Of several brokers."""
    return bootstrap.partition(",")[0]


def await_coordinator(link: Link, group: str) -> str:
    """Until there is one that keeps the group, and where: the offsets topic is made at the first question."""
    deadline = time.monotonic() + ANSWER_TIMEOUT_S
    where, anybody = FindCoordinatorRequest(key=group), HeartbeatRequest(group, 0, "nobody")
    while True:
        found = link.ask(_codec(ApiKey.FIND_COORDINATOR), COORDINATOR_VERSION, where)
        error = error_of(found.error_code)
        if error is ErrorCode.NONE:
            there = Link(f"{found.host}:{found.port}")
            told = there.ask(_codec(ApiKey.HEARTBEAT), VERSIONS[ApiKey.HEARTBEAT], anybody)
            there.close()
            error = error_of(told.error_code)
            if error is ErrorCode.UNKNOWN_MEMBER_ID:
                return f"{found.host}:{found.port}"
        assert time.monotonic() < deadline, f"there is no coordinator: {error.name}"
        time.sleep(LEADER_POLL_S)


def keep_offsets(entrant: Entrant) -> None:
    """Have the offsets topic mean by an acknowledgement what is asked for."""
    link = Link(_first(entrant.rival.bootstrap))
    await_coordinator(link, "any")
    link.close()
    set_durability(entrant, OFFSETS_TOPIC)


def set_durability(entrant: Entrant, topic: str) -> None:
    """Have this topic mean by an acknowledgement what is asked for."""
    config = entrant.rival.topic_config(entrant.durability)
    entries = [ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in config.items()]
    if entries:
        admin = AdminClient({"bootstrap.servers": entrant.rival.bootstrap, "log_level": 0})
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
        for future in admin.incremental_alter_configs([resource]).values():
            future.result(ANSWER_TIMEOUT_S)


def _codec(key: ApiKey) -> Api:
    known = api(int(key))
    assert known is not None
    return known


def _about(name: str, title: str, unit: str, better: Better) -> About:
    return About(
        name=name,
        title=title,
        unit=unit,
        who=HEADRACE_AT_ONCE,
        against=KAFKA_AT_ONCE,
        target=Target(1.0, better),
        cost_targets={},
    )


HEARTBEATS: Final = f"heartbeats every {HEARTBEAT_MS} ms"
PROTOCOLS: Final[Mapping[str, type[Member]]] = {"classic": ClassicMember, "consumer": ConsumerMember}


def _joins(protocol: str) -> Join:
    title = f"{MEMBERS} members of a {protocol} group, {HEARTBEATS}: from the start to a stable group"
    return Join(about=_about(f"groups-join-{protocol}", title, "s", Better.LOWER), member=PROTOCOLS[protocol])


def _rebalances(protocol: str) -> Rebalance:
    title = f"one of {MEMBERS} members of a {protocol} group leaves, {HEARTBEATS}: until the others own everything"
    about = _about(f"groups-rebalance-{protocol}", title, "ms", Better.LOWER)
    return Rebalance(about=about, member=PROTOCOLS[protocol])


def _deaths(protocol: str) -> Death:
    title = f"one of {MEMBERS} members of a {protocol} group falls silent, {HEARTBEATS}, sessions of {SESSION_MS} ms"
    about = _about(f"groups-death-{protocol}", f"{title}: until the others own everything", "ms", Better.LOWER)
    return Death(about=about, member=PROTOCOLS[protocol])


_CaseOf = TypeVar("_CaseOf", Join, Rebalance, Commits)


def _replicated(case: _CaseOf) -> _CaseOf:
    """The case on three brokers, each of which has a copy of every partition."""
    about = case.about
    changed = replace(
        about,
        name=f"{about.name}-replicated",
        title=f"{about.title}; three replicas",
        who=HEADRACE_CLUSTER,
        against=KAFKA_CLUSTER,
        replicas=3,
    )
    return replace(case, about=changed)


def _commits(offsets: int, ours: Durability, requests: int) -> Commits:
    name = f"groups-commits-{offsets}" + ("" if ours is Durability.FSYNC else "-page-cache")
    title = f"commits of {MEMBERS} members of one group, one in flight of each, offsets in each: {offsets}"
    about = replace(_about(name, title, "requests/s", Better.HIGHER), ours=ours)
    return Commits(about=about, member=ClassicMember, requests=requests, offsets=offsets)


_DELAYED_TITLE: Final = (
    f"{MEMBERS} members of a classic group, from the start to a stable assignment, delay of {DELAY_MS} ms"
)
GROUPS: Final[tuple[Join | Rebalance | Death | Commits, ...]] = (
    *map(_joins, PROTOCOLS),
    Join(
        about=replace(
            _about("groups-join-delayed", _DELAYED_TITLE, "s", Better.LOWER),
            who=HEADRACE_DELAYED,
            against=KAFKA_DELAYED,
        ),
        member=ClassicMember,
    ),
    *map(_rebalances, PROTOCOLS),
    *map(_deaths, PROTOCOLS),
    _replicated(_joins("consumer")),
    _replicated(_commits(1, Durability.PAGE_CACHE, 20_000)),
    _commits(1, Durability.PAGE_CACHE, 20_000),
    _commits(1, Durability.FSYNC, 20_000),
    _commits(10, Durability.PAGE_CACHE, 10_000),
    _commits(10, Durability.FSYNC, 10_000),
)
"""`make bench-groups`; `make bench` leaves them out."""
