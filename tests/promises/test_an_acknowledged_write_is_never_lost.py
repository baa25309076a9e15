"""Promises 1, 3 and 4, with real processes: kill -9 under load loses nothing acknowledged and moves no offset. It takes
back nothing that a consumer has seen.

A kill keeps the page cache, so this proves recovery, not fsync; the simulator's power cuts prove that.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic

from tests.promises.support.load import PARTITIONS, QUIET, PartitionLogs, Producer, Watcher, read_all, value_of
from tools.servers.broker_process import BrokerProcess

SEED = 20260101
SEGMENT_BYTES = 1024 * 1024


def make_topics(bootstrap: str, *names: str) -> None:
    """Topics of small segments, so that kills meet rolls too."""
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    config = {"segment.bytes": str(SEGMENT_BYTES)}
    for future in admin.create_topics([NewTopic(name, PARTITIONS, 1, config=config) for name in names]).values():
        future.result(150)


def check_kept(found: PartitionLogs, acknowledged: PartitionLogs, starts: dict[int, int] | None = None) -> None:
    """Everything acknowledged, from `starts` on, is there, at its offset; offsets have no gap."""
    for partition, log in acknowledged.items():
        start = (starts or {}).get(partition, 0)
        missing = [offset for offset, value in log.items() if offset >= start and found[partition].get(offset) != value]
        assert not missing, (
            f"partition {partition}: {len(missing)} acknowledged messages lost or moved, first {missing[0]}"
        )
        assert sorted(found[partition]) == list(range(start, start + len(found[partition])))


def check_somewhere(found: PartitionLogs, unplaced: Sequence[tuple[int, bytes]]) -> None:
    """Check that records acknowledged at an unknown offset are there."""
    values = {partition: frozenset(log.values()) for partition, log in found.items()}
    missing = [(partition, value) for partition, value in unplaced if value not in values[partition]]
    assert not missing, f"acknowledged and not there: {missing[:3]}"


def check_once_and_in_order(found: PartitionLogs, sent: int) -> None:
    """Each message of an idempotent producer is there once, in the order in which it was sent."""
    for partition, log in found.items():
        assert [log[offset] for offset in sorted(log)] == [value_of(n) for n in range(partition, sent, PARTITIONS)]


def check_seen(watcher: Watcher, found: PartitionLogs) -> None:
    """A live consumer saw each offset once and in order, and all that it saw is still there."""
    assert not watcher.failures
    assert any(watcher.seen.values())
    for partition, seen in watcher.seen.items():
        assert not [offset for offset, value in seen.items() if found[partition].get(offset) != value]


def check_idempotent(found: PartitionLogs, producer: Producer, watcher: Watcher) -> None:
    """Check the records of an idempotent producer that has stopped. They were acknowledged without an error, and are
    there, once, in order, as it was told and as the watcher has seen them."""
    told = producer.acknowledged
    assert not told.failures, told.failures[:3]
    assert not told.twice, told.twice[:3]
    assert told.count == producer.sent
    check_kept(found, producer.snapshot())
    check_somewhere(found, told.unplaced)
    check_once_and_in_order(found, producer.sent)
    check_seen(watcher, found)
    assert not watcher.failures, watcher.failures[:3]


def test_kill_9_under_load_loses_nothing(broker: BrokerProcess, rounds: int) -> None:
    make_topics(broker.bootstrap, "plain", "idempotent")
    chance = random.Random(SEED)
    plain = Producer(broker.bootstrap, "plain", idempotent=False)
    idempotent = Producer(broker.bootstrap, "idempotent", idempotent=True)
    checked: dict[str, dict[int, int]] = {"plain": {}, "idempotent": {}}
    watcher = Watcher(broker.bootstrap, "plain")
    with watcher, plain, idempotent:
        for number in range(rounds):
            chance.choice([plain, idempotent]).wait_for(chance.randint(1, 5000))
            broker.kill()
            before = {producer.topic: producer.snapshot() for producer in (plain, idempotent)}
            broker.start()
            if number % 3 == 2:  # a death right after recovery, before anything new is written
                broker.kill()
                broker.start()
            for topic, acknowledged in before.items():
                check_kept(read_all(broker.bootstrap, topic, checked[topic]), acknowledged, checked[topic])
                checked[topic] = {partition: max(log, default=-1) + 1 for partition, log in acknowledged.items()}
            plain.wait_for(1)
            idempotent.wait_for(1)
    for producer in (plain, idempotent):
        assert not producer.acknowledged.failures
        assert not producer.acknowledged.twice
        there = read_all(broker.bootstrap, producer.topic)
        check_kept(there, producer.snapshot())
        check_somewhere(there, producer.acknowledged.unplaced)
    check_seen(watcher, read_all(broker.bootstrap, "plain"))
    assert idempotent.acknowledged.count == idempotent.sent
    check_once_and_in_order(read_all(broker.bootstrap, "idempotent"), idempotent.sent)


def test_a_clean_stop_keeps_everything(broker: BrokerProcess) -> None:
    make_topics(broker.bootstrap, "stopped")
    with Producer(broker.bootstrap, "stopped", idempotent=True) as producer:
        producer.wait_for(2000)
        assert broker.stop() == 0
        broker.start()
        producer.wait_for(2000)
    found = read_all(broker.bootstrap, "stopped")
    check_kept(found, producer.snapshot())
    check_somewhere(found, producer.acknowledged.unplaced)
    check_once_and_in_order(found, producer.sent)


def test_offsets_committed_by_a_group_survive_kill_9(broker: BrokerProcess) -> None:
    make_topics(broker.bootstrap, "committed")
    options = {"bootstrap.servers": broker.bootstrap, "group.id": "survivor", "enable.auto.commit": False}
    member = confluent_kafka.Consumer(options | dict(QUIET))
    committed = [
        confluent_kafka.TopicPartition("committed", partition, 10 + partition) for partition in range(PARTITIONS)
    ]
    member.commit(offsets=committed, asynchronous=False)
    member.close()
    broker.kill()
    broker.start()
    again = confluent_kafka.Consumer(options | dict(QUIET))
    assert [found.offset for found in again.committed(committed, 30)] == [10, 11, 12]
    again.close()
