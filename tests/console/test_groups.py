"""Groups on pages, and new offsets: a plan changes nothing, and only the plan that was seen is carried out."""

from __future__ import annotations

import re
from pathlib import Path

from headrace.net.client.cluster import Cluster
from headrace.net.client.groups import Groups, TopicPartition
from tests.broker.replication_world import World
from tests.cli.test_doctor import run
from tests.console.asking import Viewer, console_of, fresh
from tests.console.test_records import write

PLACE = TopicPartition("t", 0)


async def commit(world: World, offset: int) -> None:
    async with Cluster(world.cluster.bootstrap) as client:
        await Groups(client).commit("billing", {PLACE: offset, TopicPartition("t", 1): 10})


async def committed(world: World) -> int:
    async with Cluster(world.cluster.bootstrap) as client:
        return (await Groups(client).committed("billing"))[PLACE]


async def plan(viewer: Viewer, query: str) -> dict[str, str]:
    """The fields of the form that applies it."""
    found = await viewer.get(f"/group-reset?group=billing&{query}")
    hidden = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', found.body.split("<form method=")[1])
    return {**dict(hidden), "typed": "billing"}


def test_groups_are_listed_with_their_lag_and_shown_one_by_one(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        await world.make("t", partitions=2)
        await write(world, "t", 20)
        await commit(world, 4)
        async with console_of(world.cluster.bootstrap) as viewer:
            await viewer.console.seen.settled(60_000)
            await fresh(viewer.console.seen)
            (row,) = (await viewer.get("/groups")).rows
            assert (row[0], row[1], row[2], row[5]) == ("billing", "Empty", "6", "1")
            found = await viewer.get("/groups/billing")
            assert [row[:2] for row in found.rows] == [["t-0", "6"], ["t-1", "0"]]
            assert "Lag 6 records" in found.text
            assert (await viewer.get("/charts/lag?group=billing")).body.endswith("[6]]}")
            assert "There is no group 'away'" in (await viewer.get("/groups/away")).text
            assert (await viewer.get("/topics?q=t")).rows[0][6] == "6"

    run(tmp_path, work)


def test_offsets_are_set_by_the_plan_that_was_seen_and_by_no_other(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        await world.make("t", partitions=2)
        await write(world, "t", 20)
        await commit(world, 4)
        async with console_of(world.cluster.bootstrap, allows_changes=True) as viewer:
            found = await viewer.get("/group-reset?group=billing&to=shift&value=-3&topics=t:0")
            assert found.rows == [["t-0", "4", "1", "-3"]]
            command = "headrace group reset-offsets billing --topic t:0 --shift-by -3 --execute"
            assert command in found.text
            form = await plan(viewer, "to=shift&value=-3&topics=t:0")
            assert await committed(world) == 4, "a plan changes nothing"
            await commit(world, 5)
            refused = await viewer.post("/group-reset", form)
            assert (refused.status, "The plan is another one by now" in refused.text) == (409, True)
            assert await committed(world) == 5
            form = await plan(viewer, "to=shift&value=-3&topics=t:0")
            for typed in ("", "Billing", "billings"):
                refused = await viewer.post("/group-reset", {**form, "typed": typed})
                assert (refused.status, "type the name 'billing'" in refused.text) == (409, True)
            done = await viewer.post("/group-reset", form)
            assert (done.status, done.headers["location"]) == (303, "/groups/billing")
            assert await committed(world) == 2
            assert (await viewer.post("/group-reset", {**form, "token": "x"})).status == 409
            for wrong in ("to=offset&value=x", "to=datetime&value=soon", "to=nowhere", "to=latest&topics=t:7"):
                assert (
                    '<p class="note warn" role="alert">'
                    in (await viewer.get(f"/group-reset?group=billing&{wrong}")).body
                )

    run(tmp_path, work)


def test_a_console_that_may_change_nothing_shows_plans_and_refuses_changes(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        await world.make("t", partitions=2)
        await write(world, "t", 20)
        await commit(world, 4)
        async with console_of(world.cluster.bootstrap) as viewer:
            found = await viewer.get("/group-reset?group=billing&to=earliest")
            assert found.rows[0] == ["t-0", "4", "0", "-4"]
            assert "This console is read-only" in found.text
            assert "<form method=" not in found.body
            form = {"group": "billing", "to": "earliest", "topics": "", "value": "", "plan": "", "token": ""}
            refused = await viewer.post("/group-reset", form)
            assert (refused.status, "read-only" in refused.text) == (403, True)
            assert (await viewer.post("/move", {"topic": "t", "to": "1"})).status == 403
            assert await committed(world) == 4

    run(tmp_path, work)
