"""Where a log begins that begins behind durable history, and what has to be known there.

Promises: it is given out only once the store was read: the footers of some segments, the first and the last among
them, and the end of the last one, which are what the catalog says. All of it blocks: never on the event loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from headrace.base.errors import CorruptData
from headrace.base.ids import LeaderEpoch, Offset
from headrace.base.limits import FRONTIER_BATCHES_BYTES_MAX, FRONTIER_FOOTERS_READ_MAX
from headrace.base.ports import Objects
from headrace.metadata.segments import PartitionCatalog, SegmentDescriptor
from headrace.replica.producers import ProducerStates
from headrace.storage.tier.blocks import Plan, plan_of, read_block, read_footer
from headrace.storage.tier.producers import producers_of
from headrace.wire.batches import iterate_headers


class Beginning(NamedTuple):
    """Of a log."""

    offset: Offset
    epoch: LeaderEpoch
    """Of the record before it; -1 where there is none."""
    producers: ProducerStates
    """As of there."""


class NotTold(CorruptData):
    """History is as the catalog says, as far as there is any, but has nothing to say of the producers."""


def read_beginning(
    objects: Objects, catalog: PartitionCatalog, *, now_ms: int, gives_up: Callable[[], bool] = lambda: True
) -> Beginning:
    """At the durable frontier. Where the last footer does not tell its producers, its batches are to, and those before
    them, unless one `gives_up`. Raises CorruptData where a segment is not what the catalog says, or the producers are
    not told (NotTold); FileNotFoundError, EOFError, StorageFailure."""
    if catalog.last is None:
        raise NotTold("all of its durable history is deleted")
    last = catalog.last.descriptor
    footer = read_footer(objects, last)
    if not footer.leader_epochs:
        raise CorruptData(f"the footer of object '{last.key}' names no leader epoch")
    producers = producers_of(footer.producers, now_ms=now_ms)
    if producers is None:
        producers = producers_in_batches(objects, catalog, now_ms=now_ms, gives_up=gives_up)
    if producers is None:
        raise NotTold(f"object '{last.key}' is of a version that does not tell its producers")
    plan = plan_of(last, footer)
    read_block(objects, plan, len(plan.starts) - 1)
    for segment in some_of(catalog):
        read_footer(objects, segment)
    return Beginning(last.next_offset, LeaderEpoch(footer.leader_epochs[-1].leader_epoch), producers)


def producers_in_batches(
    objects: Objects, catalog: PartitionCatalog, *, now_ms: int, gives_up: Callable[[], bool]
) -> ProducerStates | None:
    """All of them, by the headers of all batches since the last footer that tells its producers, or since offset 0;
    None where these are more than FRONTIER_BATCHES_BYTES_MAX, or are gone, or one `gives_up`, which is asked before
    each reading. Raises as `read_beginning`."""
    plans: list[Plan] = []
    size, producers = 0, None
    for entry in reversed(list(catalog)):
        if gives_up():
            return None
        footer = read_footer(objects, entry.descriptor)
        if (producers := producers_of(footer.producers, now_ms=now_ms)) is not None:
            break
        size += footer.batch_bytes
        if size > FRONTIER_BATCHES_BYTES_MAX:
            return None
        plans.append(plan_of(entry.descriptor, footer))
    if producers is None:
        if not plans or plans[-1].footer.start_offset > 0:
            return None
        producers = ProducerStates()
    for plan in reversed(plans):
        for number in range(len(plan.starts)):
            if gives_up():
                return None
            for _, header in iterate_headers(read_block(objects, plan, number).data):
                producers.on_appended(header, Offset(header.base_offset), now_ms)
    return producers


def some_of(catalog: PartitionCatalog) -> list[SegmentDescriptor]:
    """The first, and others at even distances: all but the last, where these are few enough."""
    segments = [entry.descriptor for entry in catalog][:-1]
    step = max(1, -(-len(segments) // FRONTIER_FOOTERS_READ_MAX))
    return segments[::step]
