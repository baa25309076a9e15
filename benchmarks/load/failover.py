"""How long partitions stand still when the broker that is controller and leader goes: `make bench-failover`.

One idempotent producer of librdkafka, with its default settings, writes to six partitions with three replicas, two of
which have to be in sync, a few hundred records a second to each. Then the broker that is the controller, and leads some
of them, is killed, or told to stop, or stopped in its tracks (SIGSTOP). A partition's pause is the longest time between
two of its acknowledgements; the rate is that of the partition with the longest. What was acknowledged is counted.
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

from benchmarks.load.cases import About, Entrant, Figures, count, topic_on
from benchmarks.load.clusters import Cluster
from benchmarks.load.controllers import await_quorum

PARTITIONS: Final = 6
RECORDS_PER_S: Final = 1_500
RECORD_BYTES: Final = 100
WARM_UP_S: Final = 3.0
AFTERWARDS_S: Final = 2.0
TIMEOUT_S: Final = 120.0


class End(StrEnum):
    """What becomes of the broker."""

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
                load.wait_for_all(since=time.perf_counter() + WARM_UP_S)
                begun = time.perf_counter()
                self._end(cluster, controller)
                load.wait_for_all(since=begun + AFTERWARDS_S)
            pauses = [load.longest_pause(partition, since=begun) for partition in range(PARTITIONS)]
            self._bring_back(cluster, controller)
            await_quorum(cluster)
            held = count(entrant.rival.bootstrap, topic, PARTITIONS)
        assert not load.failures, load.failures[:3]
        assert held == load.acknowledged, f"{held} records are there, {load.acknowledged} were acknowledged"
        millis = sorted(1000 * pause for pause in pauses)
        return Figures(
            rate=millis[-1], others={"shortest_ms": millis[0], "median_ms": statistics.median(millis), "records": held}
        )

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
    failures: list[str] = field(default_factory=list)
    acknowledged: int = 0
    _at: list[list[float]] = field(default_factory=lambda: [[] for _ in range(PARTITIONS)])
    """When each partition's records were acknowledged."""
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _stopping: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)
    _client: Any = None

    def __enter__(self) -> Load:
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
            if self._stopping.wait(max(0.0, begun + number / RECORDS_PER_S - time.perf_counter())):
                return
            self._client.produce(
                self.topic, bytes(RECORD_BYTES), partition=number % PARTITIONS, on_delivery=self._on_delivery
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

    def wait_for_all(self, since: float) -> None:
        """Until a record of each partition is acknowledged later than that."""
        with self._changed:
            done = self._changed.wait_for(lambda: all(at and at[-1] >= since for at in self._at), TIMEOUT_S)
        assert done, f"some partition stood still for {TIMEOUT_S:.0f} s: {self.failures[:3]}"

    def longest_pause(self, partition: int, since: float) -> float:
        """Seconds between two acknowledgements, the second of which came later than `since`."""
        at: Sequence[float] = self._at[partition]
        return max(later - earlier for earlier, later in itertools.pairwise(at) if later >= since)
