"""Group commit: what is asked for while a sync is under way waits for the next; a mistake of ours is told, not hung."""

from __future__ import annotations

import asyncio
import threading

import pytest

from headrace.broker.flusher import Flusher
from headrace.storage.engine import FlushTicket


class Gate:
    """A ticket whose sync ends when the test says so."""

    def __init__(self, failure: OSError | None = None) -> None:
        self.opened = threading.Event()
        self.failure = failure

    def sync(self) -> None:
        self.opened.wait(30)
        if self.failure is not None:
            raise self.failure


class Dirty:
    """A partition that hands out the tickets it is given, one a round, and remembers how they ended."""

    def __init__(self, *tickets: Gate, broken: bool = False) -> None:
        self.tickets = list(tickets)
        self.begun: list[Gate] = []
        self.ended: list[OSError | None] = []
        self.broken = broken

    def begin_flush(self) -> FlushTicket | None:
        if not self.tickets:
            return None
        self.begun.append(self.tickets.pop(0))
        return self.begun[-1]

    def finish_flush(self, ticket: FlushTicket, failure: OSError | None) -> None:
        assert not self.broken, "planted"
        self.ended.append(failure)


def never(error: BaseException) -> None:
    raise AssertionError from error


async def test_what_comes_during_a_sync_waits_for_the_next_round() -> None:
    flusher = Flusher(never)
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


async def test_a_sync_waits_for_those_who_shared_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.broker.flusher.FLUSH_GATHER_MS_MAX", 3_600_000)
    flusher = Flusher(never)
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
    flusher = Flusher(never)
    gone, lone = Dirty(Gate()), Dirty(*(Gate() for _ in range(5)))
    for gate in (*gone.tickets, *lone.tickets):
        gate.opened.set()
    flusher.request(gone)
    for _ in range(5):
        flusher.request(lone)
        await flusher.idle()
    assert len(lone.ended) == 5


async def test_a_lone_producer_never_waits() -> None:
    flusher = Flusher(never)
    lone = Dirty(*(Gate() for _ in range(3)))
    for gate in list(lone.tickets):
        gate.opened.set()
        flusher.request(lone)
        await asyncio.sleep(0)
        assert lone.begun[-1] is gate
        await flusher.idle()


async def test_a_failed_sync_is_told_to_its_partition_and_to_no_other() -> None:
    flusher = Flusher(never)
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
    flusher = Flusher(told.append)
    gate = Gate()
    flusher.request(Dirty(gate, broken=True))
    gate.opened.set()
    await flusher.idle()
    assert [str(error).split("\n")[0] for error in told] == ["planted"]
