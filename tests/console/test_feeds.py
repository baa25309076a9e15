"""Feeds: who is asked when, and what is known while nobody answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from structlog.testing import capture_logs

from headrace.base.errors import HeadraceError
from headrace.console.feeds import Feed, any_changed

HOUR_MS = 3_600_000


@asynccontextmanager
async def running(feed: Feed[int]) -> AsyncIterator[None]:
    task = asyncio.ensure_future(feed.run())
    try:
        yield
    finally:
        feed.close()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def counting(*failures: int) -> Callable[[], Awaitable[int]]:
    """Count its calls, and fail at these."""
    calls = iter(range(1, 1_000))

    async def ask() -> int:
        if (call := next(calls)) in failures:
            raise HeadraceError(f"call {call} failed.")
        return call

    return ask


async def test_a_feed_is_asked_again_when_somebody_wants_it_and_not_by_itself() -> None:
    feed = Feed(counting(), every_ms=HOUR_MS)
    async with running(feed):
        await feed.settled(60_000)
        assert feed.value == 1
        await feed.settled(60_000)
        assert feed.value == 1, "it is new enough"
        changed = feed.changed()
        feed.want()
        await changed.wait()
        assert (feed.value, feed.version) == (2, 2)


async def test_what_was_known_stays_while_nobody_answers() -> None:
    feed = Feed(counting(2), every_ms=HOUR_MS)
    async with running(feed):
        await feed.settled(60_000)
        known_at = feed.at_ms
        changed = feed.changed()
        feed.want()
        await changed.wait()
        assert (feed.value, feed.trouble, feed.at_ms) == (1, "call 2 failed.", known_at)
        changed = feed.changed()
        with feed.viewed():  # a viewer comes: what is old is asked for at once
            await changed.wait()
        assert (feed.value, feed.trouble) == (3, "")


async def test_a_feed_is_renewed_at_once_and_not_by_an_answer_from_before() -> None:
    begun, go_on, calls = asyncio.Event(), asyncio.Event(), iter(range(1, 10))

    async def ask() -> int:
        call = next(calls)
        begun.set()
        if call == 1:
            await go_on.wait()
        return call

    feed = Feed(ask, every_ms=HOUR_MS)
    async with running(feed):
        feed.want()
        await begun.wait()
        waiting = asyncio.ensure_future(feed.renewed(60_000))
        await asyncio.sleep(0)
        go_on.set()
        await waiting
        assert feed.value == 2, "the first was under way already"
        await feed.renewed(60_000)
        assert feed.value == 3


async def test_what_nobody_views_is_not_asked_for_and_is_forgotten() -> None:
    forgotten = asyncio.Event()
    feed = Feed(counting(), every_ms=HOUR_MS, forget_ms=1, on_forgotten=forgotten.set)
    async with running(feed):
        await asyncio.sleep(0)
        assert feed.version == 0, "nobody has asked for it"
        await feed.settled(60_000)
        await forgotten.wait()
        assert (feed.value, feed.version) == (None, 1)
        await feed.settled(60_000)
        assert feed.value == 2


async def test_a_viewed_feed_is_asked_again_and_again() -> None:
    seen: list[int] = []
    feed = Feed(counting(), every_ms=1, on_value=seen.append)
    async with running(feed):
        with feed.viewed():
            while len(seen) < 3:
                await feed.changed().wait()
    assert seen[:3] == [1, 2, 3]


async def test_all_that_wait_are_woken_when_it_closes() -> None:
    feed = Feed(counting(1), every_ms=HOUR_MS)
    waiting = asyncio.ensure_future(any_changed([feed], 600))
    await asyncio.sleep(0)
    feed.close()
    assert await waiting
    assert not await any_changed([Feed(counting(), every_ms=HOUR_MS)], 0)


async def test_a_viewer_who_comes_back_at_once_keeps_it_asked() -> None:
    seen: list[int] = []
    feed = Feed(counting(), every_ms=HOUR_MS, on_value=seen.append)
    async with running(feed):
        await feed.settled(60_000)
        await feed.rests.wait()
        with feed.viewed():  # its value is new enough still
            async with asyncio.timeout(60):
                while len(seen) < 2:
                    await feed.changed().wait()


async def test_a_bug_is_told_and_the_feed_goes_on() -> None:
    calls = iter(range(1, 10))

    async def ask() -> int:
        call = next(calls)
        return {1: 1, 3: 3}[call]

    feed = Feed(ask, every_ms=HOUR_MS)
    with capture_logs() as lines:
        async with running(feed), asyncio.timeout(60):
            await feed.renewed(60_000)
            await feed.renewed(60_000)
            assert (feed.value, "This is a bug in Headrace (KeyError)" in feed.trouble) == (1, True)
            await feed.renewed(60_000)
            assert (feed.value, feed.trouble) == (3, "")
    assert [line["log_level"] for line in lines] == ["error"]
