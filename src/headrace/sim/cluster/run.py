"""One run of a cluster from one seed: whole brokers for an even seed, their quorum alone for an odd one.

A run of whole brokers has everything and few elections. A run of a quorum alone is cheap, and has many times as many
leaders, rivals and changes of the membership (decision 0019).
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Final
from unittest.mock import patch

import structlog

from headrace.sim.cluster.brokers_run import BrokersRun
from headrace.sim.cluster.clients import APIS
from headrace.sim.cluster.operator import APIS as OPERATORS_APIS
from headrace.sim.cluster.quorum_run import QuorumRun
from headrace.sim.cluster.world import ClusterWorld
from headrace.sim.guard import guarded
from headrace.sim.history import Problem
from headrace.sim.loop import Stuck, VirtualLoop
from headrace.sim.run import close, garbage_kept
from headrace.wire.apis import api

RUN_SECONDS_MAX: Final = 600.0
EVENTS_PER_SNAPSHOT: Final = 25
KINDS: Final = (BrokersRun, QuorumRun)
"""Used in turn."""


@dataclass(slots=True)
class ClusterOutcome:
    """The outcome of one seed."""

    seed: int
    problems: list[Problem] = field(default_factory=list)
    story: list[str] = field(default_factory=list)
    figures: Counter[str] = field(default_factory=Counter)

    @property
    def is_sound(self) -> bool:
        return not self.problems


def run_cluster(seed: int) -> ClusterOutcome:
    """Simulate one seed. Never raises for anything that the brokers did."""
    for key in (*APIS, *OPERATORS_APIS):
        api(key)
    loop = VirtualLoop(random.Random(f"loop {seed}"))
    world = ClusterWorld(loop, seed)
    run = KINDS[seed % len(KINDS)](world)
    outcome = ClusterOutcome(seed, story=world.story)
    with ExitStack() as stack:
        for each in (garbage_kept(), guarded(), logs_in(world), run.watching(), _small_snapshots()):
            stack.enter_context(each)
        try:
            loop.run_until_complete(asyncio.wait_for(run.whole(), RUN_SECONDS_MAX))
        except (Stuck, TimeoutError) as error:
            world.problem("stuck", repr(error))
        finally:
            close(loop)
    for failure in loop.failures:
        world.problem("broker-error", failure)
    outcome.problems = world.problems
    outcome.figures.update(run.figures())
    return outcome


@contextmanager
def _small_snapshots() -> Iterator[None]:
    with patch("headrace.broker.cluster.quorum.member.METADATA_EVENTS_PER_SNAPSHOT", EVENTS_PER_SNAPSHOT):
        yield


@contextmanager
def logs_in(world: ClusterWorld) -> Iterator[None]:
    """Add the brokers' own log lines to the story."""

    def note(_: object, level: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        text = f"{event.pop('event')} " + " ".join(f"{key}={value}" for key, value in event.items())
        world.tell_of(f"{level}: {text}")
        raise structlog.DropEvent

    before = structlog.get_config()
    structlog.configure(processors=[note], cache_logger_on_first_use=False)
    try:
        yield
    finally:
        structlog.configure(**before)
