"""How three brokers come back that were all killed at once: `make partitions BROKERS=3`.

Topics of 100 partitions have three replicas, and one record in each partition (acks=all). Once everything is in sync
all three brokers are killed (SIGKILL) and started again, together. It then counts the seconds until every broker is
ready, and a partition of each topic has taken a record (acks=all). It does so until every partition is led, and every
ISR is whole. It looks at leaders and ISRs once all brokers are ready: before that they may tell of those of before. It
looks topic by topic, which costs next to nothing, and tells when the last one was seen. Beside it stand the processor
time and the most memory of each broker. Results go to benchmarks/results/restart-PARTITIONS.jsonl, unless it is told
not to keep them. Linux only: it reads /proc.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.load.clusters import HeadraceCluster
from benchmarks.load.profiles import PROFILES, recorded
from benchmarks.load.results import append
from headrace.wire.batches import encode_batch
from headrace.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from headrace.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponsePartition
from headrace.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from headrace.wire.records import Record
from tests.broker.group_broker import RawClient

PER_TOPIC: Final = 100
REPLICAS: Final = 3
START_TIMEOUT_S: Final = 600.0
WRITE_TIMEOUT_MS: Final = 120_000
LOOK_S: Final = 0.1
"""Between two looks at a topic that is not there yet."""
WANTED_S: Final = 30.0
"""Of all that is measured, for 10,000 partitions."""


class Spent(NamedTuple):
    """By one broker, since it was started."""

    cpu_s: float
    peak_mb: float


class Restart(NamedTuple):
    """This is what was measured, in seconds since the start."""

    ready_s: dict[int, float]
    last_leader_s: float
    last_write_s: float
    last_isr_s: float
    spent: dict[int, Spent]


def topics(partitions: int) -> list[tuple[str, int]]:
    """Names, and how many partitions each has."""
    return [(f"many-{at // PER_TOPIC}", min(PER_TOPIC, partitions - at)) for at in range(0, partitions, PER_TOPIC)]


class Watch:
    """Asks brokers for topics, over connections that are made again where they break."""

    def __init__(self, bootstraps: Sequence[str]) -> None:
        self._bootstraps = list(bootstraps)
        self._clients: dict[str, RawClient] = {}

    async def ask(self, address: str, version: int, request: Any) -> Any | None:
        """None: nobody answers there."""
        try:
            if (client := self._clients.get(address)) is None:
                client = self._clients[address] = await RawClient(address).__aenter__()
            return await client.ask(version, request)
        except (OSError, EOFError):
            self._clients.pop(address, None)
            return None

    async def partitions(self, topic: str) -> tuple[Sequence[MetadataResponsePartition], dict[int, str]]:
        """As the first broker that answers knows them, and where brokers are; none where nobody answers."""
        request = MetadataRequest(topics=(MetadataRequestTopic(name=topic),), allow_auto_topic_creation=False)
        for address in self._bootstraps:
            if (answer := await self.ask(address, 9, request)) is not None:
                brokers = {broker.node_id: f"{broker.host}:{broker.port}" for broker in answer.brokers}
                return answer.topics[0].partitions, brokers
        return (), {}

    async def write(self, topic: str, indexes: Sequence[int]) -> list[int]:
        """One record to each; those that did not take it."""
        known, brokers = await self.partitions(topic)
        leaders = {each.partition_index: each.leader_id for each in known}
        left = [index for index in indexes if brokers.get(leaders.get(index, -1)) is None]
        for leader, address in brokers.items():
            if mine := [index for index in indexes if leaders.get(index) == leader]:
                left += await self._write_to(address, topic, mine)
        return left

    async def _write_to(self, address: str, topic: str, indexes: Sequence[int]) -> list[int]:
        records = memoryview(encode_batch([Record(0, -1, None, b"v" * 100, ())]))
        data = tuple(PartitionProduceData(index=index, records=records) for index in indexes)
        request = ProduceRequest(
            acks=-1, timeout_ms=WRITE_TIMEOUT_MS, topic_data=(TopicProduceData(name=topic, partition_data=data),)
        )
        if (answer := await self.ask(address, 9, request)) is None:
            return list(indexes)
        return [each.index for each in answer.responses[0].partition_responses if each.error_code]

    async def close(self) -> None:
        for client in self._clients.values():
            await client.__aexit__(None, None, None)


async def each_topic(
    watch: Watch, wanted: Sequence[tuple[str, int]], holds: Callable[[MetadataResponsePartition], bool]
) -> float:
    """When the last topic was seen of which this holds for all partitions."""
    for name, count in wanted:
        while True:
            known, _ = await watch.partitions(name)
            if len(known) == count and all(map(holds, known)):
                break
            await asyncio.sleep(LOOK_S)
    return time.perf_counter()


def is_whole(partition: MetadataResponsePartition) -> bool:
    """Whether all replicas are in sync."""
    return len(partition.isr_nodes) == REPLICAS


def is_led(partition: MetadataResponsePartition) -> bool:
    """Whether a broker leads it."""
    return partition.leader_id >= 0


async def write_everywhere(watch: Watch, wanted: Sequence[tuple[str, Sequence[int]]]) -> float:
    """When the last of these took a record."""
    for name, indexes in wanted:
        left = list(indexes)
        while left := await watch.write(name, left):  # noqa: ASYNC110 - nobody tells it
            await asyncio.sleep(LOOK_S)
    return time.perf_counter()


async def prepare(cluster: HeadraceCluster, partitions: int) -> None:
    """Make the topics, with a record in each partition, everything in sync."""
    addresses = list(cluster.bootstraps.values())
    async with RawClient(addresses[0]) as client:
        for name, count in topics(partitions):
            topic = CreatableTopic(name=name, num_partitions=count, replication_factor=REPLICAS)
            (made,) = (await client.ask(7, CreateTopicsRequest(topics=(topic,), timeout_ms=60_000))).topics
            assert made.error_code == 0, made.error_message
    watch = Watch(addresses)
    await write_everywhere(watch, [(name, range(count)) for name, count in topics(partitions)])
    await each_topic(watch, topics(partitions), is_whole)
    await watch.close()


async def measure(cluster: HeadraceCluster, partitions: int, begun: float) -> Restart:
    """Of brokers that have just been launched."""
    loop = asyncio.get_running_loop()

    async def ready(node: int) -> float:
        await loop.run_in_executor(None, cluster.await_ready, node, START_TIMEOUT_S)
        return said("ready", f"broker {node}")

    def said(what: str, of: str) -> float:
        seconds = time.perf_counter() - begun
        print(f"  {seconds:7.1f} s  {of}: {what}; processor seconds {spent_so_far()}", flush=True)
        return seconds

    def spent_so_far() -> str:
        return ", ".join(f"{spent(cluster.pid(node)).cpu_s:.1f}" for node in cluster.bootstraps)

    coming = {node: asyncio.ensure_future(ready(node)) for node in cluster.bootstraps}
    everywhere = topics(partitions)

    async def until(what: str, seen: Callable[[Watch], Awaitable[float]]) -> float:
        found = [node for node, task in coming.items() if task.done()]
        addresses = [cluster.bootstraps[node] for node in (*found, *(coming.keys() - found))]
        watch = Watch(addresses)
        at = await seen(watch)
        await watch.close()
        said(what, "all")
        return at - begun

    await asyncio.wait(coming.values(), return_when=asyncio.FIRST_COMPLETED)
    sample = [(name, [count - 1]) for name, count in everywhere]
    writing = asyncio.ensure_future(until("the last write", lambda watch: write_everywhere(watch, sample)))
    ready_s = {node: await task for node, task in coming.items()}
    last_leader = await until("the last leader", lambda watch: each_topic(watch, everywhere, is_led))
    last_isr = await until("the last ISR", lambda watch: each_topic(watch, everywhere, is_whole))
    return Restart(
        ready_s=ready_s,
        last_leader_s=last_leader,
        last_write_s=await writing,
        last_isr_s=last_isr,
        spent={node: spent(cluster.pid(node)) for node in cluster.bootstraps},
    )


def spent(pid: int) -> Spent:
    """By a process, all its threads."""
    process = Path(f"/proc/{pid}")
    ticks = (process / "stat").read_text().rpartition(")")[2].split()[11:13]
    (peak,) = (line for line in (process / "status").read_text().splitlines() if line.startswith("VmHWM"))
    return Spent(sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK"), int(peak.split()[1]) / 1024)


@contextmanager
def profiled(cluster: HeadraceCluster, *, wanted: bool) -> Iterator[None]:
    """Flame graphs of all brokers, where that is wanted: they cost time, so what is measured beside counts little."""
    with ExitStack() as stack:
        if wanted:
            PROFILES.mkdir(parents=True, exist_ok=True)
            for node in cluster.bootstraps:
                stack.enter_context(recorded(cluster.pid(node), PROFILES / f"restart-{node}.svg"))
        yield


def run(directory: Path, partitions: int, *, profile: bool) -> Restart:
    cluster = HeadraceCluster(directory / "cluster")
    try:
        cluster.start()
        begun = time.perf_counter()
        asyncio.run(prepare(cluster, partitions))
        print(f"{partitions} partitions made and filled in {time.perf_counter() - begun:.1f} s; all killed", flush=True)
        for node in cluster.bootstraps:
            cluster.kill(node)
        begun = time.perf_counter()
        for node in cluster.bootstraps:
            cluster.launch(node)
        with profiled(cluster, wanted=profile):
            return asyncio.run(measure(cluster, partitions, begun))
    finally:
        for node in cluster.running:
            cluster.kill(node)  # to close so many logs cleanly takes longer than all of this


def tell(found: Restart) -> bool:
    """Whether all came in time."""
    last = max(found.ready_s.values())
    rows = {
        "ready": last,
        "last leader": found.last_leader_s,
        "last write": found.last_write_s,
        "last ISR": found.last_isr_s,
    }
    for name, seconds in rows.items():
        print(f"  {name:12} {seconds:8.1f} s  (at most {WANTED_S:g}){'' if seconds <= WANTED_S else '  MISSED'}")
    for node, by in found.spent.items():
        print(f"  broker {node}     {by.cpu_s:8.1f} s of a processor, {by.peak_mb:.0f} MB at most")
    return max(rows.values()) <= WANTED_S


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument("--profile", action="store_true", help="flame graphs, in var/profiles; the result is not kept")
    parser.add_argument("--unkept", action="store_true", help="keep no result")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as directory:
        found = run(Path(directory), options.partitions, profile=options.profile)
    in_time = tell(found)
    if not (options.profile or options.unkept):
        outcome = {"case": "restart", "partitions": options.partitions, **json.loads(json.dumps(found._asdict()))}
        append(f"restart-{options.partitions}", outcome)
    return int(not in_time)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
