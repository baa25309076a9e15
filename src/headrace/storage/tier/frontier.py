"""Where a log begins that begins behind durable history, and what has to be known there.

Promises: it is given out only once the store was read: the footers of some segments, the first and the last among
them, and the end of the last one, which are what the catalog says. All of it blocks: never on the event loop.
"""

from __future__ import annotations

from typing import NamedTuple

from headrace.base.errors import CorruptData
from headrace.base.ids import LeaderEpoch, Offset
from headrace.base.limits import FRONTIER_FOOTERS_READ_MAX
from headrace.base.ports import Objects
from headrace.metadata.segments import PartitionCatalog, SegmentDescriptor
from headrace.replica.producers import ProducerStates
from headrace.storage.tier.blocks import plan_of, read_block, read_footer
from headrace.storage.tier.producers import producers_of


class Beginning(NamedTuple):
    """Of a log."""

    offset: Offset
    epoch: LeaderEpoch
    """Of the record before it; -1 where there is none."""
    producers: ProducerStates
    """As of there."""


class NotTold(CorruptData):
    """History is as the catalog says, as far as there is any, but has nothing to say of the producers."""


def read_beginning(objects: Objects, catalog: PartitionCatalog, *, now_ms: int) -> Beginning:
    """At the durable frontier. Raises CorruptData where a segment is not what the catalog says, or the last one does
    not tell its producers (NotTold); FileNotFoundError, EOFError, StorageFailure."""
    if catalog.last is None:
        raise NotTold("all of its durable history is deleted")
    last = catalog.last.descriptor
    footer = read_footer(objects, last)
    if not footer.leader_epochs:
        raise CorruptData(f"the footer of object '{last.key}' names no leader epoch")
    producers = producers_of(footer.producers, now_ms=now_ms)
    if producers is None:
        raise NotTold(f"object '{last.key}' is of a version that does not tell its producers")
    plan = plan_of(last, footer)
    read_block(objects, plan, len(plan.starts) - 1)
    for segment in some_of(catalog):
        read_footer(objects, segment)
    return Beginning(last.next_offset, LeaderEpoch(footer.leader_epochs[-1].leader_epoch), producers)


def some_of(catalog: PartitionCatalog) -> list[SegmentDescriptor]:
    """The first, and others at even distances: all but the last, where these are few enough."""
    segments = [entry.descriptor for entry in catalog][:-1]
    step = max(1, -(-len(segments) // FRONTIER_FOOTERS_READ_MAX))
    return segments[::step]
