"""The guard: a simulated process is stopped in the act of reaching the real world; nobody else is."""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import structlog

from headrace.sim.guard import RealWorldUsed, guarded
from headrace.sim.loop import VirtualLoop
from headrace.sim.process import Process
from headrace.sim.workers import Mutex
from headrace.testing.logs import use_standard_logging


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    loop = VirtualLoop(random.Random(7))
    yield loop
    loop.workers.close()
    loop.close()


def start_a_thread() -> None:
    threading.Thread(target=len, args=("",)).start()


REACHES: dict[str, Callable[[], object]] = {
    # Looked up by name when they run, as in any module.
    "the time": lambda: time.time(),
    "a duration": lambda: time.monotonic(),
    "sleep": lambda: time.sleep(0),
    "an id": lambda: uuid.uuid4(),
    "chance": lambda: random.random(),
    "the system's chance": lambda: os.urandom(1),
    "a thread": start_a_thread,
    "a file": lambda: Path(__file__).read_text(encoding="utf-8"),
}


@pytest.mark.parametrize("what", REACHES)
def test_a_process_is_stopped_in_the_act(loop: VirtualLoop, what: str) -> None:
    async def act() -> None:
        REACHES[what]()

    async def act_in_a_worker() -> None:
        await asyncio.to_thread(REACHES[what])

    with guarded():
        for each in (act(), act_in_a_worker()):
            with pytest.raises(RealWorldUsed, match=r"headrace\.base\.ports"):
                loop.run_until_complete(loop.spawn(Process("broker"), each))


def test_logs_that_a_program_has_set_up_are_not_reached(loop: VirtualLoop) -> None:
    """Python's own logging reads the clock. The test is in a process where others may have run brokers before."""
    before = structlog.get_config() if structlog.is_configured() else None
    use_standard_logging()

    async def tell() -> None:
        structlog.get_logger("headrace.told").critical("the broker stops")

    try:
        here = structlog.get_config()
        with guarded():
            loop.run_until_complete(loop.spawn(Process("broker"), tell()))
        assert structlog.get_config() == here
    finally:
        structlog.reset_defaults()
        if before is not None:
            structlog.configure(**before)


def test_who_waits_for_a_lock_lets_its_holder_go_on(loop: VirtualLoop) -> None:
    done: list[str] = []

    async def work() -> None:
        lock = Mutex()

        def hold(name: str) -> None:
            with lock:
                done.append(f"{name} begins")
                loop.workers.pause(0.5)
                done.append(f"{name} ends")

        await asyncio.gather(asyncio.to_thread(hold, "one"), asyncio.to_thread(hold, "other"))
        with lock, pytest.raises(RuntimeError, match="event loop"):
            lock.acquire()

    with guarded():
        loop.run_until_complete(loop.spawn(Process("broker"), work()))
    first, second = done[0].split()[0], done[2].split()[0]
    assert done == [f"{first} begins", f"{first} ends", f"{second} begins", f"{second} ends"]


def test_everyone_else_goes_on(loop: VirtualLoop) -> None:
    with guarded():
        assert time.time() > 0
        assert time.monotonic() > 0
        start_a_thread()
        assert len(os.urandom(4)) == 4
        assert "guard" in Path(__file__).read_text(encoding="utf-8")
        loop.run_until_complete(asyncio.sleep(1))
