"""The time of the event loop that a request takes is counted, in however many turns it is worked on."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace.broker.requests.metering import Metered
from headrace.wire.apis import ApiKey
from headrace.wire.headers import RequestHeader
from tests import loops


class Clock:
    """Goes on as the work says."""

    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


class Percent:
    """Notes what was used."""

    used = 0.0

    def record(self, amount: float) -> int:
        self.used += amount
        return 0


def metered(clock: Clock, percent: Percent) -> Metered:
    return Metered(
        cast("Any", SimpleNamespace(request=percent, produce=None, fetch=None)),
        RequestHeader(ApiKey.METADATA, 9, 1, ""),
        100,
        connection=cast("Any", None),
        clock=cast("Any", clock),
        sessions=cast("Any", None),
        encode=lambda _, response: response,
    )


def test_work_counts_and_waits_do_not() -> None:
    clock, percent = Clock(), Percent()

    async def work() -> str:
        for _ in range(3):
            clock.now_s += 1  # worked on
            await asyncio.sleep(0)
        return "answer"

    async def main() -> None:
        one = metered(clock, percent)
        clock.now_s += 0.5  # until it waits first
        one.pause()

        async def other() -> None:
            for _ in range(3):
                clock.now_s += 100  # of others
                await asyncio.sleep(0)

        await asyncio.gather(given(one, work()), other())
        clock.now_s += 1000
        one.resume()
        clock.now_s += 0.25  # the answer is put together
        one.answer("answer")

    async def given(one: Metered, wanted: Any) -> None:
        assert await one.timed(wanted) == "answer"

    loops.run(main())
    assert percent.used == 100 * (0.5 + 3 + 0.25)


def test_what_it_raises_and_an_end_of_its_client_go_through() -> None:
    async def main() -> None:
        one = metered(Clock(), Percent())

        async def fails() -> None:
            await asyncio.sleep(0)
            raise OSError("a disk")

        async def first(wanted: Any) -> Any:
            return await one.timed(wanted)

        with pytest.raises(OSError, match="a disk"):
            await first(fails())
        seen = []

        async def is_ended() -> None:
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                seen.append("ended")
                raise

        task = asyncio.ensure_future(first(is_ended()))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert seen == ["ended"]

    loops.run(main())
