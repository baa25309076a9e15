"""Proves durable history beside its brokers: every object that the catalog names, the mirror, and the seam to the log.

Promises: what blocks is done in a thread. A proof that has a limit of time ends soon after it, and says that it is not
whole. The thread of a proof that is cancelled reads no further object.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from headrace.base.errors import CorruptData, UsageError
from headrace.base.ids import FIRST_OFFSET, Offset, PartitionIndex
from headrace.base.limits import DURABLE_CATALOG_TRIES_MAX
from headrace.metadata.segments import PartitionCatalog, SegmentDescriptor
from headrace.net.client.admin import Admin
from headrace.net.client.cluster import Cluster
from headrace.net.client.offsets import EARLIEST_LOCAL, LATEST
from headrace.operations.histories import History, live_brokers, offsets_of
from headrace.operations.histories import catalog as catalog_of
from headrace.storage.tier.reader import Store
from headrace.storage.tier.verifying import mirror_problems, seam_problems, segment_problems, sentence

DURABLE_URL: Final = "durable.url"
COMPARE_AGAIN_S: Final = 0.5
"""Seconds before a broker that may lag is asked for a catalog again."""


@dataclass(slots=True)
class Verdict:
    """The result of proving one partition's history."""

    history: History
    segments: int = 0
    bytes: int = 0
    start: int = -1
    end: int = -1
    problems: list[str] = field(default_factory=list)
    proven_bytes: int = 0
    """Batch bytes of the objects that were read."""
    passed_bytes: int = 0
    """Batch bytes of the objects below the offset at which it began."""
    next_offset: Offset = FIRST_OFFSET
    """The offset behind the last object that was read: another proof begins there."""
    is_out_of_time: bool = False
    """Whether the time was over before all of it was read."""

    @property
    def is_whole(self) -> bool:
        """Whether all of it was read, from where it began."""
        return self.passed_bytes + self.proven_bytes >= self.bytes

    def summary(self) -> dict[str, Any]:
        return {
            "topic": self.history.topic,
            "partition": self.history.partition,
            "segments": self.segments,
            "bytes": self.bytes,
            "start_offset": self.start,
            "end_offset": self.end,
            "problems": self.problems,
        }


class _OutOfTime(Exception):  # noqa: N818 - a state
    """The time is over in the middle of a history."""


def _nothing(_: int) -> None:
    """Nobody wants to know how far it is."""


async def proved(
    cluster: Cluster,
    found: Sequence[History],
    *,
    on_read: Callable[[int], object] = _nothing,
    seconds: float | None = None,
    begin: Offset = FIRST_OFFSET,
) -> list[Verdict]:
    """Prove histories against the cluster's own catalogs, with the store that its brokers name. `on_read` is called, in
    a thread, with the bytes of each object that was read. After `seconds` no further object is read, but one is in any
    case. Verdicts that are not whole are the last then, and histories that were not begun are left out. `begin`: the
    first history is proven from this offset on. Raises UsageError, ClientError.
    """
    verdicts: list[Verdict] = []
    if not found:
        return verdicts
    until = None if seconds is None else time.monotonic() + seconds
    store = await asyncio.to_thread(Store.open, await store_url(cluster))
    for history, first in zip(found, [begin, *[FIRST_OFFSET] * len(found)], strict=False):
        if verdicts and until is not None and time.monotonic() >= until:
            break
        verdict = Verdict(history)
        verdicts.append(verdict)
        try:
            catalog = await _compared(cluster, store, verdict)
            found_wrong = await proved_in_thread(verdict, store, catalog, on_read, until, first)
            now = await catalog_of(cluster, history) if found_wrong else catalog
        except CorruptData as error:
            verdict.problems.append(sentence(error))
            continue
        verdict.problems += lasting(found_wrong, catalog, now)
    return verdicts


async def proved_in_thread(
    verdict: Verdict,
    store: Store,
    catalog: PartitionCatalog,
    on_read: Callable[[int], object],
    until: float | None = None,
    begin: Offset = FIRST_OFFSET,
) -> list[tuple[Offset, str]]:
    """As `prove`. Where this is cancelled, the thread ends at its next object."""
    is_cancelled = threading.Event()
    try:
        return await asyncio.to_thread(prove, verdict, store, catalog, on_read, until, is_cancelled, begin)
    except asyncio.CancelledError:
        is_cancelled.set()
        raise


def prove(
    verdict: Verdict,
    store: Store,
    catalog: PartitionCatalog,
    on_read: Callable[[int], object],
    until: float | None = None,
    is_cancelled: threading.Event | None = None,
    begin: Offset = FIRST_OFFSET,
) -> list[tuple[Offset, str]]:
    """The problems of its objects, with the first offset of each. `until`: a time by the monotonic clock.
    `is_cancelled`: set where nobody waits for it any more. `begin`: objects that end below it were proven before.
    """
    verdict.segments, verdict.bytes = len(catalog.entries), catalog.batch_bytes
    verdict.start, verdict.end = catalog.readable_start, catalog.end_offset
    passed = [entry.descriptor for entry in catalog if entry.descriptor.end_offset < begin]
    verdict.passed_bytes, verdict.next_offset = sum(each.batch_bytes for each in passed), begin
    history, found = verdict.history, list[tuple[Offset, str]]()

    def on_object(segment: SegmentDescriptor) -> None:
        verdict.proven_bytes += segment.batch_bytes
        verdict.next_offset = segment.next_offset
        on_read(segment.batch_bytes)
        if is_cancelled is not None and is_cancelled.is_set():
            raise _OutOfTime
        if until is not None and time.monotonic() >= until and not verdict.is_whole:
            raise _OutOfTime

    try:
        partition = PartitionIndex(history.partition)
        found.extend(segment_problems(store, history.topic, partition, catalog, on_object, begin=begin))
    except _OutOfTime:
        verdict.is_out_of_time = True
    return found


def lasting(found_wrong: Sequence[tuple[Offset, str]], catalog: PartitionCatalog, now: PartitionCatalog) -> list[str]:
    """The problems, except those of segments that have left the catalog since, whose objects may be gone."""
    there = {start: entry.descriptor for start, _ in found_wrong if (entry := now.entries.get(start)) is not None}
    return [text for start, text in found_wrong if there.get(start) == catalog.entries[start].descriptor]


async def _compared(cluster: Cluster, store: Store, verdict: Verdict) -> PartitionCatalog:
    """The catalog, once it fits the mirror and the log. A broker that lags a little is asked again."""
    history, partition = verdict.history, PartitionIndex(verdict.history.partition)
    for left in reversed(range(DURABLE_CATALOG_TRIES_MAX)):
        starts = await offsets_of(cluster, history.topic, [partition], EARLIEST_LOCAL)
        mirrored, problems = None, list[str]()
        try:
            mirrored = await asyncio.to_thread(store.catalog, history.mirrored_topic, partition)
        except CorruptData as error:
            problems.append(sentence(error))
        catalog = await catalog_of(cluster, history)
        if mirrored is not None:
            problems += mirror_problems(history.topic, partition, mirrored, catalog)
            if mirrored.end_offset < 0 and catalog.entries:  # the first segment's mirror follows at once
                count = len(catalog.entries)
                problems.append(
                    f"{history.topic}-{partition}: its mirror is not in the store, though the brokers know {count} "
                    "segments of it: without them it could not be read."
                )
        ends = await offsets_of(cluster, history.topic, [partition], LATEST)
        if partition in starts and partition in ends:  # else there is no leader, as `headrace doctor` reports
            problems += seam_problems(history.topic, partition, catalog, starts[partition], ends[partition])
        if not problems or not left:
            break
        await asyncio.sleep(COMPARE_AGAIN_S)
    verdict.problems += problems
    return catalog


async def store_url(cluster: Cluster) -> str:
    """The store that the brokers name. Raises UsageError where none does, ClientError."""
    admin = Admin(cluster)
    for broker in await live_brokers(cluster):
        for config in await admin.broker_configs(broker.id):
            if config.name == DURABLE_URL and config.value:
                return config.value
    raise UsageError("No broker has a durable store (durable.url): name the one to read with --store URL.")
