"""Deletes the beginnings of partitions while transactions are open there, and tells judges what may be missing for it.

A client deletes records at random places, in the middle of transactions. Retention deletes segments by their size.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from headrace.sim.client import Lost
from headrace.sim.cluster.transactions.history import Ending, History, Partition, Write
from headrace.sim.cluster.transactions.stage import Stage, Ways
from headrace.wire.apis import ApiKey
from headrace.wire.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic

TIMEOUT_MS: Final = 500
PAUSES_SECONDS_MAX: Final = (0.2, 1.0, 3.0)
"""Longest time between two deletions."""


class Deleter:
    """A client that deletes records until the run winds down."""

    def __init__(self, stage: Stage, name: str) -> None:
        self._stage = stage
        self._chance = stage.world.chance(f"deleter {name}")
        self._pause = self._chance.choice(PAUSES_SECONDS_MAX)
        self._ways = Ways(stage, name, self._chance)
        self.deletions = 0

    async def run(self) -> None:
        while not self._stage.winding_down:
            await self._stage.world.think(self._pause)
            await self._delete(self._chance.choice(self._stage.partitions))
        self._ways.close()

    async def _delete(self, partition: Partition) -> None:
        """Delete some of what readers were last told to be committed."""
        polls = (each for each in reversed(self._stage.history.polls) if each.partition == partition)
        end = max(0, next((each.high_watermark for each in polls), 0))
        offset = self._chance.randrange(end + 1)
        asked = DeleteRecordsTopic(partition.topic, (DeleteRecordsPartition(partition.number, offset),))
        try:
            request = DeleteRecordsRequest((asked,), TIMEOUT_MS)
            answer = await self._ways.ask_leader(partition, ApiKey.DELETE_RECORDS, 2, request)
        except Lost:
            return
        [topic] = answer.topics
        [answered] = topic.partitions
        if answered.error_code:
            self._ways.is_no_leader(partition)
        else:
            self.deletions += 1
            self._stage.world.tell(f"records of {partition} are deleted below {offset}")


def left_of(history: History, ending: Ending) -> tuple[History, Ending]:
    """The history and the ending without what may have been deleted. That is each record below its partition's start,
    and each missing one of which nobody knows the offset.
    """
    starts = ending.starts
    there = {part: {each.value for each in log if each.offset >= starts[part]} for part, log in ending.logs.items()}

    def is_left(write: Write) -> bool:
        start = starts.get(write.partition, 0)
        is_known = write.offset is not None and write.offset >= start
        return not start or is_known or write.value in there[write.partition]

    transactions = [replace(each, writes=[*filter(is_left, each.writes)]) for each in history.transactions]
    logs = {part: [each for each in log if each.offset >= starts[part]] for part, log in ending.logs.items()}
    contents = {
        part: [each for each in found if each.offset >= starts[part]] for part, found in ending.contents.items()
    }
    return replace(history, transactions=transactions), replace(ending, contents=contents, logs=logs)
