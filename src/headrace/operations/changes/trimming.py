"""Plans of records that are deleted: those of a partition before an offset."""

from __future__ import annotations

from functools import partial
from typing import Final, NamedTuple

from headrace.base.errors import UsageError
from headrace.base.reading import LONG_MAX, natural
from headrace.net.client.cluster import Cluster
from headrace.net.client.deletions import delete_records
from headrace.net.client.offsets import EARLIEST, LATEST
from headrace.operations.changes.plan import Plan
from headrace.operations.histories import offsets_of

END: Final = "end"
"""Stands for the end that the partition has when the plan is made."""


class GoneRecords(NamedTuple):
    """The records of one partition that are to go."""

    topic: str
    id: str
    partition: int
    before: int
    """Its new start."""


async def trimming(cluster: Cluster, topic: str, partition: int, before: str) -> Plan:
    """`before`: an offset, or END. `known` is the number of offsets that go. Raises UsageError, ClientError."""
    view = await cluster.existing_topic(topic)
    if partition >= len(view.partitions):
        raise UsageError(f"Topic '{topic}' has partitions 0 to {len(view.partitions) - 1}.")
    first = (await offsets_of(cluster, topic, [partition], EARLIEST)).get(partition)
    end = (await offsets_of(cluster, topic, [partition], LATEST)).get(partition)
    if first is None or end is None:
        raise UsageError(f"Partition {partition} of topic '{topic}' has no leader now: try again when it has one.")
    offset = end if before == END else _offset(before)
    obstacle = ""
    if view.internal:
        obstacle = f"Topic '{topic}' is the brokers' own: they need it."
    elif offset > end:
        obstacle = f"Partition {partition} ends at offset {end}: nothing beyond can be deleted."
    elif offset <= first:
        obstacle = f"Partition {partition} begins at offset {first} already."
    row = GoneRecords(topic, str(view.id), partition, offset)
    words = ["topic", "delete-records", topic, "--partition", str(partition), "--before", str(offset), "--execute"]
    carry_out = partial(delete_records, cluster, topic, partition, offset)
    return Plan(words, [row], carry_out, obstacle, max(0, offset - first), topic)


def _offset(text: str) -> int:
    try:
        return natural(text, LONG_MAX)
    except ValueError:
        raise UsageError(f"'{text:.40}' is no offset: write a whole number, or '{END}'.") from None
