"""The brokers that tests get: real, quick, gone afterwards."""

from __future__ import annotations

import asyncio
import math
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from headrace.base.errors import HeadraceError, UsageError
from headrace.broker.cluster.membership import Membership
from headrace.net.client.admin import Admin
from headrace.net.client.cluster import Cluster
from headrace.storage.commit_log import Committed
from headrace.testing import BrokerThread, ClusterThread, RunningBroker, RunningCluster, broker, cluster, thread

READY_SECONDS_MAX = 0.3
TURNS_LATE = 10_000
"""Of the event loop: many more than a client's question takes."""


async def test_a_broker_is_ready_under_300_ms() -> None:
    """It is started until it is, for the machine has other work too. The import of the broker is not in it."""
    seconds = math.inf
    while seconds >= READY_SECONDS_MAX:
        started = time.perf_counter()
        async with broker() as running:
            seconds = time.perf_counter() - started
            async with Cluster(running.bootstrap) as cluster:
                assert len((await cluster.metadata(())).brokers) == 1


async def test_a_temporary_directory_goes_and_a_given_one_stays(tmp_path: Path) -> None:
    async with broker() as running:
        assert running.data.is_dir()
    assert not running.data.exists()
    async with broker(data=tmp_path) as running, Cluster(running.bootstrap) as cluster:
        await Admin(cluster).create_topic("kept", partitions=1)
    async with broker(data=tmp_path) as running, Cluster(running.bootstrap) as cluster:
        assert [topic.name for topic in await Admin(cluster).topics()] == ["kept"]


async def test_several_brokers_live_side_by_side() -> None:
    async with broker() as one, broker() as other:
        assert one.bootstrap != other.bootstrap
        async with Cluster(one.bootstrap) as cluster:
            await Admin(cluster).create_topic("mine")
        async with Cluster(other.bootstrap) as cluster:
            assert await Admin(cluster).topics() == ()


def test_a_blocking_client_is_served(headrace_broker: RunningBroker) -> None:
    with_bootstrap = {"bootstrap.servers": headrace_broker.bootstrap}

    async def create() -> None:
        async with Cluster(headrace_broker.bootstrap) as cluster:
            await Admin(cluster).create_topic("blocking", partitions=1)

    asyncio.run(create())
    producer = Producer({**with_bootstrap, "acks": "all"})
    producer.produce("blocking", b"value", b"key")
    assert producer.flush(150) == 0
    consumer = Consumer({**with_bootstrap, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["blocking"])
    message = consumer.poll(60)
    assert message is not None
    assert (message.error(), message.key(), message.value()) == (None, b"key", b"value")
    consumer.close()


def test_a_client_goes_on_while_brokers_of_a_cluster_go_and_come(headrace_cluster: ClusterThread) -> None:
    """Each in turn, so that whichever address it began with is away once."""
    producer = Producer({"bootstrap.servers": headrace_cluster.bootstrap, "enable.idempotence": True, "log_level": 0})
    for broker_id in (1, 2, 3):
        headrace_cluster.stop_brokers(broker_id)
        assert headrace_cluster.running == tuple({1, 2, 3} - {broker_id})
        producer.produce("orders", b"%d" % broker_id, partition=0)
        assert producer.flush(150) == 0
        headrace_cluster.start_brokers(broker_id)
    headrace_cluster.stop_brokers(1)
    consumer = Consumer(
        {"bootstrap.servers": headrace_cluster.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["orders"])
    found = [consumer.poll(60) for _ in range(3)]
    consumer.close()
    assert [each is not None and each.value() for each in found] == [b"1", b"2", b"3"]


async def test_a_cluster_is_one_and_keeps_its_directory(tmp_path: Path) -> None:
    async with cluster(data=tmp_path) as three, Cluster(three.bootstrap) as client:
        assert len((await client.metadata(())).brokers) == 3
        await Admin(client).create_topic("kept", partitions=1, replication_factor=3)
        await three.stop(2)
        assert three.running == (1, 3)
        with pytest.raises(UsageError, match="no broker 4"):
            await three.start(4)
    async with cluster(data=tmp_path) as three, Cluster(three.bootstrap.rpartition(",")[0]) as client:
        assert [topic.name for topic in await Admin(client).topics()] == ["kept"]


@contextmanager
def slow_to_replay(three: RunningCluster, broker_id: int) -> Iterator[None]:
    """That broker replays what the quorum committed so many turns of the loop later."""
    applier = three._running[broker_id].broker.parts.metadata._applier
    loop = asyncio.get_running_loop()
    apply = applier.apply

    def apply_later(entries: Iterable[Committed], turns: int = TURNS_LATE) -> None:
        if turns:
            loop.call_soon(apply_later, entries, turns - 1)
        else:
            apply(entries)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(applier, "apply", apply_later)
        yield


async def test_a_started_broker_is_known_to_all(tmp_path: Path) -> None:
    async with cluster(data=tmp_path) as three:
        followers = [key for key in three.running if not three._running[key].broker.parts.metadata.is_controller]
        slow, restarted = followers[:2]
        await three.stop(restarted)
        with slow_to_replay(three, slow):
            await three.start(restarted)
            addresses = three.bootstrap.split(",")
            async with Cluster(addresses[slow - 1]) as client:
                known = (await client.metadata(())).brokers
        assert set(known) == {1, 2, 3}


async def test_brokers_that_stop_while_another_starts_are_not_waited_for() -> None:
    async with cluster() as three:
        await three.stop(3)
        await asyncio.gather(three.start(3), three.stop(1))
        assert three.running == (2, 3)
        await three.stop(3)
        await asyncio.gather(three.start(1, 3), three.stop(2))
        assert three.running == (1, 3)


def test_a_session_broker_is_one_and_the_same(
    headrace_session_broker: RunningBroker, request: pytest.FixtureRequest
) -> None:
    assert request.getfixturevalue("headrace_session_broker") is headrace_session_broker


def test_a_broker_that_cannot_start_says_why() -> None:
    with pytest.raises(HeadraceError, match=r"no\.such\.config"):
        BrokerThread(configs={"no.such.config": "1"}).start()


def test_a_start_that_takes_too_long_says_where_it_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here the quorum's first leader never comes."""

    async def register(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Membership, "register", register)
    monkeypatch.setattr(thread, "START_SECONDS_MAX", 2.0)
    with pytest.raises(HeadraceError, match=r"did not serve within 2 s. It waits in .*boot\.py:\d+ \(_enter_cluster\)"):
        BrokerThread().start()


def test_stopping_twice_is_no_error() -> None:
    thread = BrokerThread()
    thread.start()
    thread.stop()
    thread.stop()


def test_the_plugin_imports_nothing_of_headrace() -> None:
    code = "import sys, headrace_pytest; print(*(m for m in sys.modules if m.partition('.')[0] == 'headrace'))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert loaded == []


def test_pytest_rewrites_no_assert_of_headrace() -> None:
    """It rewrites whatever lies in the package of a plugin, which takes seconds at the first import."""
    assert not getattr(sys.modules["headrace.base.errors"].__loader__, "config", None), "loaded by pytest's own loader"
    assert getattr(sys.modules[__name__].__loader__, "config", None)
