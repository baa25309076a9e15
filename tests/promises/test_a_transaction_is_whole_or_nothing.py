"""Promise 4, with real processes: a reader under read_committed sees a transaction whole, or nothing of it.

Producers of librdkafka write transactions over all partitions of a topic, and abort some, while brokers are killed: the
coordinator, leaders, all of them. The oracle is what each call told its client. A committed transaction is there once,
in every partition. One that was aborted is nowhere. One whose commit got no answer is whole or not there.

The long form also has partitions that are handed over through a store while producers write, so that what readers get
comes from history, too.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.base.ids import PartitionIndex
from headrace.storage.tier.reader import Store
from headrace.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from tests import loops
from tests.broker.group_broker import RawClient
from tests.promises.support.load import QUIET
from tests.tiers import long_only
from tools.servers.broker_cluster import BrokerCluster

TOPIC: Final = "t"
PARTITIONS: Final = 3
PRODUCERS: Final = 3
DEADLINE_S: Final = 150.0
POLL_S: Final = 60.0
BEFORE_EACH_FAULT: Final = 8
"""Transactions that each producer ends before the next fault."""
FAULTS: Final = ("coordinator", "leader", "all")
QUICK: Final = ("--config", "broker.session.timeout.ms=3000", "--config", "broker.heartbeat.interval.ms=500")


TAKEN_OVER: Final = "partition taken over"
HANDED_OVER: Final = {"segment.bytes": "4096", "local.retention.bytes": "0", "retention.ms": "-1"}


class Outcome(Enum):
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


class Writer(threading.Thread):
    """One transactional id, and the outcomes of its transactions by their numbers."""

    def __init__(self, bootstrap: str, number: int) -> None:
        super().__init__(name=f"writer {number}", daemon=True)
        self.number = number
        self.outcomes: dict[int, Outcome] = {}
        self.over = threading.Event()
        self.ended = threading.Condition()
        self.failure: BaseException | None = None
        self._brokers = bootstrap

    def run(self) -> None:
        try:
            producer = self._new()
            for at in itertools.count():
                if self.over.is_set():
                    return
                try:
                    self._write(producer, at)
                except KafkaException as error:
                    if not self._goes_on(producer, error):
                        producer = self._new()
                with self.ended:
                    self.ended.notify_all()
        except BaseException as error:
            self.failure = error
            with self.ended:
                self.ended.notify_all()

    def _new(self) -> Producer:
        about = {"bootstrap.servers": self._brokers, "transactional.id": f"writer-{self.number}", **QUIET}
        producer = Producer({**about, "transaction.timeout.ms": 60_000})
        producer.init_transactions(DEADLINE_S)
        return producer

    def _write(self, producer: Producer, at: int) -> None:
        """Raises KafkaException, with the outcome noted as far as it is known."""
        self.outcomes[at] = Outcome.ABORTED  # until it is asked to be committed
        producer.begin_transaction()
        for partition in range(PARTITIONS):
            producer.produce(TOPIC, f"{self.number}/{at}".encode(), partition=partition)
        if at % 4 == 3:
            producer.flush(DEADLINE_S)
            producer.abort_transaction(DEADLINE_S)
            return
        self.outcomes[at] = Outcome.UNKNOWN
        producer.commit_transaction(DEADLINE_S)
        self.outcomes[at] = Outcome.COMMITTED

    def _goes_on(self, producer: Producer, raised: KafkaException) -> bool:
        """Whether the producer can be used on: its transaction is aborted then."""
        error = raised.args[0]
        if not error.txn_requires_abort():
            return False
        try:
            producer.abort_transaction(DEADLINE_S)
        except KafkaException:
            return False
        return True

    def wait_for(self, more: int) -> None:
        """Wait until it has ended so many more transactions."""
        wanted = len(self.outcomes) + more
        with self.ended:
            assert self.ended.wait_for(lambda: self.failure or len(self.outcomes) >= wanted, DEADLINE_S * 2)
        if self.failure is not None:
            raise self.failure

    def stop(self) -> None:
        """Stop, and wait until the markers of its last transaction are written: a commit is answered before that. The
        next producer begins only then."""
        self.over.set()
        self.join(DEADLINE_S * 2)
        assert not self.is_alive()
        if self.failure is not None:
            raise self.failure
        self._new()


@contextmanager
def writing(bootstrap: str) -> Iterator[list[Writer]]:
    writers = [Writer(bootstrap, number) for number in range(PRODUCERS)]
    for writer in writers:
        writer.start()
    try:
        yield writers
    finally:
        for writer in writers:
            writer.over.set()


def committed(bootstrap: str) -> dict[str, list[int]]:
    """The partitions in which each value is seen, as often as it is."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "check.crcs": True,
            **QUIET,
        }
    )
    found: dict[str, list[int]] = defaultdict(list)
    consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)])
    unread = set(range(PARTITIONS))
    try:
        while unread:
            message = consumer.poll(POLL_S)
            assert message is not None, f"nothing more comes of {unread}"
            if (error := message.error()) is None:
                found[message.value().decode()].append(message.partition())
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                unread.discard(message.partition())
    finally:
        consumer.close()
    return found


def check(writers: list[Writer], seen: dict[str, list[int]]) -> None:
    everywhere = list(range(PARTITIONS))
    for writer in writers:
        for at, outcome in writer.outcomes.items():
            where = sorted(seen.pop(f"{writer.number}/{at}", []))
            about = f"transaction {writer.number}/{at} was {outcome.value}, and is in {where}"
            match outcome:
                case Outcome.COMMITTED:
                    assert where == everywhere, about
                case Outcome.ABORTED:
                    assert where == [], about
                case Outcome.UNKNOWN:
                    assert where in ([], everywhere), about
    assert not seen, "there are transactions that nobody wrote"


async def victims(cluster: BrokerCluster, fault: str, number: int) -> list[int]:
    if fault == "all":
        return list(cluster.nodes)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})
    topic = TOPIC if fault == "leader" else "__transaction_state"
    told = (await asyncio.to_thread(admin.list_topics, topic, DEADLINE_S)).topics[topic].partitions
    leaders = [told[at].leader for at in sorted(told)]
    return [leaders[number % len(leaders)]]


async def move_all(cluster: BrokerCluster) -> None:
    """Ask for each partition to be handed over to the next broker."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})
    told = (await asyncio.to_thread(admin.list_topics, TOPIC, DEADLINE_S)).topics[TOPIC].partitions
    wishes = tuple(ReassignablePartition(at, (told[at].replicas[0] % len(cluster.nodes) + 1,)) for at in sorted(told))
    request = AlterPartitionReassignmentsRequest(timeout_ms=120_000, topics=(ReassignableTopic(TOPIC, wishes),))
    async with RawClient(str(cluster.address(min(cluster.nodes)))) as client:
        await client.ask(1, request)  # one that is still on its way goes there instead


def test_no_kill_tears_a_transaction_or_loses_a_committed_one(tmp_path: Path, rounds: int) -> None:
    loops.run(kills(tmp_path, rounds, NewTopic(TOPIC, PARTITIONS, 3)))


@long_only
def test_nor_does_one_in_the_middle_of_moves(tmp_path: Path, rounds: int) -> None:
    store = f"file://{tmp_path / 'store'}"
    loops.run(kills(tmp_path, rounds, NewTopic(TOPIC, PARTITIONS, 1, config=HANDED_OVER), store))
    told = [file.read_text().count(TAKEN_OVER) for file in tmp_path.rglob("broker-*.log")]
    assert sum(told) > rounds, "partitions were moved"
    history = Store.open(store)
    for partition in range(PARTITIONS):
        assert history.verify(history.topic(TOPIC), PartitionIndex(partition)).segments > rounds


async def kills(root: Path, rounds: int, topic: NewTopic, store: str = "") -> None:
    """Kill between transactions, and check at the end. With a `store`, all partitions are moved meanwhile."""
    options = ("--config", f"durable.url={store}") if store else ()
    async with BrokerCluster(root, 3, "--json", *QUICK, *options) as cluster:
        await cluster.start(*cluster.nodes)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})
        await asyncio.to_thread(admin.create_topics([topic])[TOPIC].result, DEADLINE_S)
        with writing(cluster.bootstrap) as writers:
            for number, fault in enumerate(itertools.islice(itertools.cycle(FAULTS), rounds)):
                await asyncio.gather(*(asyncio.to_thread(each.wait_for, BEFORE_EACH_FAULT) for each in writers))
                if store:
                    await move_all(cluster)
                killed = [each for each in await victims(cluster, fault, number) if each > 0]
                print(f"round {number + 1} of {rounds}: {fault}, {killed}", flush=True)
                await cluster.kill(*killed)
                await cluster.start(*killed)
            await asyncio.gather(*(asyncio.to_thread(each.wait_for, BEFORE_EACH_FAULT) for each in writers))
            for writer in writers:
                await asyncio.to_thread(writer.stop)
        seen = await asyncio.to_thread(committed, cluster.bootstrap)
        for writer in writers:
            print(writer.number, {each.value: list(writer.outcomes.values()).count(each) for each in Outcome})
        check(writers, seen)
