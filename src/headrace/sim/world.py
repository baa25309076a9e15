"""State shared by the clients of one run: the loop, randomness, the history, the story, and who may still work."""

from __future__ import annotations

import asyncio
import random
import uuid
from dataclasses import dataclass
from typing import Final

from headrace.sim.history import History, PartitionKey
from headrace.sim.loop import VirtualLoop
from headrace.sim.network import Address
from headrace.wire.apis import ApiKey

BROKER: Final[Address] = ("127.0.0.1", 9092)


@dataclass(frozen=True, slots=True)
class Versions:
    """The API versions of this run, those of old clients and new ones."""

    produce: int
    fetch: int

    @property
    def produces_by_id(self) -> bool:
        return self.produce >= 13

    @property
    def fetches_by_id(self) -> bool:
        return self.fetch >= 13


class RunOver(Exception):  # noqa: N818 - a state of the run
    """A problem after which the rest would show nothing more. The history has it already."""


class World:
    """Made before the run. `winding_down`: start no new work, finish what is open."""

    def __init__(self, loop: VirtualLoop, seed: int) -> None:
        self.loop = loop
        self.random = random.Random(f"workload {seed}")
        self.history = History()
        self.story: list[str] = []
        self.winding_down = False
        self.in_trouble = False
        """The operator makes the disk fail: refusals and errors of any kind are allowed."""
        self.lacks_room = False
        """The logs' disk is full for a while: writes are refused, and the broker may complain."""
        self.live_partitions: dict[PartitionKey, str] = {}
        """Partitions to work on, with their topics' names."""
        self.versions = Versions(self.random.choice((3, 7, 9, 12, 13, 13)), self.random.choice((4, 8, 12, 13, 16)))

    def tell(self, text: str) -> None:
        """Add one line to the story."""
        self.story.append(f"{self.loop.time():11.6f}  {text}")

    async def think(self, seconds_max: float) -> None:
        """Wait for a random time."""
        await asyncio.sleep(self.random.random() * seconds_max)

    def open_topic(self, name: str, topic_id: uuid.UUID, partitions: int) -> None:
        for index in range(partitions):
            self.live_partitions[PartitionKey(topic_id, index)] = name

    def close_topic(self, topic_id: uuid.UUID) -> None:
        for partition in [each for each in self.live_partitions if each.topic_id == topic_id]:
            del self.live_partitions[partition]


def known_keys() -> list[ApiKey]:
    """The APIs that the workload speaks, so that their messages can be loaded before any clock starts."""
    return [
        ApiKey.PRODUCE,
        ApiKey.FETCH,
        ApiKey.LIST_OFFSETS,
        ApiKey.METADATA,
        ApiKey.CREATE_TOPICS,
        ApiKey.DELETE_TOPICS,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.INIT_PRODUCER_ID,
        ApiKey.FIND_COORDINATOR,
        ApiKey.OFFSET_COMMIT,
        ApiKey.OFFSET_FETCH,
    ]
