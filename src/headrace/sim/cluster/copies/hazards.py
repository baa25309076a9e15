"""Faults of a table (`copies.table`) beside those of the run, in a mixture of its own in each run.

Its replicas are reassigned, its export is switched off and on, some of its records are deleted, and its directory is
lost. All of it draws from the table's own source of randomness.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Final

from headrace.metadata.image import MetadataImage
from headrace.metadata.values import PartitionImage
from headrace.sim.cluster.copies.asker import Asker
from headrace.sim.cluster.host import Host
from headrace.sim.cluster.records.assigning import Assigner
from headrace.sim.cluster.records.media import lose_directory
from headrace.sim.cluster.world import ClusterWorld
from headrace.sim.history import PartitionKey
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from headrace.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)

REPLICAS: Final = (1, 1, 2, 2, 3)
MAY_LOSE: Final = 0.5
"""Share of the runs with two replicas in which leaders may be elected uncleanly."""
FORGETS: Final = 0.6
"""Share of the runs with one replica in which a tombstone goes as soon as it may. With more replicas, a follower that
copies for longer than delete.retention.ms may miss one, as in Kafka."""
NEVER_MS: Final = 1 << 50
AGES: Final = 0.4
"""Share of the runs in which old records are deleted, too."""
RETAINED_BYTES: Final = (-1, 2_500, 6_000)
RETAINED_MS: Final = (-1, -1, 4_000)
WEIGHTS: Final = (0.0, 1.0, 3.0)
PACES: Final = (0.3, 1.0, 3.0)
"""Longest pause between two of these faults, in seconds."""
DOWN_SECONDS_MAX: Final = 0.5
DIRECTORIES_MAX: Final = 2
"""Directories that are lost in one run."""
TOPIC: Final = 2
"""The protocol's number for this type of configured resource."""
USURPS: Final = (2.0, 8.0)
LOSES_A_DISK: Final = 0.3
LOSES_A_DIRECTORY: Final = 0.5
"""Share of the runs with one replica."""


class Hazards:
    """The faults of a table, as the module says."""

    def __init__(self, world: ClusterWorld, name: str, chance: random.Random) -> None:
        self._world, self._name, self._chance = world, name, chance
        pick = chance.choice
        self.replicas = pick(REPLICAS)
        self.may_lose = self.replicas == 2 and chance.random() < MAY_LOSE
        self.forgets = self.replicas == 1 and chance.random() < FORGETS
        self.ages = chance.random() < AGES
        self._retained = {"retention.bytes": str(pick(RETAINED_BYTES)), "retention.ms": str(pick(RETAINED_MS))}
        self._pace = pick(PACES)
        self._weights = [pick(WEIGHTS) for _ in range(4)]
        self.usurps = pick(USURPS) if self.may_lose else 0.0
        self.loses_a_disk = self.replicas > 1 and chance.random() < LOSES_A_DISK
        self._loses_a_directory = self.replicas == 1 and chance.random() < LOSES_A_DIRECTORY
        self.is_exported = True
        self.rests = False
        """Set while no fault is to be caused."""
        self._placed: tuple[int, ...] = ()
        self.switches = self.placements = self.deletions = self.directories = 0
        """Counts of faults that succeeded."""

    def configs(self) -> dict[str, str]:
        """Further configs of the topic."""
        return {
            "cleanup.policy": "compact,delete" if self.ages else "compact",
            "delete.retention.ms": "0" if self.forgets else str(NEVER_MS),
            "unclean.leader.election.enable": "true" if self.may_lose else "false",
            **(self._retained if self.ages else {}),
        }

    def join(
        self,
        key: PartitionKey,
        hosts: Sequence[Host],
        state: Callable[[], PartitionImage | None],
        end: Callable[[], int],
        lost: Callable[[], object],
        outruns: Callable[[], object],
    ) -> None:
        """`end` gives the end of the acknowledged records. `lost` is called when a directory is lost. `outruns` is
        called when the log may be compacted before its history from now on."""
        self._key, self._hosts = key, hosts
        self._asker = Asker(f"who changes the {self._name}", hosts, self._chance)
        self._state, self._end, self._lost, self._outruns = state, end, lost, outruns
        self._assigner = Assigner(self._world, {key: self._name}, "who moves the table")

    def on_image(self, image: MetadataImage) -> None:
        """Count completed reassignments."""
        state = image.partition_info(self._name, 0)
        if state is not None and not state.is_reassigned:
            now = tuple(sorted(state.replicas))
            self.placements += bool(self._placed) and now != self._placed
            self._placed = now

    async def run(self) -> None:
        """Cause faults until the world winds down."""
        acts = [self._switch, self._move, self._delete, self._lose_the_directory]
        may = [True, not self.forgets, self.ages, self._loses_a_directory]
        weights = [weight if allowed else 0.0 for weight, allowed in zip(self._weights, may, strict=True)]
        while any(weights) and not self._world.winding_down:
            await asyncio.sleep(self._chance.random() * self._pace)
            [act] = self._chance.choices(acts, weights)
            if not self.rests:
                await act()
        self._assigner.close()
        self._asker.elsewhere()

    async def _switch(self) -> None:
        """Switch its export off or on."""
        value = "false" if self.is_exported else "true"
        changed = (AlterableConfig("durable.enable", 0, value),)
        request = IncrementalAlterConfigsRequest((AlterConfigsResource(TOPIC, self._name, changed),))
        self._outruns()  # the switch may happen although no answer comes
        answer = await self._asker.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, request)
        if answer is not None and answer.responses[0].error_code == ErrorCode.NONE:
            self.switches += 1
            self.is_exported = not self.is_exported
            self._world.tell(f"durable.enable={value} for the table")
        else:
            self._asker.elsewhere()

    async def _move(self) -> None:
        """Reassign it to other brokers, or cancel that."""
        nodes = [host.node for host in self._hosts]
        to = tuple(self._chance.sample(nodes, min(self.replicas, len(nodes))))
        state = self._state()
        replicas = None if state is not None and state.is_reassigned and self._chance.random() < 0.2 else to
        await self.place(replicas, through=self._chance.choice(nodes))

    async def place(self, replicas: tuple[int, ...] | None, *, through: int) -> bool:
        """Ask for these replicas; returns whether the controller agreed."""
        return await self._assigner.place(self._key, replicas, through=through)

    async def _delete(self) -> None:
        """Delete some old records."""
        offset = int(self._end() * self._chance.random() ** 2)
        topic = DeleteRecordsTopic(self._name, (DeleteRecordsPartition(0, offset),))
        answer = await self._asker.ask(ApiKey.DELETE_RECORDS, 2, DeleteRecordsRequest((topic,), 1_000))
        if answer is not None and answer.topics[0].partitions[0].error_code == ErrorCode.NONE:
            self.deletions += 1
            self._world.tell(f"the table is deleted up to {offset}")
        else:
            self._asker.elsewhere()

    async def _lose_the_directory(self) -> None:
        """Lose the directory of the only log, while its broker is down."""
        state = self._state()
        if state is None or state.is_reassigned or len(state.replicas) != 1:
            return
        host = next(host for host in self._hosts if host.node == state.replicas[0])
        if not host.is_up or host.is_paused or self.directories == DIRECTORIES_MAX:
            return
        host.kill()
        self.directories += 1
        self._world.tell(f"the directory of the table is lost on broker {host.node}")
        lose_directory(host.disk, f"{self._name}-{self._key.number}")
        self._lost()
        await asyncio.sleep(self._chance.random() * DOWN_SECONDS_MAX)
        _boot(host)

    def figures(self) -> dict[str, float]:
        """Figures for the table of a swarm."""
        return {
            "switches of its export": self.switches,
            "placements of it": self.placements,
            "deletions of its records": self.deletions,
            "lost directories of it": self.directories,
        }


def _boot(host: Host) -> None:
    """Boot the host unless it is up already."""
    if not host.is_up:
        host.boot()
