"""A broker's metrics for Prometheus, read by a parser that shares no code with it, against the actions on it."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import UsageError
from headrace.broker.boot import Broker
from headrace.broker.config import BrokerConfig
from headrace.broker.metrics.catalog import METRICS, Kind
from headrace.broker.metrics.requests import OTHER_VERSION, RequestCounts
from headrace.broker.partitions.partition import Partition
from headrace.broker.system import SystemClock, system_random
from headrace.metadata.configs import check_broker_configs
from headrace.storage.disk import LocalDisk
from headrace.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from headrace.wire.messages.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from tests.broker import clusters
from tests.broker.data_path import batch, create, fetch, produce, produce_request
from tests.broker.group_broker import QUICK, RawClient, until
from tests.broker.metrics.exposition import Scrape, ask, scrape
from tests.broker.replicas import elect, make_topic, set_isr
from tools.generate_metric_docs import PAGE, page

ROOT = Path(__file__).parents[3]
LISTEN = {"metrics.listen": "127.0.0.1:0"}
OF_THE_LIBRARY = ("process_", "python_")


def port_of(broker: Broker) -> int:
    assert broker.parts.metrics is not None
    assert broker.parts.metrics.endpoint is not None
    return broker.parts.metrics.endpoint.port


@asynccontextmanager
async def running(directory: Path, **configs: str) -> AsyncIterator[tuple[Broker, RawClient]]:
    config = BrokerConfig(data=directory / "data", port=0, configs={**QUICK, **configs})
    async with (
        asyncio.timeout(150),
        Broker(config, clock=SystemClock(), random=system_random(), disk=LocalDisk()) as broker,
        RawClient(f"{broker.host}:{broker.port}") as client,
    ):
        yield broker, client


async def test_what_clients_did_is_counted(tmp_path: Path) -> None:
    async with running(tmp_path, **LISTEN) as (broker, client):
        await create(client, "t", 2)
        sent = batch(*[b"v" * 50] * 7)
        for partition in (0, 1, 1):
            assert (await produce(client, "t", sent, partition=partition)).error_code == 0
        await fetch(client, "t", 0)
        await produce(client, "gone", sent)
        found = await scrape(port_of(broker))
        assert found.value("kafka_server_brokertopicmetrics_messagesin_total", topic="t") == 21
        assert found.value("kafka_server_brokertopicmetrics_bytesin_total", topic="t") == 3 * len(sent)
        assert found.value("kafka_network_requestmetrics_requests_total", request="Produce", version="9") == 4
        assert found.value("kafka_network_requestmetrics_requests_total", request="CreateTopics", version="7") == 1
        errors = "kafka_network_requestmetrics_errors_total"
        assert found.value(errors, request="Produce", error="UNKNOWN_TOPIC_OR_PARTITION") == 1
        assert found.value("kafka_network_requestmetrics_totaltimems_count", request="Produce") == 4
        assert found.value("kafka_network_requestmetrics_totaltimems_count", request="Fetch") == 1
        assert found.value("kafka_network_socketserver_bytesin_total") > 3 * len(sent)
        assert found.value("kafka_network_socketserver_bytesout_total") > len(sent)
        assert found.value("kafka_server_socketservermetrics_connection_count") == 1
        assert found.value("kafka_log_logflushstats_logflushrateandtimems_count") >= 3
        assert found.value("kafka_log_log_size", topic="t", partition="1") == 2 * len(sent)
        assert found.value("kafka_log_log_logendoffset", topic="t", partition="1") == 14
        assert found.value("kafka_server_replicamanager_leadercount") == 2
        assert found.value("kafka_server_replicamanager_partitioncount") == 2
        assert found.value("kafka_controller_kafkacontroller_activecontrollercount") == 1
        assert found.value("kafka_controller_kafkacontroller_globalpartitioncount") == 2
        assert found.value("kafka_controller_kafkacontroller_activebrokercount") == 1
        assert found.value("kafka_server_raftmetrics_current_leader") == 1
        assert found.value("kafka_network_socketserver_memorypoolused") == 0


async def test_what_waits_is_told_and_what_is_deleted_is_not(tmp_path: Path) -> None:
    async with running(tmp_path, **LISTEN) as (broker, client):
        await create(client, "t")
        reader = asyncio.ensure_future(_wait_for_bytes(broker))
        size = "kafka_server_delayedoperationpurgatory_purgatorysize"
        while not (await scrape(port_of(broker))).value(size, delayedoperation="Fetch"):
            pass
        await produce(client, "t", batch(b"v"))
        await reader
        assert (await scrape(port_of(broker))).value(size, delayedoperation="Fetch") == 0
        topics = (DeleteTopicState(name="t"),)
        await client.ask(6, DeleteTopicsRequest(topics=topics, timeout_ms=10_000))
        found = await scrape(port_of(broker))
        assert found.get("kafka_server_brokertopicmetrics_messagesin_total", topic="t") == 0
        assert found.value("kafka_server_replicamanager_partitioncount") == 0


async def _wait_for_bytes(broker: Broker) -> None:
    from headrace.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic

    wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    topics = (FetchTopic(topic="t", partitions=(wanted,)),)
    async with RawClient(f"{broker.host}:{broker.port}") as client:
        await client.ask(11, FetchRequest(max_wait_ms=30_000, min_bytes=1, max_bytes=1 << 20, topics=topics))


async def test_each_metric_is_there_once_and_as_it_is_documented(tmp_path: Path) -> None:
    async with running(tmp_path, **LISTEN) as (broker, client):
        await create(client, "t")
        await produce(client, "gone", batch(b"v"))
        families = (await scrape(port_of(broker))).families
    ours = {name: family for name, family in families.items() if not name.startswith(OF_THE_LIBRARY)}
    written = {metric.name + ("_total" if metric.kind is Kind.COUNTER else ""): metric for metric in METRICS.values()}
    assert ours.keys() == written.keys()
    for name, metric in written.items():
        assert (ours[name].kind, ours[name].doc) == (metric.kind, metric.doc)
        for _, labels in ours[name].samples:
            assert {label for label, _ in labels} - {"le"} == set(metric.labels)
    assert "process_resident_memory_bytes" in families


def test_every_metric_is_documented() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == page(text)
    for metric in METRICS.values():
        assert f"| `{metric.name}` | {metric.kind} |" in text
        assert metric.doc.endswith(".")


def test_the_dashboard_asks_for_what_there_is() -> None:
    dashboard = json.loads((ROOT / "docs" / "grafana" / "headrace.json").read_text(encoding="utf-8"))
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    names = {name for text in asked for name in re.findall(r"\b(?:kafka|headrace|process|python)_\w+", text)}
    suffixes = {
        Kind.COUNTER: ("_total",),
        Kind.GAUGE: ("",),
        Kind.HISTOGRAM: ("_bucket",),
        Kind.SUMMARY: ("_sum", "_count"),
    }
    there = {metric.name + suffix for metric in METRICS.values() for suffix in suffixes[metric.kind]}
    of_a_process = {"process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds"}
    assert len(names) > 20
    assert names - there <= of_a_process
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)


async def test_a_cluster_tells_who_leads_and_who_is_behind(tmp_path: Path) -> None:
    async with clusters.running(tmp_path, 3, LISTEN) as cluster:

        async def all_of_them() -> dict[int, Scrape]:
            return {node: await scrape(port_of(broker)) for node, broker in cluster.brokers.items()}

        key = await make_topic(cluster, "t", 3)
        found = await all_of_them()
        active = [each.value("kafka_controller_kafkacontroller_activecontrollercount") for each in found.values()]
        assert sorted(active) == [0, 0, 1]
        manager = "kafka_server_replicamanager_"
        assert sum(each.value(f"{manager}leadercount") for each in found.values()) == 1
        assert all(each.value(f"{manager}partitioncount") == 1 for each in found.values())
        assert all(each.value(f"{manager}underreplicatedpartitions") == 0 for each in found.values())
        partition = cluster.image(1).partition(key)
        assert partition is not None
        leader = int(partition.leader)
        await set_isr(cluster, key, [leader])
        began = found[leader].value("kafka_server_raftmetrics_high_watermark")
        await cluster.until(leader, lambda image: image.index > began)
        now = (await all_of_them())[leader]
        assert now.value(f"{manager}isrshrinks_total") == found[leader].value(f"{manager}isrshrinks_total") + 1
        others = (each.value(f"{manager}isrshrinks_total") for node, each in found.items() if node != leader)
        assert set(others) == {0}


async def test_what_came_while_it_led_stays_counted(tmp_path: Path) -> None:
    async with clusters.running(tmp_path, 3, LISTEN) as cluster:
        key = await make_topic(cluster, "t", 3)
        partition = cluster.image(1).partition(key)
        assert partition is not None
        was, now = int(partition.leader), next(node for node in (1, 2, 3) if node != partition.leader)
        async with RawClient(str(cluster.address(was))) as client:
            assert (await produce(client, "t", batch(b"v", b"w"))).error_code == 0
        await elect(cluster, key, now)
        partitions = cluster.brokers[now].parts.partitions
        await until(lambda: isinstance(partitions.find(key, cluster.image(now)), Partition))
        async with RawClient(str(cluster.address(now))) as client:
            assert (await produce(client, "t", batch(b"x"))).error_code == 0
        name = "kafka_server_brokertopicmetrics_messagesin_total"
        found = {node: await scrape(port_of(cluster.brokers[node])) for node in (was, now)}
        assert [found[node].value(name, topic="t") for node in (was, now)] == [2, 1]


async def test_nothing_listens_and_nothing_is_counted_unless_told(tmp_path: Path) -> None:
    async with running(tmp_path) as (broker, _):
        assert broker.parts.metrics is None
        assert broker.parts.counts is None
        assert not isinstance(broker.parts.requests.listener.serve, type(lambda: None)), "the dispatcher's own"


@pytest.mark.parametrize("listen", ["9404", "host", "host:", ":9404x", "a b:1"])
def test_where_nobody_can_listen_is_refused(listen: str) -> None:
    with pytest.raises(UsageError, match=r"metrics\.listen"):
        check_broker_configs({"metrics.listen": listen})


async def test_a_taken_port_is_said_in_one_sentence(tmp_path: Path) -> None:
    async with running(tmp_path / "1", **LISTEN) as (broker, _):
        with pytest.raises(UsageError, match=r"choose another metrics\.listen"):
            async with running(tmp_path / "2", **{"metrics.listen": f"127.0.0.1:{port_of(broker)}"}):
                pass


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "HTTP/1.1 404 Not Found"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", "HTTP/1.1 405 Method Not Allowed"),
        (b"\r\n\r\n", "HTTP/1.1 405 Method Not Allowed"),
        (b"GET /metrics?x=y HTTP/1.0\r\nAccept: */*\r\n\r\n", "HTTP/1.1 200 OK"),
        (b"HEAD /metrics HTTP/1.1\r\n\r\n", "HTTP/1.1 200 OK"),
    ],
)
async def test_what_else_is_asked_gets_an_answer(tmp_path: Path, request_: bytes, status: str) -> None:
    async with running(tmp_path, **LISTEN) as (broker, _):
        assert (await ask(port_of(broker), request_))[0] == status


async def test_who_sends_too_much_is_closed_and_a_stop_waits_for_nobody(tmp_path: Path) -> None:
    async with running(tmp_path, **LISTEN) as (broker, _):
        with suppress(ConnectionError):
            assert await ask(port_of(broker), b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 100_000) == ("", "")
        _, idle = await asyncio.open_connection("127.0.0.1", port_of(broker))
        await asyncio.gather(*(scrape(port_of(broker)) for _ in range(5)))
    idle.close()


def test_versions_that_are_not_served_are_counted_as_one() -> None:
    counts = RequestCounts({18: (0, 4)})
    for version in range(200):
        counts.done((18).to_bytes(2, "big") + version.to_bytes(2, "big"), 0.0, [b"xx"])
    counts.done((999).to_bytes(2, "big") + b"\0\0", 0.0, None)
    assert len(counts._by_key) == 5
    assert counts.numbers[18, OTHER_VERSION] == 195
    assert counts.bytes_out == 400


def test_errors_are_found_wherever_they_stand() -> None:
    counts: Any = RequestCounts({})
    parts = tuple(PartitionProduceResponse(index=at, error_code=error) for at, error in enumerate((0, 3, 3, 87)))
    topics = (TopicProduceResponse(name="t", partition_responses=parts),) * 2
    counts.on_response(0, ProduceResponse(responses=topics))
    assert dict(counts.errors) == {(0, 3): 4, (0, 87): 2}


async def test_errors_of_the_short_road_are_counted(tmp_path: Path) -> None:
    """A batch that its partition refuses."""
    async with running(tmp_path, **LISTEN) as (broker, client):
        await create(client, "t", 2, max_message_bytes="100")
        small, big = batch(b"v"), batch(b"v" * 200)
        request = produce_request("t", small)
        (topic,) = request.topic_data
        both = topic._replace(
            partition_data=(
                topic.partition_data[0],
                topic.partition_data[0]._replace(index=1, records=memoryview(big)),
            )
        )
        await client.ask(9, request._replace(topic_data=(both,)))
        found = await scrape(port_of(broker))
        name = "kafka_network_requestmetrics_errors_total"
        assert found.value(name, request="Produce", error="MESSAGE_TOO_LARGE") == 1
