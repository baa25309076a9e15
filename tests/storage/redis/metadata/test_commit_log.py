"""The commit log in Redis, under the metadata's driver, on a real Valkey: one controller at a time, and one history."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from headrace.base.errors import CorruptData
from headrace.base.ids import BrokerId, TopicId
from headrace.broker.cluster.driver import NotController, OutcomeUnknown
from headrace.broker.cluster.quorum import applying
from headrace.metadata.codec import decode_events, encode_events
from headrace.metadata.events import (
    ConfigChanged,
    MetadataEvent,
    PartitionsAdded,
    TopicDeleted,
)
from headrace.storage.redis.metadata import commit_log, commits
from headrace.storage.redis.metadata import stream as metadata_stream
from headrace.storage.redis.metadata.lease import LeaseTimes
from headrace.storage.redis.server_side.functions import Lease, MetadataFunctions, Status
from tests.broker.group_broker import until
from tests.storage.redis.metadata.nodes import BORN, KEYS, QUICK, TOPIC, Join, Way, created, partition
from tests.storage.redis.redis_world import refuse_once

LONG_SECONDS = 30.0


async def test_every_node_has_what_the_holder_decides(join: Join) -> None:
    first = await join(1)
    await until(lambda: first.driver.is_controller)
    second = await join(2)
    await first.submit(BORN)
    await asyncio.gather(*(first.submit(created(f"t{n}", TopicId(uuid.UUID(int=n)))) for n in range(50)))
    await until(lambda: second.image.index == first.image.index)
    assert second.image == first.image
    assert second.image.cluster_id == "cluster"
    assert {topic.created_index for topic in second.image.topics.values()} == set(range(2, 52))
    assert second.driver.leader == 1
    with pytest.raises(NotController):
        await second.submit(BORN)
    third = await join(3)
    assert third.image == first.image


async def test_a_released_lease_goes_on_at_once_and_a_lost_one_in_time(join: Join) -> None:
    first, second = await join(1, QUICK), await join(2, QUICK)
    await until(lambda: first.driver.is_controller or second.driver.is_controller)
    holder, other = (first, second) if first.driver.is_controller else (second, first)
    await holder.submit(BORN)
    await holder.driver.stop()
    await until(lambda: other.driver.is_controller)
    await other.submit(created())
    before = other.driver.leader_before()
    assert before is not None
    assert before[0] == holder.driver.me
    third = await join(3, QUICK)
    await other.crash()
    await until(lambda: third.driver.is_controller)
    assert third.image.topic("orders") is not None
    assert third.driver.term > other.driver.term


async def test_a_dead_holder_is_not_waited_for_but_once_in_a_while(join: Join) -> None:
    times = LeaseTimes(lasts=3_600_000, poll=3_600_000)
    first = await join(1, times)
    await until(lambda: first.driver.is_controller)
    await first.submit(BORN)
    second, third = await join(2, times), await join(3, times)
    await until(lambda: second.driver.leader == third.driver.leader == 1)
    second.log.holder_died(BrokerId(3))  # it has no lease
    assert second.log._lease._dead is None
    await first.crash()
    second.log.holder_died(BrokerId(1))
    await until(lambda: second.driver.is_controller)
    await second.submit(created())
    third.log.holder_died(BrokerId(1))  # it heard that later, and is behind
    await until(lambda: third.driver.leader == 2)
    assert third.image.topic("orders") is not None
    third.log.holder_died(BrokerId(2))  # it lives: this node cannot reach it
    await until(lambda: third.driver.is_controller)
    with pytest.raises(NotController):
        await second.driver.read_barrier()
    await until(lambda: second.driver.leader == 3)
    second.log.holder_died(BrokerId(3))
    await until(lambda: second.driver.is_controller)
    with pytest.raises(NotController):
        await third.driver.read_barrier()
    await until(lambda: third.driver.leader == 2)
    term = second.driver.term
    third.log.holder_died(BrokerId(2))  # they would go on like this
    assert third.log._lease._dead != term


@pytest.mark.parametrize("turns", range(5))
async def test_a_node_that_loses_the_lease_as_it_stops_comes_to_an_end(join: Join, turns: int) -> None:
    node = await join(1)
    await until(lambda: node.driver.is_controller)
    node.log._lease.drop("for this test")
    for _ in range(turns):
        await asyncio.sleep(0)
    await node.driver.stop()


async def test_a_holder_that_slept_is_fenced_and_its_decision_never_counts(join: Join) -> None:
    first = await join(1)
    await until(lambda: first.driver.is_controller)
    await first.submit(BORN)
    lease = first.log._lease.held
    assert lease is not None
    # Another broker takes the lease, as after its time, before the first notices.
    await first.commands.call("HSET", KEYS.lease, "token", lease.token + 1, "holder", "x", "about", "", "until", 0)
    with pytest.raises((OutcomeUnknown, NotController)):
        await first.submit(created())
    second = await join(2)
    await until(lambda: second.driver.is_controller or first.driver.is_controller)
    assert second.image.topic("orders") is None
    assert await first.commands.call("XLEN", KEYS.metadata) == 1


async def test_a_holder_that_slept_decides_nothing_behind_the_entries_of_another(join: Join) -> None:
    """It has appended nothing yet, and hears of the other's entries before it hears that its lease is over."""
    first = await join(1)
    await until(lambda: first.driver.is_controller)
    await first.submit(BORN)
    await first.driver.stop()
    second = await join(2)
    await until(lambda: second.driver.is_controller)
    await second.commands.call("HSET", KEYS.lease, "token", 9, "holder", "x", "about", "", "until", 0)
    answer = await second.commands.run(MetadataFunctions(KEYS).commit(Lease("x", 9), 1, encode_events([created()])))
    assert answer.status is Status.DONE
    await until(lambda: second.image.index == 2)
    assert not second.driver.is_controller
    await until(lambda: second.driver.is_controller)
    assert second.driver.term == 10
    await second.submit(created("payments", TopicId(uuid.UUID(int=9))))
    assert second.image.topic_names() == ["orders", "payments"]


async def test_confirmed_state_is_of_a_holder_alone(join: Join) -> None:
    first = await join(1)
    await until(lambda: first.driver.is_controller)
    await first.submit(BORN)
    await asyncio.gather(*(first.driver.read_barrier() for _ in range(100)))
    await first.commands.call("HINCRBY", KEYS.lease, "token", 1)
    with pytest.raises(NotController):
        await first.driver.read_barrier()


async def test_a_large_entry_is_decoded_beside_the_loop(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []

    def counted(data: bytes) -> Sequence[MetadataEvent]:
        threads.append(threading.get_ident())
        return decode_events(data)

    node = await join(1)
    await until(lambda: node.driver.is_controller)
    monkeypatch.setattr(commits, "decode_events", counted)
    await node.submit(BORN)
    await node.submit(replace(created(), partitions=tuple(map(partition, range(1_000)))))
    await node.submit(created("payments", TopicId(uuid.UUID(int=8))))
    small, large, behind = threads
    assert small == behind == threading.get_ident() != large
    assert await node.commands.call("HGET", KEYS.topic("orders"), "partitions") == b"1000"


async def test_redis_that_refuses_changes_of_the_metadata_is_told_once(
    join: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await join(1)
    await until(lambda: node.driver.is_controller)
    called = refuse_once(monkeypatch, "commit", "OOM command not allowed when used memory > 'maxmemory'.")
    with capture_logs() as lines:
        await node.submit(BORN)
        called.clear()  # it refuses once more
        await node.submit(created())
    told = [line["event"] for line in lines if line["log_level"] != "debug"]
    assert told == [
        "Redis does not take changes of the metadata now; they are sent again",
        "Redis takes changes of the metadata again",
    ]


async def test_the_registry_tells_topics_as_they_are(join: Join) -> None:
    node = await join(1)
    await until(lambda: node.driver.is_controller)
    await node.submit(BORN, created(), created("payments", TopicId(uuid.UUID(int=8))))
    assert set(await node.commands.call("SMEMBERS", KEYS.topics)) == {b"orders", b"payments"}
    await node.submit(PartitionsAdded(topic_id=TOPIC, partitions=(partition(1),)))
    await node.submit(ConfigChanged(topic_id=TOPIC, changes={"retention.ms": None, "cleanup.policy": "compact"}))
    await node.submit(TopicDeleted(topic_id=TopicId(uuid.UUID(int=8))))
    assert set(await node.commands.call("SMEMBERS", KEYS.topics)) == {b"orders"}
    fields = await node.commands.call("HGETALL", KEYS.topic("orders"))
    assert int(fields.pop(b"created")) > 1_700_000_000_000
    assert fields == {
        b"id": str(TOPIC).encode(),
        b"partitions": b"2",
        b"birth": b"1",
        b"cleanup.policy": b"compact",
    }
    assert await node.commands.call("EXISTS", KEYS.topic("payments")) == 0


async def test_a_snapshot_cuts_the_log_and_a_late_node_takes_it(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_log, "METADATA_EVENTS_PER_SNAPSHOT", 20)
    monkeypatch.setattr(commit_log, "REDIS_METADATA_KEPT_ENTRIES", 5)
    monkeypatch.setattr(metadata_stream, "REDIS_METADATA_PART_BYTES", 200)
    node = await join(1)
    await until(lambda: node.driver.is_controller)
    await node.submit(BORN)
    for number in range(60):
        await node.submit(created(f"t{number}", TopicId(uuid.UUID(int=number))))

    while (length := int(await node.commands.call("XLEN", KEYS.metadata))) > 30:  # the next look takes a round trip
        assert length < 100
    late = await join(2)
    assert late.image == node.image


async def test_a_new_holder_writes_no_snapshot_of_a_change_that_redis_has_lost(
    join: Join, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It still replays that change, which another holder made. A failover lost it, and the other holder has committed
    another one at its index."""
    read, may_replay = threading.Event(), threading.Event()

    def slow(data: bytes) -> Sequence[MetadataEvent]:
        read.set()
        may_replay.wait(LONG_SECONDS)
        return decode_events(data)

    way = Way(join.server, place / "way")
    node = await join(1, reading=way.url)
    await until(lambda: node.driver.is_controller)
    await node.submit(BORN)
    monkeypatch.setattr(applying, "decode_events", slow)
    monkeypatch.setattr(applying, "APPLIED_PER_TURN_BYTES_MAX", 0)  # so that it is decoded in a thread
    monkeypatch.setattr(commit_log, "METADATA_EVENTS_PER_SNAPSHOT", 2)
    keys = (KEYS.metadata, KEYS.head)
    dumps = [await node.commands.call("DUMP", key) for key in keys]
    other, functions = Lease("x", 9), MetadataFunctions(KEYS)
    await node.commands.call("HSET", KEYS.lease, "token", 9, "holder", "x", "about", "", "until", 1 << 50)
    lost, kept = (functions.commit(other, 1, encode_events([created(name)])) for name in ("lost", "kept"))
    assert (await node.commands.run(lost)).status is Status.DONE
    assert await asyncio.to_thread(read.wait, LONG_SECONDS)
    way.sever(node.reading)
    for key, dump in zip(keys, dumps, strict=True):
        await node.commands.call("RESTORE", key, 0, dump, "REPLACE")
    assert (await node.commands.run(kept)).status is Status.DONE
    await node.commands.run(functions.release(other))
    await until(lambda: node.log.holds)
    may_replay.set()
    await until(lambda: node.image.topic_names() == ["lost"])
    await until(lambda: node.log._snapshot is None or node.log._snapshot.done())
    way.restore()
    await until(lambda: node.driver.is_controller)
    late = await join(2)
    assert late.image == node.image
    assert late.image.topic_names() == ["kept"]


async def test_redis_that_comes_back_loses_nothing_and_stops_nobody(join: Join) -> None:
    node = await join(1)
    await until(lambda: node.driver.is_controller)
    await node.submit(BORN)
    server = join.server
    server.kill()
    waiting = asyncio.create_task(node.submit(created()))
    await asyncio.sleep(0)
    server.start()
    try:
        await waiting
        committed = True
    except (OutcomeUnknown, NotController):
        committed = False
    await until(lambda: node.driver.is_controller)
    await node.driver.read_barrier()
    assert not node.fatal
    assert (node.image.topic("orders") is not None) or not committed


async def test_lost_metadata_ends_the_broker_with_what_to_do(join: Join) -> None:
    node = await join(1)
    await until(lambda: node.driver.is_controller)
    await node.submit(BORN)
    await node.commands.call("FLUSHALL")
    await until(lambda: bool(node.fatal))
    assert "lost the cluster's metadata" in str(node.fatal[0])


async def test_a_lease_that_was_dropped_is_another_when_it_is_taken_again(join: Join) -> None:
    """So entries that were sent under it, and are still on their way, are refused."""
    node = await join(1)
    await until(lambda: node.driver.is_controller)
    await node.submit(BORN)
    late = node.log._lease.held
    assert late is not None
    node.log._lease.drop("for this test")
    await until(lambda: node.driver.is_controller)
    assert node.driver.term > late.token
    data = encode_events([created("late", TopicId(uuid.UUID(int=3)))])
    answer = await node.commands.run(MetadataFunctions(KEYS).commit(late, 1, data))
    assert answer.status is Status.FENCED
    await node.submit(created())
    assert node.image.topic_names() == ["orders"]


async def test_a_new_holder_on_another_log_of_the_same_length_decides_nothing_before_it_knows(join: Join) -> None:
    """A failover lost the last entry, and another broker committed one in its place."""
    node = await join(1)
    await until(lambda: node.driver.is_controller)
    await node.submit(BORN)
    keys = (KEYS.metadata, KEYS.head)
    dumps = [await node.commands.call("DUMP", key) for key in keys]
    await node.submit(created())
    lease = node.log._lease.held
    assert lease is not None
    for key, dump in zip(keys, dumps, strict=True):
        await node.commands.call("RESTORE", key, 0, dump, "REPLACE")
    data = encode_events([created("other", TopicId(uuid.UUID(int=3)))])
    assert (await node.commands.run(MetadataFunctions(KEYS).commit(lease, 1, data))).status is Status.DONE
    node.log._lease.drop("for this test")
    await until(lambda: node.driver.is_controller)
    assert node.image.topic_names() == ["other"]
    await node.submit(created("third", TopicId(uuid.UUID(int=4))))
    assert node.image.topic_names() == ["other", "third"]


async def test_damaged_metadata_is_told_and_not_read_for_ever(join: Join) -> None:
    node = await join(1)
    await until(lambda: node.driver.is_controller)
    await node.submit(BORN)
    await node.commands.call("XADD", KEYS.metadata, "2-0", "token", "1", "chain", "no", "events", "")
    await node.commands.call("HSET", KEYS.head, "index", 2, "chain", "no")
    with pytest.raises(CorruptData, match="do not follow"):
        await join(2)
