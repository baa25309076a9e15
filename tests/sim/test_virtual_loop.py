"""The virtual loop: asyncio as it is, on time that jumps, the same to the letter for one seed, and mortal."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from headrace.sim.loop import Stuck, VirtualLoop
from headrace.sim.process import Process, ProcessDied
from headrace.sim.workers import Pool


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    loop = VirtualLoop(random.Random(7))
    yield loop
    loop.workers.close()
    loop.close()
    assert loop.failures == []


def test_sleeping_for_a_year_takes_no_time(loop: VirtualLoop) -> None:
    loop.run_until_complete(asyncio.sleep(365 * 86_400))
    assert loop.time() == 365 * 86_400


def test_a_timeout_fires_at_its_virtual_moment(loop: VirtualLoop) -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 2.5)
        return loop.time()

    assert loop.run_until_complete(main()) == 2.5


def test_waiting_for_nothing_is_reported(loop: VirtualLoop) -> None:
    waiting = loop.create_task(asyncio.Event().wait())
    with pytest.raises(Stuck, match="waits for ever"):
        loop.run_until_complete(waiting)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(waiting)


def test_spinning_without_waiting_is_reported(loop: VirtualLoop) -> None:
    def spin() -> None:
        loop.call_soon(spin)

    spin()
    with pytest.raises(Stuck, match="spins"):
        loop.run_until_complete(asyncio.sleep(1))


def test_tasks_queues_and_locks_work_as_ever(loop: VirtualLoop) -> None:
    async def main() -> list[int]:
        queue: asyncio.Queue[int] = asyncio.Queue(1)

        async def produce() -> None:
            for number in range(5):
                await queue.put(number)

        async with asyncio.TaskGroup() as group:
            group.create_task(produce())
            return [await queue.get() for _ in range(5)]

    assert loop.run_until_complete(main()) == [0, 1, 2, 3, 4]


class Survivor:
    """Counts what a killed process still manages to do."""

    def __init__(self) -> None:
        self.ticks = 0
        self.cleaned = 0

    async def tick(self, process: Process) -> None:
        try:
            while True:
                await asyncio.sleep(1)
                self.ticks += 1
        finally:
            await asyncio.sleep(0)
            process.check_alive()
            self.cleaned += 1


def test_a_killed_process_never_runs_again(loop: VirtualLoop) -> None:
    survivor, process = Survivor(), Process("victim")

    async def main() -> int:
        loop.spawn(process, survivor.tick(process))
        await asyncio.sleep(3.5)
        loop.kill(process)
        await asyncio.sleep(100)
        return survivor.ticks

    assert loop.run_until_complete(main()) == 3
    assert survivor.cleaned == 0


def test_what_a_process_starts_dies_with_it(loop: VirtualLoop) -> None:
    survivor, process = Survivor(), Process("victim")

    async def start() -> None:
        child = asyncio.create_task(survivor.tick(process))
        loop.call_later(5, lambda: setattr(survivor, "ticks", 99))
        loop.run_in_executor(None, lambda: setattr(survivor, "ticks", 98))
        await child

    async def main() -> None:
        loop.spawn(process, start())
        await asyncio.sleep(0)
        loop.kill(process)
        await asyncio.sleep(100)

    loop.run_until_complete(main())
    assert survivor.ticks == 0


def test_others_survive_a_kill(loop: VirtualLoop) -> None:
    victim, other = Process("victim"), Process("other")
    dead, alive = Survivor(), Survivor()

    async def main() -> None:
        tasks = [loop.spawn(victim, dead.tick(victim)), loop.spawn(other, alive.tick(other))]
        await asyncio.sleep(2.5)
        loop.kill(victim)
        await asyncio.sleep(2)
        loop.kill(other)
        assert not any(task.done() for task in tasks)

    loop.run_until_complete(main())
    assert (dead.ticks, alive.ticks) == (2, 4)


def test_an_exception_that_nobody_catches_is_a_failure_of_the_run() -> None:
    loop = VirtualLoop(random.Random(1))
    loop.call_soon(lambda: 1 // 0)
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    assert "ZeroDivisionError" in loop.failures[0]


# workers


def test_executor_work_takes_virtual_time_and_returns_its_result(loop: VirtualLoop) -> None:
    async def main() -> tuple[int, float]:
        return await loop.run_in_executor(None, pow, 2, 10), loop.time()

    result, when = loop.run_until_complete(main())
    assert result == 1024
    assert when > 0


def test_executor_work_raises_where_it_is_awaited(loop: VirtualLoop) -> None:
    async def main() -> None:
        with pytest.raises(ZeroDivisionError):
            await loop.run_in_executor(None, lambda: 1 // 0)

    loop.run_until_complete(main())


def test_to_thread_works_and_an_executor_of_ones_own_does_not(loop: VirtualLoop) -> None:
    async def main() -> None:
        assert await asyncio.to_thread(len, "abc") == 3
        with pytest.raises(RuntimeError, match="executor of its own"):
            await loop.run_in_executor(object(), len, "abc")  # type: ignore[arg-type]  # the mistake under test

    loop.run_until_complete(main())


def test_a_pool_has_so_many_at_a_time_and_those_behind_them_in_order(loop: VirtualLoop) -> None:
    pool, begun, running = Pool(2), list[int](), list[int]()

    def work(number: int) -> int:
        begun.append(number)
        running.append(number)
        assert len(running) <= 2
        loop.workers.pause(1)
        running.remove(number)
        return number

    async def main() -> None:
        futures = [loop.run_in_executor(pool, work, number) for number in range(6)]
        await asyncio.sleep(0.5)
        assert len(begun) == 2
        futures[3].cancel()
        assert await asyncio.gather(*futures[:3], *futures[4:]) == [0, 1, 2, 4, 5]
        assert begun[2:] == [2, 4, 5]
        waiting = [loop.run_in_executor(pool, work, number) for number in range(7, 10)]
        pool.shutdown(wait=False, cancel_futures=True)
        assert await asyncio.gather(*waiting[:2]) == [7, 8]
        assert waiting[2].cancelled()

    loop.run_until_complete(main())


def test_a_paused_worker_lets_the_loop_go_on(loop: VirtualLoop) -> None:
    seen: list[str] = []

    def work() -> None:
        seen.append("begins")
        loop.workers.pause(10)
        seen.append("ends")

    async def main() -> None:
        future = loop.run_in_executor(None, work)
        await asyncio.sleep(5)
        seen.append("the loop")
        await future
        assert loop.time() >= 10

    loop.run_until_complete(main())
    assert seen == ["begins", "the loop", "ends"]


def test_a_worker_of_a_killed_process_is_unwound(loop: VirtualLoop) -> None:
    seen: list[object] = []
    process = Process("victim")

    def work() -> None:
        try:
            loop.workers.pause(10)
            seen.append("went on")
        except ProcessDied as death:
            seen.append(death)
            raise

    async def start() -> None:
        await loop.run_in_executor(None, work)

    async def main() -> None:
        loop.spawn(process, start())
        await asyncio.sleep(5)
        loop.kill(process)
        await asyncio.sleep(20)

    loop.run_until_complete(main())
    assert [type(each) for each in seen] == [ProcessDied]


# determinism


async def busy_program(loop: VirtualLoop, trace: list[str]) -> None:
    """Streams, workers and timers, all in each other's way."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            trace.append(f"{loop.time():.9f} got {line.decode().strip()}")
            writer.write(await loop.run_in_executor(None, bytes.upper, line))
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 9092)

    async def client(name: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", 9092)
        for number in range(5):
            writer.write(f"{name} {number} and words\n".encode())
            answer = await reader.readline()
            trace.append(f"{loop.time():.9f} {name} heard {answer.decode().strip()}")
        writer.close()

    await asyncio.gather(*(client(name) for name in range(4)))
    server.close()


def run(seed: int, program: Callable[[VirtualLoop, list[str]], Awaitable[Any]]) -> list[str]:
    loop, trace = VirtualLoop(random.Random(seed)), list[str]()

    async def main() -> None:
        await program(loop, trace)
        await asyncio.sleep(1)

    loop.run_until_complete(main())
    loop.workers.close()
    loop.close()
    assert loop.failures == []
    return trace


def test_one_seed_gives_one_trace_to_the_letter() -> None:
    traces = [run(seed, busy_program) for seed in range(20)]
    assert [run(seed, busy_program) for seed in range(20)] == traces
    assert len({tuple(trace) for trace in traces}) == 20
    assert all(len(trace) == 40 for trace in traces)
