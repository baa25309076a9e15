"""The time and cost of moving a partition to another broker: `make bench-moves`.

One partition with one replica is filled with the given number of MB (ProducerPerformance, segments of 64 MB). It is
moved from broker to broker while librdkafka's idempotent producer, with its default settings, writes to it at a steady
pace. The admin client of kafka-python asks both for the move (AlterPartitionReassignments). The move is over once no
reassignment is listed and the new broker leads.

The bytes copied between brokers are those on the loopback interface, less those in an equal time with the producer
alone. The measure is equal for both, and nothing else may use the machine. Our writes to the store, a directory, are
the growth of that directory. Exports in the background before the move do not count. Neither does Kafka's tiered
storage, which has no part in its reassignments.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, cast

import psutil
from kafka import TopicPartition
from kafka.admin import KafkaAdminClient

from benchmarks.load.cases import MEGABYTE, About, Entrant, Figures, count, leaders, make_topic, portion
from benchmarks.load.clusters import Cluster
from benchmarks.load.controllers import await_quorum
from benchmarks.load.failover import TIMEOUT_S, Load
from benchmarks.load.perf_tools import produce
from benchmarks.load.rivals import door_of
from headrace.net import loops
from headrace.net.client import moves
from headrace.net.client.cluster import Cluster as Connected

RECORD_BYTES: Final = 1024
RECORDS_PER_S: Final = 500
SEGMENT_BYTES: Final = 64 * 1024 * 1024
ALONE_S: Final = 3.0
"""For which the producer is measured before the move."""
AFTERWARDS_S: Final = 2.0
LOOK_EVERY_S: Final = 0.02
LOOPBACK: Final = "lo"


@dataclass(frozen=True, slots=True, kw_only=True)
class MovePartition:
    """See the module; the rate is milliseconds, from the request to the end."""

    about: About
    records: int
    """That it holds, of 1 KB."""
    _filled: dict[str, str] = field(default_factory=dict)
    """Topics, by who has them."""
    _added: dict[str, int] = field(default_factory=dict)
    """Records that producers have added since."""

    def run(self, entrant: Entrant) -> Figures:
        cluster = cast("Cluster", entrant.rival)
        await_quorum(cluster)
        topic = self._topic(entrant)
        load = Load(cluster.bootstrap, topic, partitions=1, records_per_s=RECORDS_PER_S)
        with load:
            load.wait_for([0], since=time.perf_counter() + 1.0)  # it knows its way
            alone = _Traffic(cluster)
            load.wait_for([0], since=alone.begun + ALONE_S)
            per_s = alone.loopback_mb / alone.seconds
            moved = self._move(cluster, entrant, topic, load)
        self._added[entrant.rival.name] += load.acknowledged
        assert not load.failures, load.failures[:3]
        held, wanted = count(cluster.bootstrap, topic, 1), self.records + self._added[entrant.rival.name]
        assert held == wanted, f"{topic} holds {held} records, not {wanted}"
        carried, seconds = moved.pop("loopback_mb"), moved["seconds"]
        moved["copied_mb"] = max(0.0, carried - per_s * seconds)
        return Figures(rate=1000 * seconds, others=moved, megabytes=0.0)

    def scaled(self, factor: float) -> MovePartition:
        return replace(self, records=portion(self.records, factor), _filled={}, _added={})

    def _topic(self, entrant: Entrant) -> str:
        """Its name; once it is there, full, and, where there is a store, all of its closed segments are in it."""
        rival = entrant.rival
        if rival.name not in self._filled:
            topic = f"{self.about.name}-data"
            make_topic(entrant, topic, 1, {"segment.bytes": str(SEGMENT_BYTES), "retention.ms": "-1"})
            produce(door_of(rival), topic, self.records, RECORD_BYTES, ())
            self._filled[rival.name], self._added[rival.name] = topic, 0
        topic = self._filled[rival.name]
        leaders(entrant, topic, 1)
        if _store(rival) is not None:
            loops.run(_exported(rival.bootstrap, topic))
        return topic

    def _move(self, cluster: Cluster, entrant: Entrant, topic: str, load: Load) -> dict[str, float]:
        """To the broker after the one that has it."""
        by_address = {at: node for node, at in cluster.bootstraps.items()}
        nodes = sorted(cluster.bootstraps)
        (source,) = (by_address[at] for at in leaders(entrant, topic, 1))
        target = nodes[(nodes.index(source) + 1) % len(nodes)]
        admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
        partition = TopicPartition(topic, 0)
        admin.list_partition_reassignments([partition])  # it knows its way
        traffic = _Traffic(cluster)
        refused = admin.alter_partition_reassignments({partition: [target]})[partition]
        assert refused is None, refused
        while admin.list_partition_reassignments([partition]):
            assert traffic.seconds < TIMEOUT_S, f"the move is not over within {TIMEOUT_S:.0f} s"
            time.sleep(LOOK_EVERY_S)
        while cluster.bootstraps[target] not in leaders(entrant, topic, 1):
            time.sleep(LOOK_EVERY_S)
        moved = {"seconds": traffic.seconds, "loopback_mb": traffic.loopback_mb, "stored_mb": traffic.stored_mb}
        admin.close()
        load.wait_for([0], since=time.perf_counter() + AFTERWARDS_S)
        moved["pause_ms"] = 1000 * load.longest_pause(0, since=traffic.begun)
        if _store(cluster) is not None:
            moved["broker_pause_ms"] = loops.run(_told_pause(cluster.bootstrap, topic, source))
        return moved


class _Traffic:
    """Bytes over the loopback interface, and into the store, since this was made."""

    def __init__(self, cluster: Cluster) -> None:
        self._store = _store(cluster)
        self._stored = _bytes_in(self._store)
        self._carried = _carried()
        self.begun = time.perf_counter()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.begun

    @property
    def loopback_mb(self) -> float:
        return (_carried() - self._carried) / MEGABYTE

    @property
    def stored_mb(self) -> float:
        return (_bytes_in(self._store) - self._stored) / MEGABYTE


def _carried() -> int:
    counters = psutil.net_io_counters(pernic=True)
    return int(counters[LOOPBACK].bytes_sent)


def _store(rival: object) -> Path | None:
    found: Path | None = getattr(rival, "store", None)
    return found


def _bytes_in(directory: Path | None) -> int:
    return 0 if directory is None else sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


async def _exported(bootstrap: str, topic: str) -> None:
    """Until what a move would have to export is less than a segment."""
    async with Connected(bootstrap) as cluster:
        deadline = time.monotonic() + TIMEOUT_S
        while (left := (await moves.measured(cluster, topic, [0])).get(0)) is None or left > SEGMENT_BYTES:
            assert time.monotonic() < deadline, f"{left} bytes of {topic} are still to be exported"
            await asyncio.sleep(LOOK_EVERY_S)


async def _told_pause(bootstrap: str, topic: str, source: int) -> float:
    """Of its last move away from that broker, as its new owner tells."""
    async with Connected(bootstrap) as cluster:
        _, finished = await moves.under_way(cluster)
        return float([one.pause_ms for one in finished if (one.topic, one.source) == (topic, source)][-1])
