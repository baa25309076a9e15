"""Faults that simulated clusters found, each as the shortest story that shows it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Any

from headrace.broker.cluster.quorum.commit_log import SETTINGS
from headrace.sim.client import Client, Lost
from headrace.sim.cluster.brokers import BrokerPrograms
from headrace.sim.cluster.clients import APIS
from headrace.sim.cluster.host import Host
from headrace.sim.cluster.judges import Judge, watching
from headrace.sim.cluster.operator import APIS as OPERATORS_APIS
from headrace.sim.cluster.play import logs_in
from headrace.sim.cluster.world import PORT, ClusterWorld, address_of
from headrace.sim.guard import guarded
from headrace.sim.journals import NONE
from headrace.sim.loop import VirtualLoop
from headrace.sim.run import close, garbage_kept
from headrace.storage.log.journal.journal import JournalSettings
from headrace.wire.apis import ApiKey, api
from headrace.wire.messages.remove_raft_voter import RemoveRaftVoterRequest

SECONDS_MAX = 120.0


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 - virtual time
        await asyncio.sleep(0.05)


class Script:
    """A cluster that does what a test says."""

    def __init__(self, *, born: int, spare: int, journal: JournalSettings = NONE) -> None:
        for key in (*APIS, *OPERATORS_APIS):
            api(key)
        self.loop = VirtualLoop(random.Random(1))
        self.world = ClusterWorld(self.loop, 1)
        self.judge = Judge(self.world.problem, self.world.tell_of)
        programs = BrokerPrograms(range(1, born + 1), journal=lambda: journal)
        self.hosts = {node: Host(self.world, node, programs) for node in range(1, born + spare + 1)}
        programs.birth([self.hosts[node] for node in range(1, born + 1)])

    def run(self, story: Callable[[], Awaitable[None]]) -> None:
        async def told() -> None:
            await asyncio.wait_for(story(), SECONDS_MAX)
            for host in self.hosts.values():
                host.end()
            await asyncio.sleep(1)

        with ExitStack() as stack:
            for each in (
                garbage_kept(),
                guarded(),
                logs_in(self.world),
                watching(self.judge, tick_ms=50, settings=SETTINGS),
            ):
                stack.enter_context(each)
            try:
                self.loop.run_until_complete(told())
            finally:
                close(self.loop)
        assert not self.world.problems, self.world.problems

    async def served(self, *nodes: int) -> None:
        await until(lambda: all(self.hosts[node].serves for node in nodes))

    async def insist(self, node: int, key: ApiKey, version: int, request: Any) -> Any:
        """Ask until it is answered without an error."""
        client = Client("script", (address_of(node), PORT))
        while True:
            try:
                answer = await client.call(key, version, request)
            except Lost:
                answer = None
            if answer is not None and not getattr(answer, "error_code", 0):
                client.close()
                return answer
            await asyncio.sleep(0.2)


def test_voters_that_are_not_of_the_birth_find_each_other_after_all_were_without_power() -> None:
    """Committed entries are unknown before there is a leader, and so are the addresses of the newcomers."""
    script = Script(born=1, spare=2)

    async def story() -> None:
        script.hosts[1].boot()
        await script.served(1)
        for node in (2, 3):
            script.hosts[node].boot()
            await script.served(node)
        seen = script.judge.memberships
        await until(lambda: any(len(each.voters) == 3 for each in seen.values()))  # they are promoted by themselves
        await script.insist(2, ApiKey.REMOVE_RAFT_VOTER, 0, RemoveRaftVoterRequest(None, 1))
        for host in script.hosts.values():
            host.power_cut()
        for node in (2, 3):
            script.hosts[node].boot()
        await script.served(2, 3)

    script.run(story)
