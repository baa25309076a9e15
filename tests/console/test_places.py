"""One viewer takes a part of the places for open pages, and no more; who finds none is told what to do."""

from __future__ import annotations

from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.limits import CONSOLE_STREAMS_MAX, CONSOLE_STREAMS_OF_A_SESSION_MAX
from headrace.console.places import Places, Viewer
from headrace.console.state import Settings
from tests.broker.replication_world import World
from tests.cli.test_doctor import run
from tests.console.asking import Browser, console_of, fresh
from tests.console.test_login import ADMIN, ALICE, place

MOST = Places("pages open", 5, of_a_session=2, of_an_address=3)


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=30))
def test_a_place_is_taken_where_viewer_and_all_have_one_left(asked: list[tuple[int, bool]]) -> None:
    places = Places("pages open", 5, of_a_session=2, of_an_address=3)
    model: list[Viewer] = []
    with ExitStack() as stack:
        for key, has_session in asked:
            viewer = Viewer((key, has_session), has_session)
            own = 2 if has_session else 3
            is_room = model.count(viewer) < own and len(model) < 5
            problem = stack.enter_context(places.taken(viewer))
            assert (problem == "") == is_room
            if is_room:
                model.append(viewer)
    with ExitStack() as stack:
        assert not any(stack.enter_context(places.taken(Viewer(key, True))) for key in range(5)), "all are free again"


@pytest.mark.parametrize(
    ("viewer", "says"),
    [
        (
            Viewer("s", True),
            "You have 2 pages open, and may have no more: close one of them, and load this page again.",
        ),
        (Viewer("10.0.0.1", False), "Your address has 3 pages open, and may have no more: close one of them"),
    ],
)
def test_who_has_too_many_is_told_what_to_do(viewer: Viewer, says: str) -> None:
    with ExitStack() as stack:
        told = [stack.enter_context(MOST.taken(viewer)) for _ in range(4)]
        assert says in told[-1]
        others = [stack.enter_context(MOST.taken(Viewer(each, True))) for each in range(4)]
        assert "All viewers together have 5 pages open" in others[-1]


async def test_a_session_that_takes_its_places_leaves_those_of_others(tmp_path: Path) -> None:
    assert CONSOLE_STREAMS_OF_A_SESSION_MAX * 8 < CONSOLE_STREAMS_MAX, "not even a user with all of its sessions"
    async with place(tmp_path) as world:
        await world.make("orders")
        await world.allow("topic:orders:DESCRIBE")
        greedy, other = world.browser, world.another()
        await greedy.log_in(*ADMIN)
        await other.log_in(*ALICE)
        await world.console_of(greedy).seen.settled(60_000)
        async with AsyncExitStack() as stack:
            for _ in range(CONSOLE_STREAMS_OF_A_SESSION_MAX):
                events = await stack.enter_async_context(greedy.stream("/live/topics"))
                assert "not-live" not in await events.get()
            refused = await greedy.get("/live/topics")
            assert (refused.status, refused.headers["content-type"].split(";")[0]) == (200, "text/event-stream")
            assert refused.body.startswith("retry: 30000\ndata: ")
            assert "close one of them, and load this page again" in refused.text
            assert "orders" in refused.text, "the page stays as it is"
            async with other.stream("/live/topics") as events:
                assert "not-live" not in await events.get()
        async with greedy.stream("/live/topics") as events:
            assert "not-live" not in await events.get(), "its places are free again"


def test_without_a_login_an_address_takes_a_part(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        await world.make("t")
        few = Places("pages open", 9, of_a_session=1, of_an_address=2)
        async with console_of(world.cluster.bootstrap, streams=few, tails=few) as viewer, AsyncExitStack() as stack:
            await fresh(viewer.console.seen)
            for path in ("/live/topics", "/live/groups"):
                events = await stack.enter_async_context(viewer.stream(path))
                assert "not-live" not in await events.get()
            elsewhere = Elsewhere(viewer.app)
            events = await stack.enter_async_context(elsewhere.stream("/live/topics"))
            assert "not-live" not in await events.get()
            for path in ("/live/topics", "/tail/topics/t/records"):
                told = (await viewer.get(path)).text
                assert "Your address has 2 pages open" in told
                assert "headrace console --login" in told

    run(tmp_path, work)


class Elsewhere(Browser):
    """A browser at another address."""

    address = "127.0.0.2"


def test_all_viewers_of_a_console_share_its_places() -> None:
    assert Settings().streams is not Settings().streams
    one = Settings()
    with ExitStack() as stack:
        told = [stack.enter_context(one.streams.taken(Viewer(at // 10, True))) for at in range(CONSOLE_STREAMS_MAX + 1)]
    assert [bool(each) for each in told] == [False] * CONSOLE_STREAMS_MAX + [True]
