"""Promises 1 to 4 and 6 over many moves, with real processes and a verifier (`tests.promises.support.verifier`).

8 producers and 8 consumers use partitions that are handed over through the store, others that are copied, and
`__consumer_offsets`. All are moved at random while brokers and the store are killed. Nothing is lost, repeated or
reordered, and committed offsets never fall back. The catalogs have no gap and their chains hold. After the death of all
brokers every high watermark is what it was.

There are four brokers, and a store that is a directory or an S3-compatible server. The parser of kafka-python, and
hashlib, judge objects as they lie on the store's disk.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Any, Final, NamedTuple

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kafka.record import MemoryRecords

from headrace.net.client.cluster import Cluster
from headrace.operations import histories
from headrace.storage.tier.format import decode_footer
from headrace.storage.tier.packed import batches_of
from headrace.wire.errors import ErrorCode, error_of
from headrace.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from headrace.wire.messages.list_partition_reassignments import ListPartitionReassignmentsRequest
from headrace.wire.messages.metadata import MetadataRequest, MetadataResponse
from tests import loops
from tests.broker.group_broker import RawClient
from tests.promises.support.load import QUIET
from tests.promises.support.verifier import (
    Group,
    Lane,
    Member,
    Place,
    Random,
    Sequential,
    VerifyingProducer,
    Worker,
    ends_of,
    expected,
    wait_until,
)
from tools.servers import s3_server
from tools.servers.broker_cluster import BrokerCluster
from tools.servers.s3_server import BUCKET, S3Server

BROKERS: Final = 4
OFFSETS: Final = "__consumer_offsets"
HANDED_OVER: Final = "handed-over"
SHAPES: Final[Mapping[str, tuple[int, int]]] = {HANDED_OVER: (8, 1), "copied-twice": (4, 2), "copied-thrice": (4, 3)}
"""Partitions and replicas."""
HANDED_OVER_MIN: Final = SHAPES[HANDED_OVER][0]
"""Number of partitions of this kind, each of which must have history when it is judged."""
PRODUCERS: Final = 8
MOVES_A_ROUND: Final = 5
MOVES_MIN: Final = 3
"""In every run."""
AT_ONCE_MAX: Final = 2
FAULTS: Final = (None, "source", "store", "target", None, "controller", None, "store", "anybody")
"""The process that is killed while partitions move, in turn."""
BETWEEN: Final = 300
"""Acknowledgements, so that moves and deaths meet busy partitions."""
DEADLINE_S: Final = 150.0
TAKEN_OVER: Final = "partition taken over"
CONFIGS: Final = (
    "broker.session.timeout.ms=3000",
    "broker.heartbeat.interval.ms=500",
    "replica.lag.time.max.ms=2000",
    "leader.imbalance.check.interval.seconds=1",
    "default.replication.factor=1",
    "offsets.topic.num.partitions=3",
    "group.initial.rebalance.delay.ms=0",
    "log.retention.check.interval.ms=200",
)
LIMITS: Final = {
    "segment.bytes": "65536",
    "retention.ms": "-1",
    "local.retention.bytes": "131072",
    "storage.compression": "zstd",
}
"""Much of it is soon read from durable history."""


class Where(NamedTuple):
    """A partition, as metadata tell."""

    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


class Storm:
    """Moves partitions and kills, by chance, and waits until all is whole again."""

    def __init__(self, cluster: BrokerCluster, store: S3Server | None, lanes: Sequence[Lane], seed: str) -> None:
        self.cluster = cluster
        self.store = store
        self.chance = random.Random(seed)
        self.moved: Counter[str] = Counter()
        self.killed: Counter[str] = Counter()
        self.pauses: dict[bool, list[float]] = {True: [], False: []}
        """Of producers, in undisturbed moves: of partitions that are handed over, and of others."""
        self._lanes = {lane.place: lane for lane in lanes}
        self._down: set[int] = set()

    async def _ask(self, version: int, request: Any) -> Any:
        broker = next(one for one in self.cluster.nodes if one not in self._down)
        async with RawClient(str(self.cluster.address(broker))) as client:
            return await client.ask(version, request)

    async def told(self) -> tuple[int, dict[Place, Where]]:
        """The controller, and every partition."""
        answer: MetadataResponse = await self._ask(12, MetadataRequest(topics=None))
        found = {
            (str(topic.name), each.partition_index): Where(each.leader_id, each.replica_nodes, each.isr_nodes)
            for topic in answer.topics
            for each in topic.partitions
        }
        return int(answer.controller_id), found

    async def acknowledged(self, more: int) -> None:
        """So many more records than now, of all producers together."""
        wanted = self._count() + more
        await asyncio.to_thread(wait_until, lambda: self._count() >= wanted, f"{wanted} are not acknowledged")

    def _count(self) -> int:
        return sum(lane.acknowledged for lane in self._lanes.values())

    async def once(self, fault: str | None, most: int) -> None:
        """Some partitions to other brokers; `fault` meets them at some time of it."""
        controller, known = await self.told()
        places = sorted(known)
        often = [2 if place[0] == HANDED_OVER else 1 for place in places]
        chosen = sorted(set(self.chance.choices(places, often, k=self.chance.randint(1, min(most, AT_ONCE_MAX)))))
        begun = time.monotonic()
        aims = [(place, *await self._move(place, known[place])) for place in chosen]
        if fault is not None:
            _, source, target = self.chance.choice(aims)
            await self._strike(fault, {"source": source, "target": target, "controller": controller})
        await self._until_whole()
        for place, *_ in aims:
            self.moved[place[0]] += 1
            if fault is None and place in self._lanes:
                pause = self._lanes[place].longest_pause_ms(begun, time.monotonic())
                self.pauses[place[0] == HANDED_OVER].append(pause)

    async def _move(self, place: Place, known: Where) -> tuple[int, int]:
        """Another instead of one of its replicas; both."""
        leaving = self.chance.choice(known.replicas)
        coming = self.chance.choice([one for one in self.cluster.nodes if one not in known.replicas])
        wanted = tuple(coming if one == leaving else one for one in known.replicas)
        wish = ReassignableTopic(place[0], (ReassignablePartition(place[1], wanted),))
        answer = await self._ask(1, AlterPartitionReassignmentsRequest(timeout_ms=120_000, topics=(wish,)))
        code = error_of(answer.error_code or answer.responses[0].partitions[0].error_code)
        assert code in (ErrorCode.NONE, ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT), code
        return leaving, coming

    async def _strike(self, fault: str, roles: Mapping[str, int]) -> None:
        for _ in range(self.chance.randrange(12)):  # how far the moves come is left to chance
            if not await self._is_moving():
                break
        if fault == "store" and self.store is not None:
            self.killed["store"] += 1
            self.store.kill()
            await self.acknowledged(BETWEEN)  # those who do not move go on
            self.store.start()
            return
        victim = roles.get(fault) or self.chance.choice(sorted(self.cluster.nodes))
        self.killed["broker"] += 1
        self._down.add(victim)
        await self.cluster.kill(victim)
        await self.cluster.start(victim)
        self._down.discard(victim)

    async def _is_moving(self) -> bool:
        answer = await self._ask(0, ListPartitionReassignmentsRequest(timeout_ms=120_000, topics=None))
        return bool(answer.topics)

    async def _until_whole(self) -> None:
        """Nothing moves, everything is led, and every replica is in sync."""
        known: dict[Place, Where] = {}
        try:
            async with asyncio.timeout(DEADLINE_S):
                while True:
                    moving, (_, known) = await self._is_moving(), await self.told()
                    if not moving and all(_is_whole(one) for one in known.values()):
                        return
        except TimeoutError:
            raise AssertionError(f"not whole: { {p: w for p, w in known.items() if not _is_whole(w)} }") from None


def _is_whole(one: Where) -> bool:
    return one.leader != -1 and set(one.isr) == set(one.replicas)


class Verifier:
    """All of the clients. A context manager."""

    def __init__(self, bootstrap: str) -> None:
        self.lanes = [Lane((topic, each)) for topic, (count, _) in SHAPES.items() for each in range(count)]
        self.producers = [VerifyingProducer(bootstrap, self.lanes[each::PRODUCERS]) for each in range(PRODUCERS)]
        self.sequential = [Sequential(bootstrap, self.lanes) for _ in range(2)]
        self.random = [Random(bootstrap, self.lanes, seed) for seed in range(2)]
        self.groups = [Group("old", "classic", list(SHAPES)), Group("new", "consumer", list(SHAPES))]
        self.members = [Member(bootstrap, group) for group in self.groups for _ in range(2)]
        self._stack = ExitStack()

    @property
    def _workers(self) -> Sequence[Worker]:
        return (*self.producers, *self.sequential, *self.random, *self.members)

    def __enter__(self) -> Verifier:
        for worker in self._workers:
            self._stack.enter_context(worker)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.__exit__(kind, error, at)  # reports new failures beside the earlier ones

    def problems(self) -> list[str]:
        told = [worker.failures for worker in self._workers] + [lane.failures for lane in self.lanes]
        return [problem for failures in told for problem in failures]

    def finish(self) -> None:
        """No more is sent; all readers and groups come to the end."""
        for producer in self.producers:
            producer.stop()
        for reader in self.sequential:
            wait_until(partial(reader.has_read, self.lanes), "a reader did not come to the end")
        for group in self.groups:
            wait_until(partial(group.has_committed, self.lanes), f"group {group.name} did not come to the end")
        self._stack.close()

    def check(self) -> None:
        assert not self.problems(), self.problems()[:5]
        for lane in self.lanes:
            assert 0 < lane.acknowledged == lane.sent, f"{lane.place}: {lane.acknowledged} of {lane.sent}"
        for reader in self.sequential:
            assert reader.next == {lane.place: lane.sent for lane in self.lanes}
        for group in self.groups:
            assert group.committed == group.read == {lane.place: lane.sent for lane in self.lanes}

    def told(self) -> str:
        records = sum(lane.sent for lane in self.lanes)
        commits = sum(group.commits for group in self.groups)
        return (
            f"{records} records, {sum(one.reads for one in self.random)} readings at random, {commits} commits over "
            f"{sum(group.assignments for group in self.groups)} assignments"
        )


def make_topics(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    wanted = [NewTopic(name, count, replicas, config=dict(LIMITS)) for name, (count, replicas) in SHAPES.items()]
    for future in admin.create_topics(wanted).values():
        future.result(DEADLINE_S)


async def known_everywhere(cluster: BrokerCluster) -> None:
    """Wait until every broker has replayed their creation. Until then a broker says, like Kafka, that the topic does
    not exist, and an early reader takes that for final."""
    for broker in cluster.nodes:
        async with asyncio.timeout(DEADLINE_S), RawClient(str(cluster.address(broker))) as client:
            known: set[str] = set()
            while not known >= SHAPES.keys():
                known = {topic.name for topic in (await client.ask(12, MetadataRequest(topics=None))).topics}


def verified(cluster: BrokerCluster) -> list[dict[str, Any]]:
    """The output of `headrace durable verify` for each partition; it must succeed."""
    words = ("durable", "verify", "--json", "--bootstrap", cluster.bootstrap)
    command = [sys.executable, "-m", "headrace.cli.main", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


async def have_history(cluster: BrokerCluster, fire: Storm) -> None:
    """Go on writing until every partition that is handed over has some."""
    while sum(each.topic == HANDED_OVER for each in await known(cluster)) < HANDED_OVER_MIN:
        await fire.acknowledged(BETWEEN)


async def known(cluster: BrokerCluster) -> list[histories.History]:
    """By a client of its own."""
    async with Cluster(cluster.bootstrap) as client:
        return await histories.known(client, ())


async def check_history(cluster: BrokerCluster, objects: Path) -> int:
    """The command proves it, and so do kafka-python's parser and hashlib; how many segments."""
    verdicts = await asyncio.to_thread(verified, cluster)
    assert len(verdicts) >= HANDED_OVER_MIN
    assert not [problem for verdict in verdicts for problem in verdict["problems"]]
    async with Cluster(cluster.bootstrap) as client:
        for each in await histories.known(client, ()):
            catalog = await histories.catalog(client, each)
            segments = [entry.to_json() for entry in catalog]
            await asyncio.to_thread(check_catalog, (each.topic, each.partition), segments, catalog.head, objects)
    return sum(verdict["segments"] for verdict in verdicts)


def check_catalog(place: Place, segments: Sequence[Mapping[str, Any]], head: str, objects: Path) -> None:
    """From offset 0 without a gap, each linked to the one before, and each object what the producer sent."""
    offset, last = 0, segments[0]["previous_hash"]
    for segment in segments:
        told = segment["descriptor"]
        text = json.dumps([last, "published", told], sort_keys=True, separators=(",", ":"))
        assert "deletions" not in segment
        assert segment["previous_hash"] == last
        assert segment["hash"] == hashlib.sha256(text.encode()).hexdigest()
        body = (objects / told["key"]).read_bytes()
        content = bytes(batches_of(body, decode_footer(body)))
        assert len(content) == told["batch_bytes"]
        assert told["start_offset"] == offset, f"{place}: a segment begins at {told['start_offset']}, not at {offset}"
        for record in records_of(content):
            assert record.offset == offset
            assert (record.key, record.value) == expected(place, offset)
            offset += 1
        assert offset == told["end_offset"] + 1
        last = segment["hash"]
    assert last == head


def records_of(batches: bytes) -> Iterator[Any]:
    for batch in MemoryRecords(batches):
        assert batch.validate_crc()
        yield from batch


def told_pauses(cluster: BrokerCluster) -> list[int]:
    """Milliseconds from the last accepted record to the first that could be, as new owners tell."""
    lines = [line for broker in cluster.nodes for line in cluster.log(broker).read_text().splitlines()]
    told = [json.loads(line) for line in lines if line.startswith("{")]
    return sorted(one["pause_ms"] for one in told if one["event"] == TAKEN_OVER)


def shares(pauses: Sequence[float]) -> str:
    """Of how many, their median, 99th percentile and longest."""
    if not pauses:
        return "none"
    ordered = sorted(pauses)
    high = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    return f"{len(ordered)}: {median(ordered):.0f} ms (median), {high:.0f} (p99), {ordered[-1]:.0f} (longest)"


async def storm(tmp_path: Path, moves: int, url: str, objects: Path, server: S3Server | None) -> None:
    options = ("--json", "--durable", url, *(part for config in CONFIGS for part in ("--config", config)))
    async with BrokerCluster(tmp_path, BROKERS, *options) as cluster:
        brokers = tuple(cluster.nodes)
        await cluster.start(*brokers)
        await asyncio.to_thread(make_topics, cluster.bootstrap)
        await known_everywhere(cluster)
        with Verifier(cluster.bootstrap) as verifier:
            fire = Storm(cluster, server, verifier.lanes, f"{url[:2]} {moves}")
            await fire.acknowledged(BETWEEN)
            step = 0
            while (left := moves - fire.moved.total()) > 0:
                await fire.once(FAULTS[step % len(FAULTS)], left)
                await fire.acknowledged(BETWEEN)
                step += 1
                assert not verifier.problems(), verifier.problems()[:5]
                print(f"moves: {dict(fire.moved)}, kills: {dict(fire.killed)}", flush=True)
            await have_history(cluster, fire)
            await asyncio.to_thread(verifier.finish)
        verifier.check()
        segments = await check_history(cluster, objects)
        _, known = await fire.told()
        before = await asyncio.to_thread(ends_of, cluster.bootstrap, sorted(known))
        assert {lane.place: (0, lane.sent) for lane in verifier.lanes}.items() <= before.items()
        await cluster.kill(*brokers)
        await cluster.start(*brokers)
        assert await asyncio.to_thread(ends_of, cluster.bootstrap, sorted(known)) == before
        with Sequential(cluster.bootstrap, verifier.lanes) as again:
            await asyncio.to_thread(wait_until, partial(again.has_read, verifier.lanes), "not all is there again")
        assert not again.failures, again.failures[:5]
        print(f"judged: {verifier.told()}; {segments} segments of durable history", flush=True)
        print(f"pauses as new owners tell: {shares(told_pauses(cluster))}")
        print(f"as producers saw them, undisturbed, handed over: {shares(fire.pauses[True])}")
        print(f"and copied: {shares(fire.pauses[False])}", flush=True)


@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("kind", ["directory", "s3"])
def test_moves_under_fire_lose_repeat_and_reorder_nothing(
    tmp_path: Path, few_rounds: int, kind: str, request: pytest.FixtureRequest
) -> None:
    if kind == "directory" and few_rounds == 1 and s3_server.missing() is None:
        pytest.skip("a directory is the store where there is no server, or at length")
    moves = MOVES_A_ROUND * few_rounds if few_rounds > 1 else MOVES_MIN
    if kind == "s3":
        server: S3Server = request.getfixturevalue("own_s3")
        loops.run(storm(tmp_path, moves, server.url(), server.objects / BUCKET / "durable", server))
    else:
        objects = tmp_path / "store"
        loops.run(storm(tmp_path, moves, f"file://{objects}", objects, None))
