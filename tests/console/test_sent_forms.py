"""A form changes something once, and records before an offset are deleted by a plan with the topic's name typed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from starlette.responses import PlainTextResponse, Response
from structlog.testing import capture_logs

from headrace.base.limits import CONSOLE_SENT_FORMS_MAX
from headrace.console.sent import Sent
from headrace.net.client.admin import Admin
from headrace.net.client.cluster import Cluster
from headrace.net.client.offsets import EARLIEST, LATEST
from headrace.net.client.producer import Producer
from headrace.operations.histories import offsets_of
from tests.broker.replication_world import World
from tests.cli.test_doctor import run
from tests.console.asking import Answer, console_of, hidden_of


async def ends(bootstrap: str) -> tuple[int, int]:
    async with Cluster(bootstrap) as client:
        first, end = [(await offsets_of(client, "t", [0], at))[0] for at in (EARLIEST, LATEST)]
    return first, end


async def make(bootstrap: str, records: int) -> None:
    async with Cluster(bootstrap) as client:
        await Admin(client).create_topic("t", partitions=1, replication_factor=1)
        async with Producer(client) as producer:
            for number in range(records):
                await producer.send("t", value=b"%d" % number, timestamp_ms=1)


def test_a_form_that_is_sent_twice_writes_its_record_once(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        at = world.cluster.bootstrap
        await make(at, 0)
        async with console_of(at, allows_changes=True) as viewer:
            wish = await viewer.form("/record-produce?topic=t")
            asked = {"topic": "t", "partition": "", "key": "k", "kind": "text", "value": "v", "headers": "", **wish}
            planned = await viewer.post("/record-produce", asked)
            form = _applying(planned.body)
            with capture_logs() as logs:
                answers = await asyncio.gather(*(viewer.post("/record-produce", form) for _ in range(3)))
                answers.append(await viewer.post("/record-produce", form))
            assert [each.status for each in answers] == [303] * 4
            assert [each["outcome"] for each in logs if each["event"] == "a change by the console"] == ["done"]
            assert await ends(at) == (0, 1)
            again = _applying((await viewer.post("/record-produce", asked)).body)
            assert (await viewer.post("/record-produce", again)).status == 303, "another form is another wish"
            assert await ends(at) == (0, 2)

    run(tmp_path, work)


def _applying(body: str) -> dict[str, str]:
    """The fields of the form that applies a plan."""
    return hidden_of(Answer(200, {}, body), "Apply")


def test_records_before_an_offset_go_with_the_topics_name_typed(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        at = world.cluster.bootstrap
        await make(at, 10)
        async with console_of(at, allows_changes=True) as viewer:
            assert 'href="/records-delete?topic=t"' in (await viewer.get("/topics/t")).body
            found = await viewer.get("/records-delete?topic=t&partition=0&before=4")
            assert found.rows == [["t", "0", "4"]]
            assert "4 offsets go." in found.text
            assert "headrace topic delete-records t --partition 0 --before 4 --execute" in found.text
            assert await ends(at) == (0, 10), "a plan deletes nothing"
            form = _applying(found.body)
            for wrong in ("", "T"):
                refused = await viewer.post("/records-delete", {**form, "typed": wrong})
                assert (refused.status, "type the name 't'" in refused.text) == (409, True)
            assert (await viewer.post("/records-delete", {**form, "typed": "t"})).headers["location"] == "/topics/t"
            assert await ends(at) == (4, 10)
            for before, says in (("4", "begins at offset 4"), ("11", "ends at offset 10"), ("x", "is no offset")):
                found = await viewer.get(f"/records-delete?topic=t&partition=0&before={before}")
                assert (says in found.text, "Apply:" in found.text) == (True, False), before
            assert "has partitions 0 to 0" in (await viewer.get("/records-delete?topic=t&partition=1&before=1")).text
            form = _applying((await viewer.get("/records-delete?topic=t&partition=0&before=end")).body)
            assert form["before"] == "end"
            await viewer.post("/records-delete", {**form, "typed": "t"})
            assert await ends(at) == (10, 10)

    run(tmp_path, work)


async def test_a_form_that_changed_nothing_may_be_sent_again_and_forms_are_bounded() -> None:
    sent, made = Sent(), list[str]()

    async def once(name: str, *, changes: bool = True) -> bytes:
        async def answer() -> tuple[Response, bool]:
            made.append(name)
            return PlainTextResponse(name), changes

        return bytes((await sent.once(name, answer)).body)

    assert [await once("a", changes=False), await once("a"), await once("a")] == [b"a"] * 3
    assert made == ["a", "a"]

    async def fails() -> tuple[Response, bool]:
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        await sent.once("b", fails)
    assert b"its outcome is not known" in await once("b")
    for number in range(CONSOLE_SENT_FORMS_MAX):
        await once(f"{number}")
    assert await once("a") == b"a"
    assert made.count("a") == 3, "it was forgotten"
