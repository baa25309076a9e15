"""Disks that damage their content: bytes of a closed segment change, become zero, or are cut off at its end.

Damage hits one copy of a partition at a time, in records that are promised and on every other replica. With fewer sound
copies there are no promises. It stays below the log's checkpoint. Above that, after a kill, nobody can tell damage from
a torn write (decision 0014). It draws from its own source of randomness.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from typing import Final

from headrace.sim.cluster.host import Host
from headrace.sim.cluster.records.judge import RecordsJudge
from headrace.sim.cluster.records.media import directory_of, parse
from headrace.sim.cluster.world import ClusterWorld
from headrace.sim.history import PartitionKey
from headrace.sim.nodes import DirectoryNode, FileNode

CHECKPOINT: Final = "checkpoint.json"
SUFFIX: Final = ".log"
PAUSE_SECONDS_MAX: Final = 0.2
EPOCH: Final = range(12, 16)
"""Bytes of a batch that neither a checksum nor anything else protects."""


class Rot:
    """The damage, as the module says. `partitions` is the run's own collection, with the names of their topics."""

    def __init__(
        self, world: ClusterWorld, hosts: Sequence[Host], judge: RecordsJudge, partitions: dict[PartitionKey, str]
    ) -> None:
        self._world = world
        self._hosts = hosts
        self._judge = judge
        self._partitions = partitions
        self._chance = world.chance("rot")
        self.acts = 0

    async def run(self) -> None:
        """Work for ever."""
        while True:
            await asyncio.sleep(self._chance.random() * PAUSE_SECONDS_MAX)
            if self._partitions:
                self.strike(self._chance.choice(self._hosts), self._chance.choice(list(self._partitions)))

    def strike(self, host: Host, key: PartitionKey) -> None:
        """Damage the copy where that is allowed, and if there is any content."""
        state = self._judge.state(key)
        if state is None or len(state.isr) < len(state.replicas) or host.node not in state.replicas:
            return
        if self._judge.is_any_rotten(key):
            return
        directory = directory_of(host.disk, f"{self._partitions[key]}-{key.number}")
        files = [] if directory is None else list(_closed(directory))
        promised = self._judge.promised(key)
        spots = [(file, batch) for file in files for batch in parse(bytes(file.durable)) if batch.end <= promised]
        if not spots:
            return
        file, batch = self._chance.choice(spots)
        what = self._damage(file, bytes(file.durable).index(batch.data), len(batch.data))
        self.acts += 1
        self._world.tell(
            f"the disk of broker {host.node} damages partition {key.number} at offset {batch.base}: {what}"
        )
        self._judge.on_rot(host.node, key, file, batch)

    def _damage(self, file: FileNode, at: int, size: int) -> str:
        kind = self._chance.choice(("a byte", "a byte", "zeroes", "its end is cut off"))
        data = bytearray(file.durable)
        if kind == "a byte":
            place = self._chance.choice([each for each in range(size) if each not in EPOCH])
            data[at + place] ^= 1 << self._chance.randrange(8)
        elif kind == "zeroes":
            data[at : at + size] = bytes(size)
        else:
            del data[at + self._chance.randrange(size) :]
        file.rot(data)
        return kind


def _closed(directory: DirectoryNode) -> Iterator[FileNode]:
    """Segments below the one in the durable checkpoint whose bytes have all reached the medium."""
    checkpoint = directory.durable.get(CHECKPOINT)
    if not isinstance(checkpoint, FileNode):
        return
    point = json.loads(bytes(checkpoint.durable).partition(b"\n")[0])["segment"]
    for name, file in sorted(directory.durable.items()):
        is_segment = name.endswith(SUFFIX) and isinstance(file, FileNode)
        if is_segment and int(name.removesuffix(SUFFIX)) < point and directory.names.get(name) is file:
            assert isinstance(file, FileNode)
            if not file.pending:
                yield file
