"""Cases of three brokers around the controller.

They measure how soon topics can be made after the controller is killed, how soon others lead its partitions, and how
fast topics are made. One client over raw sockets, with requests encoded by our codec, asks any broker, which passes the
request on to the controller. Topics have one partition and one replica, and nothing is written to them.
"""

from __future__ import annotations

import statistics
import time
import uuid
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, cast

from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError

from benchmarks.load.cases import About, Entrant, Figures, portion
from benchmarks.load.clusters import Cluster
from benchmarks.load.raw.raw_links import Link
from headrace.wire.apis import Api, ApiKey, api
from headrace.wire.errors import ErrorCode, error_of
from headrace.wire.messages.create_topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from headrace.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from headrace.wire.messages.metadata import MetadataRequest, MetadataRequestTopic

CREATE_VERSION: Final = 7
DELETE_VERSION: Final = 6
METADATA_VERSION: Final = 9
TIMEOUT_MS: Final = 30_000
RETRY_S: Final = 0.005
READY_TIMEOUT_S: Final = 120.0
DELETED_AT_ONCE: Final = 100
WARM_UP_TOPICS: Final = 300
ENTRIES_BEHIND_MAX: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTopics:
    """`topics` in requests of `batch`, one request in flight; the rate is the seconds that all of them take."""

    about: About
    topics: int
    batch: int

    def run(self, entrant: Entrant) -> Figures:
        cluster = cast("Cluster", entrant.rival)
        await_quorum(cluster)
        self._warm_up(cluster)
        names = [f"{self.about.name}-{uuid.uuid4().hex[:8]}-{number}" for number in range(self.topics)]
        link = Link(next(iter(cluster.bootstraps.values())))
        latencies, begun = [], time.perf_counter()
        for at in range(0, self.topics, self.batch):
            asked = time.perf_counter()
            errors = create(link, names[at : at + self.batch])
            latencies.append(time.perf_counter() - asked)
            assert set(errors) == {ErrorCode.NONE}, f"a topic was not made: {set(errors)}"
        seconds = time.perf_counter() - begun
        delete(link, names)
        link.close()
        cuts = statistics.quantiles(latencies, n=100) if len(latencies) > 1 else latencies * 99
        return Figures(rate=seconds, others={"latency_p50_ms": cuts[49] * 1000, "latency_p99_ms": cuts[98] * 1000})

    def _warm_up(self, cluster: Cluster) -> None:
        """A shorter run of the case, so that no virtual machine is measured cold."""
        names = [f"{self.about.name}-{uuid.uuid4().hex[:8]}-warm-{number}" for number in range(WARM_UP_TOPICS)]
        link = Link(next(iter(cluster.bootstraps.values())))
        for at in range(0, len(names), self.batch):
            create(link, names[at : at + self.batch])
        delete(link, names)
        link.close()

    def scaled(self, factor: float) -> CreateTopics:
        return replace(self, topics=max(self.batch, portion(self.topics, factor)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Failover:
    """kill -9 of the active controller, `rounds` times. The rate is the median of the milliseconds until the next topic
    is made, through one of the remaining brokers."""

    about: About
    rounds: int

    def run(self, entrant: Entrant) -> Figures:
        cluster = cast("Cluster", entrant.rival)
        millis = [self._round(cluster) for _ in range(self.rounds)]
        await_quorum(cluster)
        return Figures(rate=statistics.median(millis), others={"min_ms": min(millis), "max_ms": max(millis)})

    def scaled(self, factor: float) -> Failover:
        return replace(self, rounds=portion(self.rounds, factor))

    def _round(self, cluster: Cluster) -> float:
        controller = await_quorum(cluster)
        left = {node: Link(at) for node, at in cluster.bootstraps.items() if node != controller}
        made = []
        for link in left.values():  # each is connected, and knows the way to the controller
            made += await_created([link], self._name())
        begun = time.perf_counter()
        cluster.kill(controller)
        made += await_created(list(left.values()), self._name())
        millis = (time.perf_counter() - begun) * 1000
        cluster.restart(controller)
        for link in left.values():
            link.close()
        await_quorum(cluster)
        links = [Link(at) for at in cluster.bootstraps.values()]
        delete(links[0], made)
        for link in links:
            link.close()
        return millis

    def _name(self) -> str:
        return f"{self.about.name}-{uuid.uuid4().hex[:8]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reelection:
    """kill -9 of the controller, which leads all partitions of a topic with three replicas. The rate is the
    milliseconds until the others name leaders for all of them."""

    about: About
    partitions: int

    def run(self, entrant: Entrant) -> Figures:
        cluster = cast("Cluster", entrant.rival)
        controller = await_quorum(cluster)
        left = [node for node in cluster.bootstraps if node != controller]
        links = [Link(cluster.bootstraps[node]) for node in left]
        topic = f"{self.about.name}-{uuid.uuid4().hex[:8]}"
        replicas = tuple(CreatableReplicaAssignment(index, (controller, *left)) for index in range(self.partitions))
        wanted = CreatableTopic(topic, num_partitions=-1, replication_factor=-1, assignments=replicas)
        request = CreateTopicsRequest((wanted,), TIMEOUT_MS)
        (made,) = links[0].ask(_codec(ApiKey.CREATE_TOPICS), CREATE_VERSION, request).topics
        assert not made.error_code, f"the topic was not made: {made.error_code}"
        self._await_leaders(links, topic, {controller}, in_sync=len(cluster.bootstraps))
        begun = time.perf_counter()
        cluster.kill(controller)
        self._await_leaders(links, topic, set(left), in_sync=1)
        millis = (time.perf_counter() - begun) * 1000
        cluster.restart(controller)
        await_quorum(cluster)
        delete(links[0], [topic])
        for link in links:
            link.close()
        return Figures(rate=millis, others={})

    def _await_leaders(self, links: Sequence[Link], topic: str, leaders: Collection[int], *, in_sync: int) -> None:
        """Until all who are asked name these and no others, and so many in sync. Raises TimeoutError."""
        request = MetadataRequest(topics=(MetadataRequestTopic(name=topic),), allow_auto_topic_creation=False)
        deadline, waiting = time.monotonic() + READY_TIMEOUT_S, list(links)
        while waiting:
            (told,) = waiting[0].ask(_codec(ApiKey.METADATA), METADATA_VERSION, request).topics
            if len(told.partitions) == self.partitions and all(
                each.leader_id in leaders and len(each.isr_nodes) >= in_sync for each in told.partitions
            ):
                del waiting[0]
            elif time.monotonic() > deadline:
                raise TimeoutError(f"{leaders} did not lead all of {topic} within {READY_TIMEOUT_S:.0f} s")
            else:
                time.sleep(RETRY_S)

    def scaled(self, factor: float) -> Reelection:
        return replace(self, partitions=portion(self.partitions, factor))


def create(link: Link, names: Sequence[str]) -> list[ErrorCode]:
    """One request for all of them; what became of each."""
    topics = tuple(CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in names)
    answer = link.ask(_codec(ApiKey.CREATE_TOPICS), CREATE_VERSION, CreateTopicsRequest(topics, TIMEOUT_MS))
    return [error_of(topic.error_code) for topic in answer.topics]


def await_created(links: Sequence[Link], name: str) -> list[str]:
    """Ask one link after the other until the topic is made; its name. Raises TimeoutError."""
    deadline, attempt = time.monotonic() + READY_TIMEOUT_S, 0
    while time.monotonic() < deadline:
        link = links[attempt % len(links)]
        [error] = create(link, [name])
        if error in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):  # an attempt that was in doubt
            return [name]
        assert error.retriable or error is ErrorCode.INVALID_REPLICATION_FACTOR, f"{name} was refused: {error.name}"
        attempt += 1
        time.sleep(RETRY_S)
    raise TimeoutError(f"no topic was made within {READY_TIMEOUT_S:.0f} s")


def delete(link: Link, names: Sequence[str]) -> None:
    """All of them, a hundred at once."""
    for at in range(0, len(names), DELETED_AT_ONCE):
        topics = tuple(DeleteTopicState(name=name) for name in names[at : at + DELETED_AT_ONCE])
        request = DeleteTopicsRequest(topics=topics, timeout_ms=TIMEOUT_MS)
        link.ask(_codec(ApiKey.DELETE_TOPICS), DELETE_VERSION, request)


def await_quorum(cluster: Cluster) -> int:
    """Wait until every broker answers, is alive to the others, and is a voter that has caught up; the controller's id.
    Raises TimeoutError."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            for at in cluster.bootstraps.values():
                Link(at).close()
            leader, there = _quorum(cluster.bootstraps.values())
        except (OSError, KafkaError):
            time.sleep(0.2)
            continue
        if leader in cluster.bootstraps and there >= set(cluster.bootstraps):
            return leader
        time.sleep(0.2)
    raise TimeoutError(f"{cluster.name} had no quorum of all its brokers within {READY_TIMEOUT_S:.0f} s")


def _quorum(bootstraps: Iterable[str]) -> tuple[int, set[int]]:
    """The leader, and the live brokers that have what is committed, or nearly, for it never rests."""
    admin = KafkaAdminClient(bootstrap_servers=list(bootstraps))
    try:
        said: Any = admin.describe_metadata_quorum()
        alive = {broker["broker_id"] for broker in admin.describe_cluster()["brokers"]}
    finally:
        admin.close()
    log = said["topics"][0]["partitions"][0]
    needed = log["high_watermark"] - ENTRIES_BEHIND_MAX
    voters = log["current_voters"]
    return log["leader_id"], alive & {voter["replica_id"] for voter in voters if voter["log_end_offset"] >= needed}


def _codec(key: ApiKey) -> Api:
    known = api(int(key))
    assert known is not None
    return known
