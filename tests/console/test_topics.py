"""Topics in lists and one by one, of real brokers; and the laws of lists."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from headrace.base.ids import BrokerId, LeaderEpoch, PartitionIndex
from headrace.base.limits import CONSOLE_ROWS
from headrace.console.lists import listing
from headrace.console.pages.topic import Strip
from headrace.console.policies import age, described
from headrace.net.client.view import PartitionView
from tests.broker.replication_world import World
from tests.cli.test_doctor import others, run
from tests.console.asking import console_of

PART = PartitionView(
    index=PartitionIndex(0),
    leader=BrokerId(1),
    leader_epoch=LeaderEpoch(0),
    replicas=(),
    isr=(),
    offline=(),
    error_code=0,
)


def test_topics_are_listed_searched_and_shown_one_by_one(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        await world.make("orders", partitions=3, retention_ms="3600000")
        await world.make("old.orders", cleanup_policy="compact")
        await world.make("clicks", replicas=1)
        async with console_of(world.cluster.bootstrap) as viewer:
            found = await viewer.get("/topics")
            assert [row[0] for row in found.rows] == ["clicks", "old.orders", "orders"]
            assert [(row[1], row[2], row[3], row[7]) for row in found.rows][2] == (
                "in sync",
                "3",
                "3",
                "delete after 1 h",
            )
            assert found.rows[1][7] == "compact"
            found = await viewer.get("/topics?q=ORDERS&sort=-partitions", hx_request="true")
            assert [row[0] for row in found.rows] == ["orders", "old.orders"]
            assert "<html" not in found.body, "htmx is sent the changing part"
            assert 'hx-sse:connect="/live/topics?q=ORDERS&amp;sort=-partitions"' in found.body
            assert "No topic has “nothing” in its name" in (await viewer.get("/topics?q=nothing")).text
            found = await viewer.get("/topics/orders")
            assert [row[:2] for row in found.rows[:3]] == [
                [str(index), str(world.leader("orders", index))] for index in range(3)
            ]
            assert ["retention.ms", "3600000"] in [row[:2] for row in found.rows]
            assert "Time that a record is kept" in found.text
            found = await viewer.get("/topics/away")
            assert (found.status, "There is no topic 'away'" in found.text) == (404, True)

    run(tmp_path, work)


def test_a_replica_that_is_behind_and_a_partition_without_a_leader_are_told(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        await world.make("t")
        await world.make("single", replicas=1)
        away = world.leader("single")
        await world.fence(away)
        async with console_of(world.cluster.bootstrap) as viewer:
            found = {row[0]: row[1] for row in (await viewer.get("/topics?sort=-health")).rows}
            assert found == {"single": "1 offline", "t": "1 behind"}
            text = (await viewer.get("/topics/t")).text
            assert f"{away} not in sync" in text
            assert all(f"{each} in sync" in text or f"{each} leads" in text for each in others(away))
            assert (await viewer.get("/topics/single")).rows[0][1] == "none"
            assert "single-0 has no leader" in (await viewer.get("/")).text

    run(tmp_path, work)


def query(**settings: Any) -> Request:
    text = "&".join(f"{name}={value}" for name, value in settings.items())
    return Request({"type": "http", "query_string": text.encode(), "headers": []})


@given(st.lists(st.tuples(st.text("ab-", max_size=3), st.integers(0, 3)), max_size=3 * CONSOLE_ROWS), st.booleans())
def test_the_pages_of_a_list_are_all_that_was_found_in_order(rows: list[tuple[str, int]], is_descending: bool) -> None:
    sort = "-size" if is_descending else "size"
    keys = {"name": lambda row: row[0], "size": lambda row: row[1]}
    first = listing(query(q="a", sort=sort), rows, name=lambda row: row[0], keys=keys, default="name")
    pages = [
        listing(query(q="a", sort=sort, page=page), rows, name=lambda row: row[0], keys=keys, default="name")
        for page in range(1, first.pages + 1)
    ]
    shown = [row for page in pages for row in page.rows]
    assert sorted(shown) == sorted(row for row in rows if "a" in row[0])
    sizes = [row[1] for row in shown]
    assert sizes == sorted(sizes, reverse=is_descending)
    assert all(len(page.rows) <= CONSOLE_ROWS for page in pages)
    assert first.total == len(shown)


@pytest.mark.parametrize("wrong", ["0", "-1", "x", "99999999999", ""])
def test_a_page_that_is_not_there_is_the_nearest_one(wrong: str) -> None:
    found = listing(query(page=wrong), ["a"], name=str, keys={"name": str}, default="name")
    assert (found.page, found.rows, found.first, found.last) == (1, ["a"], 1, 1)


@given(*[st.integers(0, 50)] * 4)
def test_the_pieces_of_a_strip_cover_it_without_gap_or_overlap(start: int, local: int, durable: int, end: int) -> None:
    strip = Strip(part=PART, start=start, local=local, durable=durable, end=end, size=None)
    pieces = strip.pieces
    assert bool(pieces) == (end > start)
    at = 0.0
    for _, begin, width, _ in pieces:
        assert begin == pytest.approx(at, abs=0.02)
        at = begin + width
    assert not pieces or at == pytest.approx(100, abs=0.05)


def test_policies_are_told_in_words() -> None:
    assert described("compact,delete", "604800000") == "compact and delete after 7 d"
    assert described("delete", "-1") == "keep"
    assert [age(each) for each in ("500", "61000", "300000", "129600000")] == ["500 ms", "61 s", "5 min", "36 h"]


def test_the_page_of_a_topic_that_is_about_to_be_made_shows_it_then(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        async with console_of(world.cluster.bootstrap) as viewer:
            found = await viewer.get("/topics/soon")
            assert (found.status, 'data-live="yes"' in found.body) == (404, True)
            async with viewer.stream("/live/topics/soon") as events:
                assert "There is no topic" in await events.get()
                await world.make("soon")
                while "Where its records lie" not in await events.get():
                    pass

    run(tmp_path, work)
