"""Records on a page: where it begins, what it finds, how bytes are shown, and those that come while it is open."""

from __future__ import annotations

import asyncio
import html
import json
import os
import re
import shlex
import sys
import threading
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.limits import CONSOLE_READERS_MAX, CONSOLE_VALUE_BYTES_MAX, EXPRESSION_CHARS_MAX
from headrace.console.bytes_shown import Form, preview, shown
from headrace.console.pages import records
from headrace.net.client.admin import Admin
from headrace.net.client.cluster import Cluster
from headrace.net.client.producer import Producer
from headrace.net.client.view import ClusterView
from headrace.operations.expressions import Expression
from headrace.operations.reading import Placed
from tests.broker.replication_world import World
from tests.cli.test_doctor import run
from tests.console.asking import Answer, console_of, fresh

START_MS = 1_700_000_000_000


def places(found: Answer) -> list[str]:
    """Partition and offset of each record that a page shows."""
    return [piece.split("<")[0] for piece in found.body.split('title="partition and offset">')[1:]]


async def send(world: World, *values: object, **more: Any) -> None:
    """Records with these values as JSON, in partition 0 of topic `t`."""
    async with Cluster(world.cluster.bootstrap) as client, Producer(client) as producer:
        for value in values:
            await producer.send("t", value=json.dumps(value).encode(), partition=0, timestamp_ms=START_MS, **more)


async def write(world: World, topic: str, count: int, first: int = 0) -> None:
    """Records of one second each, in partitions in turn, with keys of which each comes four times."""
    async with Cluster(world.cluster.bootstrap) as client, Producer(client) as producer:
        for number in range(first, first + count):
            key, value = b"key-%d" % (number // 4), json.dumps({"number": number}).encode()
            at = START_MS + 1_000 * number
            await producer.send(
                topic, value=value, key=key, partition=number % 2, timestamp_ms=at, headers=(("h", b"\xff"),)
            )


def test_a_page_begins_where_it_is_asked_to(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        await world.make("t", partitions=2)
        await write(world, "t", 20)
        async with console_of(world.cluster.bootstrap) as viewer:
            root = "/topics/t/records"
            assert places(await viewer.get(f"{root}?count=3")) == ["1:9", "0:9", "1:8"]
            assert places(await viewer.get(f"{root}?count=3&at=oldest")) == ["0:0", "1:0", "0:1"]
            found = await viewer.get(f"{root}?count=3&at=offset&offset=4&partition=1")
            assert places(found) == ["1:4", "1:5", "1:6"]
            assert f"{root}?count=3&amp;at=offset&amp;offset=7&amp;partition=1" in found.body, "the next page"
            assert f"{root}?count=3&amp;at=offset&amp;offset=1&amp;partition=1" in found.body, "the page before"
            found = await viewer.get(f"{root}?at=time&time=2023-11-14T22:13:35")
            assert places(found) == ["1:7", "0:8", "1:8", "0:9", "1:9"]
            found = await viewer.get(f"{root}?key=key-3&at=oldest")
            assert places(found) == ["0:6", "1:6", "0:7", "1:7"]
            assert '"number": 12' in found.text, "JSON is laid out"
            assert "headrace consume t" in found.text
            assert "No record with this key was found 20 records were read" in (await viewer.get(f"{root}?key=no")).text
            for wrong in ("partition=9", "partition=x", "at=time&time=soon", "at=time&time=9999-12-31T23:59-14:00"):
                assert (await viewer.get(f"{root}?{wrong}")).status == 400
            assert (await viewer.get("/topics/away/records")).status == 404

    run(tmp_path, work)


def test_records_that_come_while_a_page_is_open_are_shown(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        await world.make("t", partitions=2)
        await write(world, "t", 4)
        async with console_of(world.cluster.bootstrap) as viewer:
            assert (
                'hx-sse:connect="/tail/topics/t/records?live=1"' in (await viewer.get("/topics/t/records?live=1")).body
            )
            async with viewer.stream("/tail/topics/t/records?key=key-1") as events:
                while events.empty():  # records that were written before the stream began are not its
                    await write(world, "t", 4, 4)
                assert {place.split(":")[0] for place in places(Answer(200, {}, await events.get()))} <= {"0", "1"}

    run(tmp_path, work)


@given(st.binary(max_size=200))
def test_all_bytes_can_be_shown_in_every_form(data: bytes) -> None:
    for form in Form:
        found = shown(data, form)
        assert found.left_out == 0
        if found.form == "text":
            assert found.text.encode() == data
        if found.form == "hex":
            dumped = "".join(line[8:].split("   ")[0].split("  ")[0] for line in found.text.splitlines())
            assert bytes.fromhex(dumped.replace(" ", "")) == data
    assert len(preview(data)) < 500


@pytest.mark.parametrize(
    ("data", "form", "kind"),
    [
        (None, Form.AUTO, "null"),
        (b"", Form.AUTO, "empty"),
        (b'{"a":1}', Form.AUTO, "json"),
        (b'{"a":1}', Form.TEXT, "text"),
        (b'{"a":1}', Form.HEX, "hex"),
        (b'{"a":', Form.JSON, "text"),
        ("zażółć".encode(), Form.AUTO, "text"),
        (b"\0\1", Form.AUTO, "hex"),
        (b"[" * 100_000, Form.AUTO, "text"),
    ],
)
def test_bytes_are_shown_as_what_they_are(data: bytes | None, form: Form, kind: str) -> None:
    assert shown(data, form).form == kind


def test_long_bytes_are_cut_and_it_is_said() -> None:
    found = shown("ż".encode() * CONSOLE_VALUE_BYTES_MAX, Form.AUTO)
    assert (found.form, found.left_out) == ("text", CONSOLE_VALUE_BYTES_MAX)
    assert preview(b"x" * 1_000).endswith(" …")


def test_pages_of_new_records_keep_no_other_page_waiting_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(world: World) -> None:
        await world.make("t")
        async with console_of(world.cluster.bootstrap) as viewer, asyncio.timeout(60):
            for _ in range(CONSOLE_READERS_MAX):
                await viewer.console.settings.readers.acquire()
            for path in ("/topics/t/records", "/export/topics/t/records"):
                found = await viewer.get(path)
                assert (found.status, "Too many pages read records" in found.text) == (502, True)
            viewer.console.settings.readers.release()
            assert (await viewer.get("/topics/t/records")).status == 200

    monkeypatch.setattr(records, "CONSOLE_BROWSE_MS_MAX", 100)
    run(tmp_path, work)


def test_records_are_laid_out_beside_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    real = records.row_of

    def row_of(placed: Placed, form: Form) -> records.Row:
        threads.append(threading.get_ident())
        return real(placed, form)

    async def work(world: World) -> None:
        await world.make("t", partitions=2)
        await write(world, "t", 4)
        async with console_of(world.cluster.bootstrap) as viewer:
            assert len(places(await viewer.get("/topics/t/records"))) == 4
            async with viewer.stream("/tail/topics/t/records") as events, asyncio.timeout(60):
                while len(threads) == 4:
                    await write(world, "t", 2)
                    while not events.empty():
                        await events.get()
        assert threading.get_ident() not in threads

    monkeypatch.setattr(records, "row_of", row_of)
    run(tmp_path, work)


def test_a_topic_whose_ends_do_not_come_in_time_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(world: World) -> None:
        async with Cluster(world.cluster.bootstrap) as client:
            await Admin(client).create_topic("t", partitions=2, replication_factor=1)
        async with console_of(world.cluster.bootstrap) as viewer:
            plain = records.wanted_in
            monkeypatch.setattr(records, "wanted_in", lambda request: replace(plain(request), ms_max=0))
            found = await viewer.get("/topics/t/records")
            says = "The ends of 2 partitions of topic 't' are not known within 0 s: ask for one partition, or again."
            assert (found.status, says in found.text) == (502, True)

    run(tmp_path, work)


def test_a_page_of_records_asks_again_for_nothing_that_the_last_look_has_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The metadata of a topic of very many partitions take seconds."""

    async def work(world: World) -> None:
        await world.make("t", partitions=2)
        await write(world, "t", 4)
        async with console_of(world.cluster.bootstrap) as viewer:
            assert (await viewer.get("/topics/t")).status == 200  # the first look is over
            await fresh(viewer.console.seen)
            asked: list[object] = []
            metadata = Cluster.metadata

            async def noted(self: Cluster, topics: Iterable[str] | None, **settings: bool) -> ClusterView:
                if self is not viewer.console.cluster:
                    asked.append(topics)
                return await metadata(self, topics, **settings)

            monkeypatch.setattr(Cluster, "metadata", noted)
            assert places(await viewer.get("/topics/t/records?at=oldest")) == ["0:0", "1:0", "0:1", "1:1"]
            assert asked == []
            await world.fence(world.leader("t"))  # and it is no longer as the look has seen it
            assert places(await viewer.get("/topics/t/records?at=oldest")) == ["0:0", "1:0", "0:1", "1:1"]

    run(tmp_path, work)


def filtered(text: str, **more: str) -> str:
    """The query that asks for records by an expression."""
    return urlencode({"filter": text, **more})


def test_records_are_found_by_an_expression(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        await world.make("t", partitions=2)
        await write(world, "t", 20)
        async with console_of(world.cluster.bootstrap) as viewer:
            root = "/topics/t/records"
            for text, found in (
                ("value.number > `16`", ["1:9", "0:9", "1:8"]),
                ("value.number == `4` && partition == `0`", ["0:2"]),
                ("contains(key, '-3') && offset < `7` && headers.h == `null`", ["1:6", "0:6"]),
                (f"timestamp == `{START_MS + 5_000}` && size == `18`", ["1:2"]),
            ):
                assert places(await viewer.get(f"{root}?{filtered(text)}")) == found, text
            both = await viewer.get(f"{root}?{filtered('value.number > `13`', key='key-3', has='NUMBER')}")
            assert places(both) == ["1:7", "0:7"]
            saved = await viewer.get(f"/export{root}?{filtered('value.number > `16`', at='oldest')}")
            assert [json.loads(line)["offset"] for line in saved.body.splitlines()] == [8, 9, 9]
            nothing = await viewer.get(f"{root}?{filtered('value.number > `20`')}")
            assert "No record like this was found 20 records were read." in nothing.text
            assert ("note warn" in nothing.body, "value.number &gt; `20`" in nothing.body) == (False, True)

    run(tmp_path, work)


def test_the_command_that_a_page_shows_reads_the_same(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        await world.make("t")
        await send(
            world, *({"number": number, "name": "it's" if number % 2 else "`a`"} for number in range(20)), key=b"a`b"
        )
        query = filtered(
            "value.number > `4` && value.name == 'it\\'s'", key="a`b", has="NUMBER", at="oldest", count="3"
        )
        async with console_of(world.cluster.bootstrap) as viewer:
            found = await viewer.get(f"/topics/t/records?{query}")
            assert places(found) == ["0:5", "0:7", "0:9"]
            shown = re.findall(r"<code[^>]*>(headrace consume .*?)</code>", found.body)
        program, *words = shlex.split(html.unescape(shown[0]))
        assert program == "headrace"
        command = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "headrace.cli.main", *words),
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "HEADRACE_BOOTSTRAP": world.cluster.bootstrap},
        )
        printed, _ = await command.communicate()
        assert command.returncode == 0
        assert [json.loads(line)["offset"] for line in printed.splitlines()] == [5, 7, 9]

    run(tmp_path, work)


def test_an_expression_that_is_wrong_is_told_of(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        await world.make("t")
        await send(world, {"number": 1}, "text")
        async with console_of(world.cluster.bootstrap) as viewer:
            for text, says in (
                ("value.number > 1", "has a number without backticks at character 16, near '1': write `1`."),
                ("a" * (EXPRESSION_CHARS_MAX + 1), "has 1,001 characters, and may have 1,000: write a shorter one."),
                ("(" * EXPRESSION_CHARS_MAX, "is nested deeper than 64 levels: write a flatter one."),
            ):
                for door in ("", "/tail", "/export"):
                    found = await viewer.get(f"{door}/topics/t/records?{filtered(text)}")
                    assert (found.status, says in found.text) == (400, True), (door, found.text)
            fails = await viewer.get(f"/topics/t/records?{filtered('abs(value) > `0`')}")
            says = "The expression fails on every record (2 were tried): abs() takes number, and got object."
            assert (fails.status, fails.text.count(says)) == (200, 1)
            query = filtered("contains(value, 'x')")
            some = await viewer.get(f"/topics/t/records?{query}")
            assert (places(some), "fails" in some.text) == (["0:1"], False)
            unknown = await viewer.get(f"/topics/t/records?{filtered('number > `0`')}")
            assert "No record has a field 'number'" in unknown.text

    run(tmp_path, work)


def test_new_records_are_chosen_by_an_expression(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        await world.make("t")
        async with console_of(world.cluster.bootstrap) as viewer, asyncio.timeout(60):
            root, wanted = "topics/t/records", filtered("value.wanted || abs(value.number) < `0`")
            assert f"/tail/{root}?{html.escape(wanted)}" in (await viewer.get(f"/{root}?{wanted}&live=1")).body
            async with viewer.stream(f"/tail/{root}?{wanted}") as events:
                while events.empty():
                    await send(world, {"number": 1}, {"wanted": "this one"}, {"number": 2})
                part = await events.get()
                assert ("this one" in part, "number" in part) == (True, False)
            async with viewer.stream(f"/tail/{root}?{filtered('abs(value) > `0`')}") as events:
                while events.empty():
                    await send(world, {"number": 1})
                assert "The expression fails on every record" in await events.get()

    run(tmp_path, work)


def test_expressions_are_asked_beside_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    real = Expression.__call__

    def noted(self: Expression, placed: Placed) -> bool:
        threads.append(threading.get_ident())
        return real(self, placed)

    async def work(world: World) -> None:
        await world.make("t")
        await send(world, {"number": 1}, {"number": 2})
        async with console_of(world.cluster.bootstrap) as viewer:
            for door in ("", "/export"):
                await viewer.get(f"{door}/topics/t/records?{filtered('value.number')}")
            assert len(threads) == 4
            path = f"/tail/topics/t/records?{filtered('value.number')}"
            async with viewer.stream(path) as events, asyncio.timeout(60):
                while events.empty():
                    await send(world, {"number": 3})
        assert len(threads) > 4
        assert threading.get_ident() not in threads

    monkeypatch.setattr(Expression, "__call__", noted)
    run(tmp_path, work)
