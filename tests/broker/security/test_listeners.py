"""Several named listeners: their configs, and that a client is told the addresses of the listener that it came by."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from random import SystemRandom

import pytest

from headrace.base.addresses import Address
from headrace.base.errors import UsageError
from headrace.base.ids import BrokerId
from headrace.broker.boot import Broker
from headrace.broker.config import BrokerConfig
from headrace.broker.home.ports import HeldPorts
from headrace.broker.listeners import INSECURE, SecurityProtocol, read_listeners
from headrace.broker.system import SystemClock, system_random
from headrace.net.client.cluster import Cluster
from headrace.operations.diagnosis import findings
from headrace.operations.opened import OPENED
from headrace.storage.commit_log import MemberStatus
from headrace.storage.disk import LocalDisk
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.describe_cluster import DescribeClusterRequest
from headrace.wire.messages.find_coordinator import FindCoordinatorRequest
from headrace.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.broker.data_path import batch, produce_request
from tests.broker.group_broker import QUICK, RawClient, until
from tests.loops import run
from tools.engine_under_test import is_redis

HERE = Address("127.0.0.1", 9092)
TWO = "CLIENT://127.0.0.1:0,BROKERS://127.0.0.1:0"
MAP = "CLIENT:PLAINTEXT,BROKERS:PLAINTEXT"


@pytest.mark.parametrize(
    ("configs", "bound", "told", "inter_broker"),
    [
        ({}, ["PLAINTEXT://127.0.0.1:9092"], ["127.0.0.1:9092"], "PLAINTEXT"),
        (
            {"listeners": "plaintext://h:1,SSL://[::1]:2"},
            ["PLAINTEXT://h:1", "SSL://[::1]:2"],
            ["h:1", "[::1]:2"],
            "PLAINTEXT",
        ),
        (
            {"listeners": "SSL://10.0.0.1:1, PLAINTEXT://[::1]:1", "security.inter.broker.protocol": "SSL"},
            ["SSL://10.0.0.1:1", "PLAINTEXT://[::1]:1"],
            ["10.0.0.1:1", "[::1]:1"],
            "SSL",
        ),
        (
            {
                "listeners": "A://:1,B://0.0.0.0:2",
                "advertised.listeners": "B://b.example:9,A://a.example:0",
                "listener.security.protocol.map": "a:PLAINTEXT,B:ssl",
                "inter.broker.listener.name": "b",
            },
            ["A://:1", "B://0.0.0.0:2"],
            ["a.example:0", "b.example:9"],
            "B",
        ),
        ({"listeners": "SSL://h:1"}, ["SSL://h:1"], ["h:1"], "SSL"),
        (
            {"listeners": "PLAINTEXT://h:1,SSL://h:2", "advertised.listeners": "SSL://h:3"},
            ["PLAINTEXT://h:1", "SSL://h:2"],
            [None, "h:3"],
            "SSL",
        ),
    ],
)
def test_listeners_are_read(
    configs: Mapping[str, str], bound: list[str], told: list[str | None], inter_broker: str
) -> None:
    found = read_listeners(configs, bound=HERE, advertised=None)
    assert [str(each) for each in found.all] == bound
    assert [None if each.advertised is None else str(each.advertised) for each in found.all] == told
    assert found.inter_broker == inter_broker


@pytest.mark.parametrize(
    ("configs", "words"),
    [
        ({"listeners": ""}, "names no listener"),
        ({"listeners": "127.0.0.1:9092"}, "a list of NAME://HOST:PORT"),
        ({"listeners": "PLAINTEXT://127.0.0.1"}, "gives no port for PLAINTEXT"),
        ({"listeners": "PLAINTEXT://127.0.0.1:99999"}, "is not an address"),
        ({"listeners": "PLAINTEXT://::1:9092"}, "is not an address"),
        ({"listeners": "a b://127.0.0.1:1"}, "a list of NAME://HOST:PORT"),
        ({"listeners": "SSL://h:1,ssl://h:2"}, "a different name"),
        ({"listeners": "SSL://h:1,PLAINTEXT://h:1"}, "a different port"),
        ({"listeners": "SSL://10.0.0.1:1,PLAINTEXT://10.0.0.2:1"}, "a different port"),
        ({"listeners": "CLIENT://h:1"}, "No security protocol is defined for listener CLIENT"),
        ({"listener.security.protocol.map": "SSL:SSL"}, "No security protocol is defined for listener PLAINTEXT"),
        ({"listener.security.protocol.map": "PLAINTEXT:TLS"}, "the protocol 'TLS': choose one of PLAINTEXT"),
        ({"listener.security.protocol.map": "PLAINTEXT"}, "a list of NAME:PROTOCOL"),
        ({"listeners": "PLAINTEXT://0.0.0.0:1"}, "add advertised.listeners with PLAINTEXT://HOST:PORT"),
        ({"listeners": "PLAINTEXT://:1"}, "every address of this machine"),
        ({"advertised.listeners": "SSL://h:1"}, "names SSL, but listeners only PLAINTEXT"),
        ({"advertised.listeners": "PLAINTEXT://0.0.0.0:1"}, "to which nobody can connect"),
        ({"advertised.listeners": "PLAINTEXT://h:1,PLAINTEXT://h:2"}, "a different name"),
        (
            {"inter.broker.listener.name": "SSL", "security.inter.broker.protocol": "SSL"},
            "Only one of inter.broker.listener.name and security.inter.broker.protocol",
        ),
        ({"inter.broker.listener.name": "SSL"}, "SSL is not: choose one of PLAINTEXT"),
        ({"inter.broker.listener.name": "OTHER"}, "has no security protocol"),
        ({"listeners": "SSL://h:1,SASL_SSL://h:2"}, "inter.broker.listener.name has to be"),
    ],
)
def test_what_cannot_be_is_told_in_one_sentence(configs: Mapping[str, str], words: str) -> None:
    with pytest.raises(UsageError) as refused:
        read_listeners(configs, bound=HERE, advertised=None)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("key", "is_refused"),
    [
        ("listener.name.clients.ssl.client.auth", False),
        ("listener.name.metrics.ssl.keystore.location", False),
        ("ssl.client.auth", False),
        ("listener.name.client.ssl.client.auth", True),
        ("listener.name.CLIENTS.ssl.client.auth", True),
        ("listener.name.plaintext.plain.sasl.jaas.config", True),
    ],
)
def test_a_config_for_a_listener_that_there_is_not_is_refused(key: str, is_refused: bool) -> None:
    """Else a mistyped name would leave a listener without its protection."""
    named = {"listeners": "CLIENTS://127.0.0.1:1", "listener.security.protocol.map": "CLIENTS:PLAINTEXT"}
    config = BrokerConfig(data=Path("data"), configs={**named, key: "required"})
    if is_refused:
        with pytest.raises(UsageError, match=r"is for no listener of this broker: .* comes one of clients\.$"):
            config.check_addresses()
    else:
        config.check_addresses()


TLS = {"listeners": "SSL://h:1"}
CERTIFIED = {**TLS, "ssl.client.auth": "required"}


@pytest.mark.parametrize(
    ("configs", "is_open"),
    [
        ({}, False),
        ({"listeners": "PLAINTEXT://[::1]:1,SSL://localhost:2"}, False),
        ({"listeners": "PLAINTEXT://h:1"}, True),
        ({"listeners": "PLAINTEXT://:1", "advertised.listeners": "PLAINTEXT://localhost:1"}, True),
        ({"listeners": "PLAINTEXT://127.0.0.1:1,SSL://10.0.0.1:2"}, True),
        (TLS, True),
        ({**TLS, "ssl.client.auth": "requested"}, True),
        (CERTIFIED, False),
        ({**CERTIFIED, "listener.name.ssl.ssl.client.auth": "none"}, True),
        ({**TLS, "listener.name.ssl.ssl.client.auth": "required"}, False),
        ({"listeners": "SASL_PLAINTEXT://h:1,PLAINTEXT://127.0.0.1:2"}, False),
        ({"listeners": "PLAINTEXT://h:1", "ssl.client.auth": "required"}, True),
        ({"listeners": "PLAINTEXT://h:1", INSECURE: "True"}, False),
        ({"listeners": "PLAINTEXT://h:1", INSECURE: "false"}, True),
    ],
)
def test_strangers_are_served_by_no_listener_unless_that_is_accepted(configs: Mapping[str, str], is_open: bool) -> None:
    config = BrokerConfig(data=Path("data"), configs=configs)
    if is_open:
        with pytest.raises(UsageError, match=r"or accept that with --insecure\.$"):
            config.check_addresses()
    else:
        config.check_addresses()


def test_doctor_names_open_listeners(tmp_path: Path) -> None:
    """They have been accepted, so nothing is wrong."""
    configs = {
        "listeners": "OPEN://0.0.0.0:0,SAFE://127.0.0.1:0",
        "listener.security.protocol.map": "OPEN:PLAINTEXT,SAFE:PLAINTEXT",
        "advertised.listeners": "OPEN://127.0.0.1:0,SAFE://127.0.0.1:0",
        "inter.broker.listener.name": "SAFE",
        INSECURE: "true",
    }

    async def work() -> None:
        async with brokers(tmp_path, configs) as (broker,):
            for name in ("OPEN", "SAFE"):
                reach = partial(Cluster, str(broker.addresses[name]))
                found = [each for each in await findings(reach) if each.kind == OPENED]
                (one,) = found
                assert (one.subject, one.is_wrong) == ("broker 1", False)
                assert one.text.startswith("listener OPEN://0.0.0.0:0 asks nobody who it is")

    run(work())


def test_a_listener_has_one_form() -> None:
    with pytest.raises(UsageError, match=r"set advertised\.listeners beside listeners"):
        read_listeners({"listeners": "PLAINTEXT://h:1"}, bound=HERE, advertised=HERE)
    with pytest.raises(UsageError, match="leave one of them out"):
        read_listeners({"advertised.listeners": "PLAINTEXT://h:1"}, bound=HERE, advertised=HERE)


def test_a_protocol_tells_what_it_has() -> None:
    assert [each.name for each in SecurityProtocol if each.has_tls] == ["SSL", "SASL_SSL"]
    assert [each.name for each in SecurityProtocol if each.has_sasl] == ["SASL_PLAINTEXT", "SASL_SSL"]


@asynccontextmanager
async def brokers(directory: Path, *configs: Mapping[str, str]) -> AsyncIterator[list[Broker]]:
    """Brokers 1, 2, ... with these configs, as one cluster: each joins the first where brokers reach each other."""
    async with AsyncExitStack() as stack:
        running: list[Broker] = []
        for number, each in enumerate(configs, 1):
            name = each.get("inter.broker.listener.name", "PLAINTEXT")
            join = (running[0].addresses[name],) if running else ()
            running.append(await stack.enter_async_context(broker_of(directory, number, each, join)))
        yield running


def broker_of(directory: Path, number: int, configs: Mapping[str, str], join: tuple[Address, ...] = ()) -> Broker:
    config = BrokerConfig(
        data=directory / str(number), port=0, broker_id=BrokerId(number), join=join, configs={**QUICK, **configs}
    )
    return Broker(config, clock=SystemClock(), random=system_random(), disk=LocalDisk())


def ports_of(running: list[Broker], name: str) -> dict[int, int]:
    return {number: broker.addresses[name].port for number, broker in enumerate(running, 1) if name in broker.addresses}


@pytest.mark.skipif(is_redis(), reason="brokers on Redis take no --join")
def test_a_client_is_told_the_addresses_of_its_listener(tmp_path: Path) -> None:
    configs = {"listeners": TWO, "listener.security.protocol.map": MAP, "inter.broker.listener.name": "BROKERS"}

    async def work() -> None:
        async with brokers(tmp_path, configs, configs) as running:
            await until(lambda: all(len(broker.image.live_brokers()) == 2 for broker in running))
            async with RawClient(str(running[0].addresses["CLIENT"])) as client:
                await client.create_topic("t", partitions=2)
            for name in ("CLIENT", "BROKERS"):
                wanted = ports_of(running, name)
                for broker in running:
                    async with RawClient(str(broker.addresses[name])) as client:
                        await told_everywhere(client, wanted)

    run(work())


@pytest.mark.skipif(is_redis(), reason="there, the metadata is in Redis")
def test_brokers_that_were_all_stopped_find_each_other_by_the_listener_of_brokers(tmp_path: Path) -> None:
    """By what the log of the metadata tells: nobody is told whom to join."""
    held = HeldPorts.free("127.0.0.1", 6, SystemRandom())
    ports = iter(held.numbers)
    configs = [
        {
            "listeners": f"CLIENT://127.0.0.1:{next(ports)},BROKERS://127.0.0.1:{next(ports)}",
            "listener.security.protocol.map": MAP,
            "inter.broker.listener.name": "BROKERS",
        }
        for _ in range(3)
    ]

    async def work() -> None:
        async with brokers(tmp_path, *configs) as running:
            await until(lambda: all(len(broker.image.live_brokers()) == 3 for broker in running))
            await until(lambda: sum(member.is_voter for member in members(running)) == 3)
        again = [broker_of(tmp_path, number, each) for number, each in enumerate(configs, 1)]
        await asyncio.gather(*(broker.start() for broker in again))
        await until(lambda: all(len(broker.image.live_brokers()) == 3 for broker in again))
        for broker in again:
            await broker.stop()

    run(work())
    held.release()


def members(running: list[Broker]) -> list[MemberStatus]:
    """As the controller has them."""
    return [
        member
        for broker in running
        if broker.parts.metadata.is_controller
        for member in broker.parts.metadata.quorum().members
    ]


async def told_everywhere(client: RawClient, wanted: Mapping[int, int]) -> None:
    metadata = await client.ask(12, MetadataRequest(topics=(MetadataRequestTopic(name="t"),)))
    assert {each.node_id: each.port for each in metadata.brokers} == wanted
    described = await client.ask(2, DescribeClusterRequest())
    assert {each.broker_id: each.port for each in described.brokers} == wanted
    (one,) = (await client.ask(4, FindCoordinatorRequest(coordinator_keys=("g",)))).coordinators
    assert wanted[one.node_id] == one.port
    told = []
    for partition in range(2):  # by the short road, as plain as it is
        answer = await client.ask(12, produce_request("t", batch(b"v"), partition=partition))
        (part,) = answer.responses[0].partition_responses
        told += [(each.node_id, each.port) for each in answer.node_endpoints]
        assert part.error_code in (ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert [wanted[node] for node, _ in told] == [port for _, port in told]
    assert len(told) == 1, "each leads one of the two"


@pytest.mark.skipif(is_redis(), reason="brokers on Redis take no --join")
def test_a_broker_without_the_listener_is_not_told_to_its_clients(tmp_path: Path) -> None:
    """As Kafka's metadata cache: the partitions that it leads have no leader for them, and v6 says why."""
    both = {"listeners": TWO, "listener.security.protocol.map": MAP, "inter.broker.listener.name": "BROKERS"}
    one = {**both, "listeners": "BROKERS://127.0.0.1:0"}

    async def work() -> None:
        async with brokers(tmp_path, both, one) as running:
            await until(lambda: all(len(broker.image.live_brokers()) == 2 for broker in running))
            async with RawClient(str(running[0].addresses["CLIENT"])) as client:
                await client.create_topic("t", partitions=2)
                assert await leaders(client, 5) == {(1, ErrorCode.NONE), (-1, ErrorCode.LEADER_NOT_AVAILABLE)}
                assert await leaders(client, 6) == {(1, ErrorCode.NONE), (-1, ErrorCode.LISTENER_NOT_FOUND)}
                described = await client.ask(2, DescribeClusterRequest())
                assert [each.broker_id for each in described.brokers] == [1]
            async with RawClient(str(running[0].addresses["BROKERS"])) as client:
                assert await leaders(client, 6) == {(1, ErrorCode.NONE), (2, ErrorCode.NONE)}

    run(work())


async def leaders(client: RawClient, version: int) -> set[tuple[int, int]]:
    told = await client.ask(version, MetadataRequest(topics=(MetadataRequestTopic(name="t"),)))
    return {(part.leader_id, part.error_code) for part in told.topics[0].partitions}


def test_a_taken_port_is_told(tmp_path: Path) -> None:
    async def work() -> None:
        async with brokers(tmp_path, {}) as (first,):
            taken = f"PLAINTEXT://127.0.0.1:0,SSL://{first.address}"
            protocols = {"listeners": taken, "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SSL:PLAINTEXT"}
            with pytest.raises(UsageError, match=f"Cannot listen on {first.address}"):
                async with brokers(tmp_path / "other", protocols):
                    pass

    run(work())
