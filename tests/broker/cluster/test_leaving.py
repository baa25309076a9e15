"""A broker that stops tells the controller. A metadata log that takes nothing does not hold it up."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from headrace.base.ids import BrokerEpoch, BrokerId
from headrace.base.limits import LEAVE_WAIT_MS_MAX
from headrace.sim.loop import VirtualLoop
from tests.broker.alone import INCARNATION, membership

LEAVE_S = LEAVE_WAIT_MS_MAX / 1000


class Controller:
    """This broker's own. Its log takes an entry each second, until it takes no more, and never this broker's."""

    is_controller = False

    def __init__(self, entries: int) -> None:
        me = SimpleNamespace(id=BrokerId(1), incarnation=INCARNATION, epoch=BrokerEpoch(7), fenced=False)
        self.image: Any = SimpleNamespace(index=0, brokers={me.id: me}, live_brokers=lambda: [me], shares_logs=True)
        self._entries = entries

    def subscribe(self, tell: Any) -> None:
        pass

    async def submit(self, ask: Any, **_: Any) -> Any:
        assert ask.stopping
        for number in range(self._entries):
            await asyncio.sleep(1)
            self.image.index = number + 1
        return await asyncio.get_running_loop().create_future()


@pytest.mark.parametrize(("entries", "ends_after_s"), [(0, 2 * LEAVE_S), (10, 10 + 2 * LEAVE_S)])
def test_it_waits_as_long_as_the_log_goes_on(entries: int, ends_after_s: float) -> None:
    async def work() -> None:
        controller = Controller(entries)
        member = membership(controller, controller)
        with capture_logs() as told:
            async with asyncio.timeout(ends_after_s):
                await member.leave()
        assert controller.image.index == entries
        assert [each["event"] for each in told] == ["stops without having taken its leave"]

    loop = VirtualLoop(random.Random(1))
    loop.run_until_complete(work())
    loop.workers.close()
    loop.close()
