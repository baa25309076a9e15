"""An operator of the cluster itself: brokers join, voters are promoted and demoted, brokers removed, disks replaced.

It asks any broker over Kafka's APIs, as `headrace broker` does, and accepts refusals. A disk is only lost where every
membership that may count can do without it; with less there are no promises.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from headrace.raft.membership import Peer
from headrace.sim.client import Client, Lost
from headrace.sim.cluster.host import Host
from headrace.sim.cluster.judges import Judge
from headrace.sim.cluster.world import PORT, ClusterWorld, address_of
from headrace.wire.apis import ApiKey
from headrace.wire.errors import error_of
from headrace.wire.messages.add_raft_voter import AddRaftVoterRequest
from headrace.wire.messages.remove_raft_voter import RemoveRaftVoterRequest
from headrace.wire.messages.unregister_broker import UnregisterBrokerRequest

CHANGES_SECONDS_MAX: Final = 2.0
TIMEOUT_MS: Final = 3_000
APIS: Final = (ApiKey.ADD_RAFT_VOTER, ApiKey.REMOVE_RAFT_VOTER, ApiKey.UNREGISTER_BROKER)


class Operator:
    """The operator, as the module says. `hosts` are all there are, `spare` those that were never started."""

    def __init__(self, world: ClusterWorld, hosts: list[Host], spare: Sequence[Host], judge: Judge) -> None:
        self._world = world
        self._hosts = hosts
        self._spare = list(spare)
        self._judge = judge
        self._random = world.chance("operator")
        self._lost: set[Peer] = set()
        """Members whose disks are lost."""
        self._clients: dict[int, Client] = {}
        pick = self._random.choice
        self._pace = pick((0.3, 1.0, 3.0))
        self._wipes = pick((0.0, 0.0, 0.15, 0.3))
        """Probability of losing disks. If disks are lost, no votes are removed: with both, a quorum could be lost after
        the check."""
        self._asks = 0

    async def run(self) -> None:
        """Work until the world winds down."""
        asking = set[asyncio.Task[None]]()
        while await self._wait():
            roll = self._random.random()
            if roll < self._wipes:
                self._wipe()
            elif self._spare and roll < 0.4:
                self._join()
            else:  # sometimes a second one while the first is under way
                asking.add(self._world.loop.create_task(self._change()))
        if asking:
            await asyncio.wait(asking)
        for client in self._clients.values():
            client.close()

    async def _wait(self) -> bool:
        """Wait; returns whether to go on after that."""
        await asyncio.sleep(self._random.random() * CHANGES_SECONDS_MAX * self._pace)
        return not self._world.winding_down

    def _join(self) -> None:
        host = self._spare.pop()
        self._world.tell(f"broker {host.node} comes to join")
        self._hosts.append(host)
        host.boot()

    def _wipe(self) -> None:
        host = self._random.choice(self._hosts)
        peers = [peer for peer in self._judge.memberships if peer.node == host.node and peer not in self._lost]
        if peers and self._can_lose({*self._lost, *peers}):
            self._lost.update(peers)
            host.wipe()
            host.boot()

    def _can_lose(self, lost: set[Peer]) -> bool:
        return all(
            not membership.voters or len(membership.voters - lost) >= membership.quorum
            for membership in self._judge.memberships.values()
        )

    async def _change(self) -> None:
        key, version, request = self._some_change()
        node = self._random.choice(self._hosts).node
        self._asks += 1
        what = f"change {self._asks}: {type(request).__name__.removesuffix('Request')} {_broker(request)}"
        client = self._clients.setdefault(node, Client("operator", (address_of(node), PORT)))
        self._world.tell(f"operator: {what} through {node}")
        try:
            answer = await client.call(key, version, request)
        except Lost:
            self._world.tell(f"operator: {what}: unknown")
        else:
            self._world.tell(f"operator: {what}: {error_of(answer.error_code).name} {answer.error_message or ''}")

    def _some_change(self) -> tuple[ApiKey, int, Any]:
        node, roll = self._random.choice(self._hosts).node, self._random.random()
        if roll < 0.5 or self._wipes:
            return ApiKey.ADD_RAFT_VOTER, 0, AddRaftVoterRequest(None, TIMEOUT_MS, node)
        if roll < 0.9:
            return ApiKey.REMOVE_RAFT_VOTER, 0, RemoveRaftVoterRequest(None, node)
        return ApiKey.UNREGISTER_BROKER, 0, UnregisterBrokerRequest(node)


def _broker(request: Any) -> int:
    node: int = request.broker_id if isinstance(request, UnregisterBrokerRequest) else request.voter_id
    return node
