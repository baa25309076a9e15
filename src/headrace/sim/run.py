"""One run: a broker, its clients and its crashes, from one seed, judged at the end.

A run has these phases:
- Load and crashes, for some rounds.
- All is healthy, and the clients finish what is in doubt.
- One last power cut. Everything is read and compared with the acknowledged records.
"""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final
from unittest.mock import patch

import structlog

from headrace.sim.admin import Admin
from headrace.sim.checker import check
from headrace.sim.client import Lost
from headrace.sim.committer import Committer
from headrace.sim.consumers import Prober, Reader
from headrace.sim.counting import JournalFigures, counted
from headrace.sim.final import read_everything
from headrace.sim.guard import guarded, logs_to
from headrace.sim.history import FinalState, Problem
from headrace.sim.loop import Stuck, VirtualLoop
from headrace.sim.machine import Machine
from headrace.sim.operator import Operator
from headrace.sim.producers import Producers
from headrace.sim.world import RunOver, World, known_keys
from headrace.wire.apis import api

LANES: Final = 5
READERS: Final = 2
RUN_SECONDS_MAX: Final = 600.0
"""Virtual seconds after which a run counts as stuck."""
EVENTS_PER_SNAPSHOT: Final = 12
"""Few, so that metadata snapshots happen within a run (the broker's own number is thousands)."""


@dataclass(slots=True)
class Outcome:
    """The outcome of one seed."""

    seed: int
    problems: list[Problem] = field(default_factory=list)
    story: list[str] = field(default_factory=list)
    cuts: int = 0
    kills: int = 0
    acknowledged: int = 0
    """Number of records."""
    virtual_seconds: float = 0.0
    journal: JournalFigures = field(default_factory=JournalFigures)

    @property
    def is_sound(self) -> bool:
        return not self.problems


def run(seed: int) -> Outcome:
    """Simulate one seed, from birth to judgement. Never raises for anything that the broker did."""
    for key in known_keys():
        api(key)
    loop = VirtualLoop(random.Random(f"loop {seed}"))
    world = World(loop, seed)
    outcome = Outcome(seed, story=world.story)
    with (
        garbage_kept(),
        guarded(),
        _logs_in(world),
        counted(outcome.journal),
        patch("headrace.broker.cluster.quorum.member.METADATA_EVENTS_PER_SNAPSHOT", EVENTS_PER_SNAPSHOT),
    ):
        try:
            final = loop.run_until_complete(asyncio.wait_for(_simulate(world, seed), RUN_SECONDS_MAX))
            outcome.problems = check(world.history, final)
        except* RunOver:
            outcome.problems = world.history.problems
        except* (Stuck, TimeoutError, Lost) as errors:
            outcome.problems = [*world.history.problems, *(Problem("stuck", repr(each)) for each in errors.exceptions)]
        finally:
            close(loop)
    outcome.problems += [Problem("broker-error", failure) for failure in loop.failures]
    outcome.cuts, outcome.kills = world.history.cuts, world.history.kills
    outcome.acknowledged, outcome.virtual_seconds = len(world.history.acked), loop.time()
    return outcome


async def _simulate(world: World, seed: int) -> FinalState:
    machine = Machine(world, seed)
    operator = Operator(world, machine)
    clients: list[Coroutine[Any, Any, None]] = [Admin(world).run(), Producers(world, LANES).run(), Prober(world).run()]
    clients += [Committer(world).run()]
    clients += [Reader(world, f"reader-{number}").run() for number in range(READERS)]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(client) for client in clients]
        await operator.rounds()
        world.tell("the clients finish what is open")
        world.winding_down = True
        await asyncio.wait(tasks)
    machine.power_cut()
    await operator.boot_until_up()
    final = await read_everything(world)
    world.tell(f"read {sum(map(len, final.contents.values()))} records of {len(final.topics)} topics")
    await machine.stop()
    return final


@contextmanager
def garbage_kept() -> Iterator[None]:
    """No garbage collection during a run: its time would depend on what ran before."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def _logs_in(world: World) -> Iterator[None]:
    """Add the broker's own log lines to the story. Lines that it logs as errors are problems."""

    def note(_: object, level: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        text = f"{event.pop('event')} " + " ".join(f"{key}={value}" for key, value in event.items())
        world.tell(f"broker {level}: {text}")
        if level in ("error", "critical", "exception") and not (world.in_trouble or world.lacks_room):
            world.history.problem("broker-error", text)
        raise structlog.DropEvent

    with logs_to(note):
        yield


def close(loop: VirtualLoop) -> None:
    """End everything, in any state."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    with suppress(Stuck):
        loop.run_until_complete(asyncio.wait(tasks, timeout=1) if tasks else asyncio.sleep(0))
    for task in asyncio.all_tasks(loop):
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # it hung, and that is reported
    loop.workers.close()
    loop.close()
