"""The overview of real brokers: well, with one that is down, and away."""

from __future__ import annotations

from pathlib import Path

from headrace.console.charts.hour import Series
from headrace.console.state import Flows
from headrace.net.client.cluster import Cluster
from headrace.net.client.producer import Producer
from headrace.operations.flows import Counted, Flow, flow
from headrace.testing import BrokerThread
from tests.broker.replication_world import World
from tests.cli.test_doctor import others, run
from tests.console.asking import console_of, fresh
from tools.servers.server_process import port_held_for


def test_a_cluster_that_is_well_is_told_in_figures(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        await world.make("t", partitions=4)
        async with console_of(world.cluster.bootstrap) as viewer:
            await viewer.console.checked.settled(60_000)
            found = await viewer.get("/")
        assert found.status == 200
        for text in ("Nothing is wrong", "3 of 3 live", "4 of 1 topics", "3 voters: bears the loss of 1 more"):
            assert text in found.text
        assert found.rows[0][1:3] in (["live", "controller voter"], ["live", "voter"])
        assert "0 offline, 0 under-replicated" in found.text

    run(tmp_path, work)


def test_a_broker_that_is_down_is_told_to_open_pages_with_the_command_that_helps(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        await world.make("t")
        away = others(world.leader("t"))[0]
        async with console_of(world.cluster.bootstrap) as viewer, viewer.stream("/live/") as events:
            while "3</b> of 3 live" not in await events.get():
                pass
            await world.fence(away)
            viewer.console.seen.want()
            while "2</b> of 3 live" not in (part := await events.get()):
                pass
            assert f"lacks broker {away}" in part
            while "broker down" not in part:
                part = await events.get()
            assert f"<code>headrace broker remove {away}</code>" in part

    run(tmp_path, work)


def test_a_cluster_that_does_not_answer_is_told_of_with_what_to_do_and_then_shown(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        await world.make("t")
        nobody = "127.0.0.1:1"
        async with console_of(nobody) as viewer:
            found = await viewer.get("/")
            assert found.status == 503
            assert "The cluster does not answer" in found.text
            assert f"No broker answers at {nobody}" in found.text
            assert 'hx-sse:connect="/live/"' in found.body, "it asks again by itself"
        async with console_of(world.cluster.bootstrap) as viewer, viewer.stream("/live/") as events:
            while "3</b> of 3 live" not in await events.get():
                pass
            viewer.console.cluster._bootstrap = ()
            await world.stop(1, 2, 3)
            viewer.console.seen.want()
            while "No news since" not in (part := await events.get()):
                viewer.console.seen.want()
            assert "of 3 live" in part, "what was known is still shown"

    run(tmp_path, work)


def test_the_chart_has_each_look_once_and_goes_on_where_the_page_is(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        await world.make("t")
        async with console_of(world.cluster.bootstrap) as viewer:
            await viewer.console.seen.settled(60_000)
            async with Cluster(world.cluster.bootstrap) as client, Producer(client) as producer:
                await producer.send("t", value=b"v", timestamp_ms=1)
            await fresh(viewer.console.seen)
            assert viewer.console.charts.written.columns()[1][-1] > 0
            times = viewer.console.charts.throughput(0)["data"][0]
            assert viewer.console.charts.throughput(times[-1])["data"] == [[], [], []]
            assert (await viewer.get(f"/charts/throughput?since={times[-1]}")).status == 200

    run(tmp_path, work)


def test_a_series_keeps_an_hour() -> None:
    series = Series()
    for second in range(0, 4_000, 100):
        series.add(second * 1_000, second)
    assert series.columns()[0][0] == 300.0
    assert series.spark()[0][0] == 0.0
    assert series.spark()[-1] == (1.0, 1.0)


async def test_bytes_in_and_out_are_those_of_the_brokers_metrics() -> None:
    port = port_held_for(test_bytes_in_and_out_are_those_of_the_brokers_metrics)
    with BrokerThread(configs={"metrics.listen": f"127.0.0.1:{port}"}) as broker:
        async with console_of(broker.bootstrap) as viewer:
            await viewer.console.flows.settled(60_000)
            assert viewer.console.flows.value == Flows(None), "it is the first look"
            await fresh(viewer.console.flows)
            told = viewer.console.flows.value
            assert told is not None
            found = told.flow
            assert found is not None
            assert (found.brokers, found.received > 0, found.sent > 0) == (1, True, True)
            assert "/s in," in (await viewer.get("/")).text


def test_a_broker_that_began_again_sends_nothing_less_than_nothing() -> None:
    assert flow({1: Counted(50, 50), 2: Counted(1, 1)}, {1: Counted(10, 70), 3: Counted(9, 9)}, 2) == Flow(0, 10, 1)
    assert flow({}, {1: Counted(1, 1)}, 2) is None
