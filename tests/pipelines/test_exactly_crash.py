"""The exactly-once sink under SIGKILL, as a stream and as a replay, on three brokers.

Driver, Java, Python workers and brokers die at random. The oracle is librdkafka as a consumer of committed records. It
sees no record twice after any round, and each record once at the end.

HEADRACE_CRASH_ROUNDS is the number of rounds (`make crash-spark ROUNDS=30 FORMATS=exactly-once`), and
HEADRACE_CRASH_SEED chooses the points. The short tier has tests/spark/exactly/test_killed.py alone.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
from confluent_kafka import Producer

from headrace.net.client.admin import Admin
from headrace.net.client.cluster import Cluster
from headrace.net.client.offsets import LATEST
from headrace.net.client.transactions import Transactions
from headrace.spark.brokers import Brokers as Asked
from headrace.spark.write.exactly.topic import LEDGER, ledger_topic
from tests.interop.frameworks.support.brokers import Brokers
from tests.pipelines.crash import PipelineProcess, names, numbered
from tests.pipelines.replayed import law
from tests.promises.support.load import QUIET
from tests.spark.world import Row, consumed
from tests.tiers import long_only, of_tier
from tools.servers.broker_cluster import BrokerCluster

ROUNDS = int(os.environ.get("HEADRACE_CRASH_ROUNDS", of_tier(short=1, long=30)))
SEED = int(os.environ.get("HEADRACE_CRASH_SEED", "1"))
NAME: Final = "exactly-once"
SOURCE, TARGET = 3, 4
"""Partitions."""
RECORDS: Final = 600
"""Of one round."""
BROKERS: Final = range(1, 4)
FLUSH_S: Final = 150.0
VICTIMS: Final = ("all", "driver", "java", "brokers")
CONFIGS: Final = (
    "transaction.two.phase.commit.enable=true",
    "broker.session.timeout.ms=3000",
    "broker.heartbeat.interval.ms=500",
)
OPTIONS: Final = tuple(part for config in CONFIGS for part in ("--config", config))
pytestmark = [
    *([] if "HEADRACE_CRASH_ROUNDS" in os.environ else [long_only]),
    pytest.mark.timeout(300 + 120 * ROUNDS),
    pytest.mark.skipif(NAME not in os.environ.get("HEADRACE_CRASH_FORMATS", NAME).split(","), reason="others"),
]


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Brokers]:
    cluster = BrokerCluster(tmp_path / "brokers", 3, *OPTIONS)
    with asyncio.Runner() as runner:
        try:
            runner.run(cluster.start(*cluster.nodes))
            yield Brokers(cluster, runner)
        finally:
            runner.run(cluster.__aexit__())


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A process that is killed, and the place where its progress can be seen."""

    brokers: Brokers
    asked: Asked
    argument: Path
    more: tuple[str, ...]
    module: str
    progress: Path
    """A directory that gets a file with each batch."""

    def process(self, log: Path) -> PipelineProcess:
        return PipelineProcess(self.argument, log, *self.more, module=self.module)

    def end(self, topic: str, partitions: int) -> int:
        return sum(found.offset for found in self.asked.offsets(topic, range(partitions), LATEST).values())

    def moment(self, random: Random) -> tuple[str, Callable[[], bool]]:
        """Something to wait for, by name: records in the target or in the ledger, or progress."""
        kind, count = random.choice(("records", "decisions", "progress")), random.randrange(1, 4)
        if kind == "progress":
            before = len(names(self.progress))
            return f"{count} more in {self.progress.name}", lambda: len(names(self.progress)) >= before + count
        if kind == "decisions":  # a claim, its marker, a mark: each of them is one
            there = self.end(LEDGER, self.ledgers)
            return f"{count} more in the ledger", lambda: self.end(LEDGER, self.ledgers) >= there + count
        there, more = self.end("t", TARGET), random.randrange(1, 120)
        return f"{more} more records", lambda: self.end("t", TARGET) >= there + more

    @property
    def ledgers(self) -> int:
        return len(self.asked.topic(LEDGER).partitions)

    def first_blow(self, running: PipelineProcess, random: Random) -> str:
        """A worker dies, and its task is tried again; or a broker, which comes back. Returns who died."""
        broker = random.randrange(2 * len(BROKERS))
        if broker in BROKERS:
            self.brokers.replace(broker)
            return f"broker {broker}"
        return "worker" if running.kill_worker(random) else "nobody"

    def last_blow(self, victim: str, running: PipelineProcess) -> int:
        """Returns the exit code of the job. When its brokers have died and are back, it goes on, or fails by itself."""
        if victim == "brokers":
            self.brokers.replace(*BROKERS)
        else:
            {"all": running.kill_all, "driver": running.kill_driver, "java": running.kill_java}[victim]()
        return running.wait()


def stream(brokers: Brokers, asked: Asked, root: Path) -> Job:
    return Job(
        brokers=brokers,
        asked=asked,
        argument=root / "checkpoint",
        more=(brokers.bootstrap,),
        module="tests.pipelines.exactly_stream",
        progress=root / "checkpoint" / "offsets",
    )


def replay(brokers: Brokers, asked: Asked, root: Path) -> Job:
    file = root / "crash.toml"
    file.write_text(
        f"""
        pipeline = "replay"
        name = "crash"
        [source]
        bootstrap = "{brokers.bootstrap}"
        topic = "s"
        maxRecordsPerTrigger = 60
        [target]
        bootstrap = "{brokers.bootstrap}"
        topic = "t"
        delivery = "exactly-once"
        identity = false
        [run]
        checkpoint = "{root / "checkpoint"}"
        [spark]
        master = "local[2,4]"
        nice = 0
        settings = {{ "spark.driver.extraJavaOptions" = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto" }}
        """
    )
    return Job(
        brokers=brokers,
        asked=asked,
        argument=file,
        more=(),
        module="headrace.spark.pipelines",
        progress=root / "checkpoint" / "_headrace_replay",
    )


async def created(cluster: Cluster) -> None:
    for name, partitions in (("s", SOURCE), ("t", TARGET)):
        await Admin(cluster).create_topic(name, partitions=partitions, replication_factor=3)


def fill(bootstrap: str, count: int, number: int) -> None:
    """Records of which each says by its header `at` which it is."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, **QUIET})
    random, failed = Random(number), list[Any]()

    def told(error: Any, _: Any) -> None:
        failed.extend([] if error is None else [error])

    for at in range(count):
        key = random.choice([None, b"%d" % random.randrange(9)])
        producer.produce(
            "s",
            value=random.randbytes(random.randrange(300)),
            key=key,
            partition=at % SOURCE,
            headers=[("at", b"%d-%d" % (number, at))],
            on_delivery=told,
        )
    assert producer.flush(FLUSH_S) == 0, "all are sent"
    assert not failed, failed


def each_once(bootstrap: str) -> Counter[Any]:
    """The records of the target, as readers of committed ones get them. Each was sent, and none is there twice."""
    found, sent = (
        Counter((row[5], row[6], dict(row[7])["at"]) for row in consumed(bootstrap, [topic])) for topic in ("t", "s")
    )
    assert found <= sent, f"twice, or out of nowhere: {[*(found - sent)][:3]}"
    return found


async def still_open(cluster: Cluster) -> list[str]:
    return [each.name for each in await Transactions(cluster).list_all(["Ongoing"]) if each.state == "Ongoing"]


@pytest.mark.parametrize("made", [stream, replay])
def test_each_record_is_written_exactly_once_whatever_dies(
    tmp_path: Path, brokers: Brokers, made: Callable[[Brokers, Asked, Path], Job]
) -> None:
    random, log = Random(SEED), tmp_path / "log"
    story, hits = list[str](), 0

    def hit() -> int:
        return hits

    def tell(text: str) -> None:
        story.append(text)
        print(f"exactly-once {made.__name__} {len(story)}: {text}", flush=True)

    with Asked(brokers.bootstrap) as asked:
        asked.ask(created)
        asked.ask(ledger_topic)
        job = made(brokers, asked, tmp_path)
        for number in numbered(ROUNDS, hit):
            fill(brokers.bootstrap, RECORDS, number)
            victim = VICTIMS[number % len(VICTIMS)]
            with job.process(log) as running:
                text, happened = job.moment(random)
                died = job.first_blow(running, random) if running.until(happened) else "nobody"
                tell(f"{died} when {text}")
                text, happened = job.moment(random)
                met = running.until(happened)
                code = job.last_blow(victim, running)
                hits += code != 0 or (met and victim == "brokers")
                tell(
                    f"{victim} when {text}: {met}, which gave {code}; {each_once(brokers.bootstrap).total()} are there"
                )
        fill(brokers.bootstrap, 10, ROUNDS)
        with job.process(log) as running:
            assert running.wait() == 0, log.read_text()[-3000:]
        source: list[Row] = consumed(brokers.bootstrap, ["s"])
        assert each_once(brokers.bootstrap).total() == len(source), ("each is there", story)
        if made is replay:
            law(consumed(brokers.bootstrap, ["t"]), source, TARGET)
        assert asked.ask(still_open) == [], story
        assert hits >= (ROUNDS + 1) // 2, ("of so many rounds at least half were hit", story)
