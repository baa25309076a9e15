"""The pause of partitions when the broker that is controller and leader goes: `make bench-failover`.

One idempotent producer of librdkafka, with its default settings, writes to six partitions with three replicas, two of
which must be in sync. Each gets a few hundred records a second. Then the broker that is the controller, and leads some
partitions, is killed, or told to stop, or paused (SIGSTOP). A partition's pause is the longest time between two of its
acknowledgements. The rate is the longest pause of any partition. Acknowledged records are counted.

A client that waits for the answer of a stopped process waits for as long as its own settings say. So after SIGSTOP the
rate is the longer of two times. One is the time until the others name new leaders for all that the broker led. The
other is the longest pause of a partition that another broker leads (and this one copies).
"""

from __future__ import annotations

import itertools
import statistics
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, cast

from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient

from benchmarks.load.cases import About, Entrant, Figures, count, leaders, topic_on
from benchmarks.load.clusters import Cluster
from benchmarks.load.controllers import await_quorum
from benchmarks.load.raw.raw_links import LEADER_POLL_S

PARTITIONS: Final = 6
RECORDS_PER_S: Final = 1_500
RECORD_BYTES: Final = 100
WARM_UP_S: Final = 3.0
AFTERWARDS_S: Final = 2.0
TIMEOUT_S: Final = 120.0


class End(StrEnum):
    """The way in which the broker ends."""

    KILL = "SIGKILL"
    STOP = "SIGTERM"
    PAUSE = "SIGSTOP"


@dataclass(frozen=True, slots=True, kw_only=True)
class LongestPause:
    """See the module; the rate is milliseconds."""

    about: About
    end: End

    def run(self, entrant: Entrant) -> Figures:
        cluster = cast("Cluster", entrant.rival)
        controller = await_quorum(cluster)
        with topic_on(entrant, self.about.name, PARTITIONS) as topic:
            load = Load(entrant.rival.bootstrap, topic)
            with load:
                load.wait_for(range(PARTITIONS), since=time.perf_counter() + WARM_UP_S)
                led = leaders(entrant, topic, PARTITIONS).get(cluster.bootstraps[controller], [])
                counted = [each for each in range(PARTITIONS) if self.end is not End.PAUSE or each not in led]
                begun = time.perf_counter()
                self._end(cluster, controller)
                load.wait_for(counted, since=begun + AFTERWARDS_S)
                others = {}
                if self.end is End.PAUSE:
                    others["new_leaders_ms"] = 1000 * (self._await_leaders(cluster, controller, topic) - begun)
                pauses = [1000 * load.longest_pause(partition, since=begun) for partition in counted]
                self._bring_back(cluster, controller)
            await_quorum(cluster)
            held = count(entrant.rival.bootstrap, topic, PARTITIONS)
        assert not load.failures, load.failures[:3]
        assert held == load.acknowledged, f"{held} records are there, {load.acknowledged} were acknowledged"
        others |= {"shortest_ms": min(pauses), "median_ms": statistics.median(pauses), "records": held}
        return Figures(rate=max([*pauses, others.get("new_leaders_ms", 0.0)]), others=others)

    def scaled(self, factor: float) -> LongestPause:
        return replace(self)

    def _end(self, cluster: Cluster, node: int) -> None:
        match self.end:
            case End.KILL:
                cluster.kill(node)
            case End.STOP:
                threading.Thread(target=cluster.terminate, args=(node,)).start()
            case End.PAUSE:
                cluster.pause(node)

    def _await_leaders(self, cluster: Cluster, stopped: int, topic: str) -> float:
        """When the others name leaders for all of the topic that are not the one that was stopped."""
        left = ",".join(at for node, at in cluster.bootstraps.items() if node != stopped)
        admin = AdminClient({"bootstrap.servers": left, "log_level": 0})
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            told = admin.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions.values()
            if all(each.leader not in (stopped, -1) for each in told):
                return time.perf_counter()
            time.sleep(LEADER_POLL_S)
        raise AssertionError(f"nobody else led what broker {stopped} did within {TIMEOUT_S:.0f} s")

    def _bring_back(self, cluster: Cluster, node: int) -> None:
        match self.end:
            case End.KILL:
                cluster.restart(node)
            case End.STOP:
                cluster.await_end(node)
                cluster.restart(node)
            case End.PAUSE:
                cluster.resume(node)


@dataclass(slots=True)
class Load:
    """The producer, in a thread of its own while it is entered; on leaving all that was sent is acknowledged."""

    bootstrap: str
    topic: str
    partitions: int = PARTITIONS
    records_per_s: int = RECORDS_PER_S
    failures: list[str] = field(default_factory=list)
    acknowledged: int = 0
    _at: list[list[float]] = field(default_factory=list)
    """When each partition's records were acknowledged."""
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _stopping: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)
    _client: Any = None

    def __enter__(self) -> Load:
        self._at = [[] for _ in range(self.partitions)]
        options = {"bootstrap.servers": self.bootstrap, "enable.idempotence": True, "acks": "all", "log_level": 0}
        self._client = Producer(options | {"error_cb": lambda _: None})
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._send, self._poll)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._threads[0].join()
        left = self._client.flush(TIMEOUT_S)
        self._threads[1].join()
        if left:
            self.failures.append(f"{left} records were neither acknowledged nor refused")

    def _send(self) -> None:
        begun = time.perf_counter()
        for number in itertools.count():
            if self._stopping.wait(max(0.0, begun + number / self.records_per_s - time.perf_counter())):
                return
            self._client.produce(
                self.topic, bytes(RECORD_BYTES), partition=number % self.partitions, on_delivery=self._on_delivery
            )

    def _poll(self) -> None:
        while not self._stopping.is_set():
            self._client.poll(0.05)

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        now = time.perf_counter()
        with self._changed:
            if error is not None:
                self.failures.append(str(error))
                return
            self.acknowledged += 1
            partition = message.partition()
            assert partition is not None
            self._at[partition].append(now)
            self._changed.notify_all()

    def wait_for(self, partitions: Sequence[int], since: float) -> None:
        """Until a record of each of these partitions is acknowledged later than that."""
        waited_for = [self._at[partition] for partition in partitions]
        with self._changed:
            done = self._changed.wait_for(lambda: all(at and at[-1] >= since for at in waited_for), TIMEOUT_S)
        assert done, f"some partition stood still for {TIMEOUT_S:.0f} s: {self.failures[:3]}"

    def longest_pause(self, partition: int, since: float) -> float:
        """Seconds between two acknowledgements, the second of which came later than `since`."""
        at: Sequence[float] = self._at[partition]
        return max(later - earlier for earlier, later in itertools.pairwise(at) if later >= since)
