"""Topics are made, and their configs set, by plans."""

from __future__ import annotations

import re
from pathlib import Path

from headrace.net.client.admin import Admin
from headrace.net.client.cluster import Cluster
from tests.broker.replication_world import World
from tests.cli.test_doctor import run
from tests.console.asking import Answer, console_of


def hidden(found: Answer) -> dict[str, str]:
    """The fields of the form that applies a plan."""
    inner = found.body.split("<form method=")[1]
    return dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', inner))


async def config(world: World, topic: str, key: str) -> str | None:
    async with Cluster(world.cluster.bootstrap) as client:
        return next(one.value for one in await Admin(client).topic_configs(topic) if one.name == key)


def test_a_topic_is_made_and_a_config_of_it_is_set_and_unset(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        async with console_of(world.cluster.bootstrap, allows_changes=True) as viewer:
            found = await viewer.get("/topic-create?name=orders&partitions=3")
            assert "A topic orders with 3 partitions, and " in found.text
            assert "headrace topic create orders --partitions 3" in found.text
            assert (await viewer.get("/topics/orders")).status == 404, "a plan makes nothing"
            done = await viewer.post("/topic-create", hidden(found))
            assert (done.status, done.headers["location"]) == (303, "/topics/orders")
            assert (await viewer.post("/topic-create", hidden(found))).status == 303, "the answer of the first time"
            another = {**hidden(found), "token": hidden(await viewer.get("/topic-create?name=other"))["token"]}
            again = await viewer.post("/topic-create", another)
            assert (again.status, "already exists" in again.text) == (409, True)
            assert 'role="alert"' in (await viewer.get("/topic-create?name=a/b")).body
            await world.cluster.agree()

            found = await viewer.get("/topic-config?topic=orders&key=retention.ms&value=60000")
            assert found.rows[0][:3] == ["retention.ms", "604800000", "60000"]
            assert "headrace config set topic orders retention.ms=60000" in found.text
            assert await config(world, "orders", "retention.ms") == "604800000"
            seen_before = hidden(found)
            assert (await viewer.post("/topic-config", seen_before)).status == 303
            assert await config(world, "orders", "retention.ms") == "60000"
            fresh = hidden(await viewer.get("/topic-create?name=other"))["token"]
            refused = await viewer.post("/topic-config", {**seen_before, "token": fresh})
            assert (refused.status, "It is so already" in refused.text) == (409, True)
            found = await viewer.get("/topic-config?topic=orders&key=retention.ms&value=")
            assert "headrace config unset topic orders retention.ms" in found.text
            assert (await viewer.post("/topic-config", hidden(found))).status == 303
            assert await config(world, "orders", "retention.ms") == "604800000"
            for wrong in ("key=no.such", "key=retention.ms&value=soon"):
                assert 'role="alert"' in (await viewer.get(f"/topic-config?topic=orders&{wrong}")).body

    run(tmp_path, work)
