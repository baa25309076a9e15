"""Group commit: what is asked for while a sync is under way waits for the next; a mistake of ours is told, not hung."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import cast

import pytest

from headrace.base.ids import Offset
from headrace.broker.partitions import flusher as flusher_module
from headrace.broker.partitions.flusher import Flusher
from headrace.storage.engine.files import UpkeepWork
from headrace.storage.engine.flushing import FlushRound, FlushTicket, Outcome, Outcomes
from tests.broker.group_broker import until


class Gate:
    """A ticket whose sync ends when the test says so."""

    def __init__(self, failure: OSError | None = None) -> None:
        self.opened = threading.Event()
        self.failure = failure
        self.end = Offset(0)

    def sync(self) -> None:
        self.opened.wait(30)
        if self.failure is not None:
            raise self.failure


class Dirty:
    """A partition that hands out the tickets it is given, one a round, and remembers how they ended."""

    def __init__(self, *tickets: Gate, broken: bool = False) -> None:
        self.tickets = list(tickets)
        self.begun: list[Gate] = []
        self.ended: list[Outcome] = []
        self.broken = broken
        self.written_out = 0

    def begin_flush(self) -> Gate | None:
        if not self.tickets:
            return None
        self.begun.append(self.tickets.pop(0))
        return self.begun[-1]

    def finish_flush(self, ticket: FlushTicket, failure: Outcome) -> None:
        assert not self.broken, "planted"
        self.ended.append(failure)

    def write_out(self) -> None:
        self.written_out += 1
        assert self.written_out == len(self.ended), "once for each round, after it and before the next"


class EachSynced:
    """A round that syncs each ticket in a worker thread."""

    def __init__(self, tickets: Sequence[FlushTicket], ended: list[FlushRound]) -> None:
        self.tickets = cast("Sequence[Gate]", tickets)
        self.ended = ended

    def begin(self, done: Callable[[Outcomes], object]) -> None:
        work = asyncio.get_running_loop().run_in_executor(None, lambda: [synced(ticket) for ticket in self.tickets])
        work.add_done_callback(lambda work: done(work.result))

    def end(self) -> None:
        self.ended.append(self)


def synced(ticket: Gate) -> OSError | None:
    try:
        ticket.sync()
    except OSError as error:
        return error
    return None


class Chore:
    """Upkeep that ends when the test says so."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.has_ended = False

    def run(self) -> None:
        self.opened.wait(30)

    def end(self) -> None:
        self.has_ended = True


class Engine:
    """Notes what the flusher tells it."""

    def __init__(self, *chores: Chore) -> None:
        self.chores = list(chores)
        self.ended: list[FlushRound] = []

    def begin_round(self, tickets: Sequence[FlushTicket]) -> FlushRound:
        return EachSynced(tickets, self.ended)

    @property
    def upkeep(self) -> Engine:
        return self

    def begin_upkeep(self) -> UpkeepWork | None:
        return self.chores.pop(0) if self.chores else None


def never(error: BaseException) -> None:
    raise AssertionError from error


async def test_what_comes_during_a_sync_waits_for_the_next_round() -> None:
    flusher = Flusher(Engine(), never)
    first, second, third = Gate(), Gate(), Gate()
    one, other = Dirty(first, second), Dirty(third)
    flusher.request(one)
    await asyncio.sleep(0)
    assert one.begun == [first]
    flusher.request(one)
    flusher.request(other)
    await asyncio.sleep(0)
    assert (one.begun, other.begun) == ([first], [])
    over = asyncio.ensure_future(flusher.round_over())
    first.opened.set()
    await over
    assert one.ended == [None]
    second.opened.set()
    third.opened.set()
    await flusher.idle()
    assert (one.ended, other.ended) == ([None, None], [None])


@pytest.mark.parametrize("more_waits", [True, False])
async def test_own_files_are_written_after_the_answers_and_before_the_next_round_and_upkeep(more_waits: bool) -> None:
    told: list[str] = []

    class Noting(Dirty):
        def begin_flush(self) -> Gate | None:
            told.append("begin")
            return super().begin_flush()

        def finish_flush(self, ticket: FlushTicket, failure: Outcome) -> None:
            super().finish_flush(ticket, failure)
            told.append("finish")
            asyncio.get_running_loop().call_soon(told.append, "answer")

        def write_out(self) -> None:
            super().write_out()
            told.append("write out")

    class NotingEngine(Engine):
        def begin_upkeep(self) -> UpkeepWork | None:
            told.append("upkeep")
            return None

    flusher = Flusher(NotingEngine(), never)
    flusher._gathering._skip = 3  # rounds follow one another at once
    first, second = Gate(), Gate()
    one = Noting(first, second)
    flusher.request(one)
    await asyncio.sleep(0)
    if more_waits:
        flusher.request(one)
    over = asyncio.ensure_future(flusher.round_over())
    first.opened.set()
    second.opened.set()
    await over
    for _ in range(3):
        await asyncio.sleep(0)
    round_told = ["begin", "finish", "answer", "write out", "upkeep"]
    assert told[:5] == round_told
    all_told = round_told * (2 if more_waits else 1)
    await until(lambda: len(told) == len(all_told))  # a request for `idle` meanwhile has the files written at once
    assert told == all_told
    await flusher.idle()
    assert told == all_told


async def test_once_a_round_is_over_nothing_of_it_is_left_to_be_written() -> None:
    """A waiter for it cuts the log in a worker thread then."""
    flusher = Flusher(Engine(), never)
    gate = Gate()
    one = Dirty(gate)
    flusher.request(one)
    await asyncio.sleep(0)
    written_out: list[int] = []

    async def cut() -> None:
        await flusher.round_over()
        written_out.append(one.written_out)

    cutting = asyncio.ensure_future(cut())
    await asyncio.sleep(0)
    gate.opened.set()
    await cutting
    await cut()  # also where no round is under way
    assert written_out == [1, 1]


async def test_a_round_is_of_so_many_and_the_rest_have_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flusher_module, "LOGS_FLUSHED_AT_ONCE_MAX", 2)
    engine = Engine()
    flusher = Flusher(engine, never)
    gates = [Gate() for _ in range(3)]
    with_nothing = [Dirty(), Dirty()]
    dirty = [Dirty(gate) for gate in gates]
    for each in with_nothing + dirty:
        flusher.request(each)
    for gate in gates:
        gate.opened.set()
    await flusher.idle()
    assert [each.ended for each in dirty] == [[None]] * 3
    assert len(engine.ended) == 2


async def test_a_sync_waits_for_those_who_shared_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.broker.kit.gathering.FLUSH_GATHER_MS_MAX", 3_600_000)
    flusher = Flusher(Engine(), never)
    producers = [Dirty(*(Gate() for _ in range(3))) for _ in range(3)]
    for producer in producers:
        for gate in producer.tickets:
            gate.opened.set()
        flusher.request(producer)
    await flusher.idle()
    flusher.request(producers[0])
    flusher.request(producers[1])
    await asyncio.sleep(0)
    assert [len(producer.begun) for producer in producers] == [1, 1, 1]
    flusher.request(producers[2])
    await flusher.idle()
    assert [len(producer.ended) for producer in producers] == [2, 2, 2]


async def test_nobody_is_waited_for_in_vain_for_long() -> None:
    flusher = Flusher(Engine(), never)
    gone, lone = Dirty(Gate()), Dirty(*(Gate() for _ in range(5)))
    for gate in (*gone.tickets, *lone.tickets):
        gate.opened.set()
    flusher.request(gone)
    for _ in range(5):
        flusher.request(lone)
        await flusher.idle()
    assert len(lone.ended) == 5


async def test_a_lone_producer_never_waits() -> None:
    flusher = Flusher(Engine(), never)
    lone = Dirty(*(Gate() for _ in range(3)))
    for gate in list(lone.tickets):
        gate.opened.set()
        flusher.request(lone)
        await asyncio.sleep(0)
        assert lone.begun[-1] is gate
        await flusher.idle()


async def test_a_failed_sync_is_told_to_its_partition_and_to_no_other() -> None:
    flusher = Flusher(Engine(), never)
    failure = OSError("planted")
    bad, good = Gate(failure), Gate()
    failing, sound = Dirty(bad), Dirty(good)
    flusher.request(failing)
    flusher.request(sound)
    bad.opened.set()
    good.opened.set()
    await flusher.idle()
    assert (failing.ended, sound.ended) == ([failure], [None])


async def test_a_mistake_of_ours_is_told_and_nobody_waits_for_ever() -> None:
    told: list[BaseException] = []
    flusher = Flusher(Engine(), told.append)
    gate = Gate()
    flusher.request(Dirty(gate, broken=True))
    gate.opened.set()
    await flusher.idle()
    assert [str(error).split("\n")[0] for error in told] == ["planted"]


async def test_upkeep_runs_beside_the_rounds_and_idle_waits_for_it() -> None:
    chore = Chore()
    engine = Engine(chore)
    flusher = Flusher(engine, never)
    partition = Dirty(Gate(), Gate())
    for gate in partition.tickets:
        gate.opened.set()
    for ended in (1, 2):
        flusher.request(partition)
        await flusher.round_over()
        assert len(engine.ended) == ended
        assert not chore.has_ended
    chore.opened.set()
    await flusher.idle()
    assert chore.has_ended


class Mistaken(Gate):
    """Its sync raises what no disk does."""

    def sync(self) -> None:
        raise ValueError("planted")


async def test_a_mistake_in_a_worker_is_told_too() -> None:
    told: list[BaseException] = []
    flusher = Flusher(Engine(), told.append)
    flusher.request(Dirty(Mistaken()))
    async with asyncio.timeout(150):
        await flusher.idle()
    assert [str(error) for error in told] == ["planted"]


class Clumsy(Chore):
    """Upkeep with a mistake in it."""

    def run(self) -> None:
        super().run()
        raise ValueError("planted")


async def test_a_mistake_in_upkeep_is_told_and_nobody_waits_for_ever() -> None:
    told: list[BaseException] = []
    chore, slow = Clumsy(), Gate()
    flusher = Flusher(Engine(chore), told.append)
    sound = Gate()
    sound.opened.set()
    partition = Dirty(sound, slow)
    flusher.request(partition)
    await flusher.round_over()
    flusher.request(partition)
    await asyncio.sleep(0)
    assert partition.begun == [sound, slow]
    chore.opened.set()
    async with asyncio.timeout(150):
        await flusher.idle()
    slow.opened.set()
    assert [str(error) for error in told] == ["planted"]
    assert partition.ended == [None]
