"""Partitions without a catalog in the store when an audit was planned. Should there be one, and did one appear since?

Promises:

- Objects that exist and are not in a catalog are reported.
- A catalog that appeared since is reported, because none of its history was examined. The exception: all of it was
  exported since the audit began.
- A first segment whose mirror is still to be written is waited for. Each partition gets the whole waiting time, which
  all of them share.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import sleep
from typing import NamedTuple

from headrace.base.errors import CorruptData
from headrace.base.ids import PartitionIndex
from headrace.base.limits import AUDIT_MIRROR_LOOK_MS, AUDIT_MIRROR_TRIES_MAX
from headrace.metadata.segments import PartitionCatalog, genesis_hash
from headrace.spark.read.extent import ReadTopic, Sources
from headrace.storage.tier.leftovers import left_of
from headrace.storage.tier.verifying import sentence


class Absent(NamedTuple):
    """A partition that has history, and had no catalog."""

    topic: ReadTopic
    partition: int
    why: str
    """The evidence of its history."""
    advice: str = ""


def absent_by_store(sources: Sources, topic: ReadTopic, partition: int) -> Absent | None:
    """For an audit of the store alone."""
    found = next(_left(sources, topic, partition), None)
    if found is None:
        return None
    return Absent(topic, partition, f"object '{found}' is", ": audit it beside its brokers")


def absent_by_brokers(topic: ReadTopic, partition: int, catalog: PartitionCatalog) -> Absent | None:
    """`catalog`: the brokers' catalog."""
    if not catalog.entries:
        return None
    return Absent(topic, partition, f"the brokers know {len(catalog.entries)} segments of it")


def absence_problems(sources: Sources, absent: Sequence[Absent], since_ms: int) -> list[str | None]:
    """The problem of each partition, if any. `since_ms`: when the audit began."""
    found: list[PartitionCatalog | CorruptData | None] = [None] * len(absent)
    for look in range(AUDIT_MIRROR_TRIES_MAX + 1):
        if look:
            sleep(AUDIT_MIRROR_LOOK_MS / 1000)
        for at, each in enumerate(absent):
            if not isinstance(found[at], PartitionCatalog):
                found[at] = _catalog(sources, each)
        if all(isinstance(each, PartitionCatalog) for each in found):
            break
    return [_problem(sources, each, catalog, since_ms) for each, catalog in zip(absent, found, strict=True)]


def _catalog(sources: Sources, absent: Absent) -> PartitionCatalog | CorruptData | None:
    """The present catalog. Damage may mean that it is being written."""
    assert sources.store is not None, "an audit has one"
    topic = absent.topic
    try:
        mirrored = topic.mirrored or sources.store.topic_of(topic.id)
        return sources.catalog(topic._replace(mirrored=mirrored), absent.partition)
    except CorruptData as error:
        return error


def _problem(
    sources: Sources, absent: Absent, catalog: PartitionCatalog | CorruptData | None, since_ms: int
) -> str | None:
    where = f"{absent.topic.name}-{absent.partition}"
    if catalog is None:
        return (
            f"{where}: its catalog is not in the store, though {absent.why}, so that none of its history was looked "
            f"at{absent.advice}."
        )
    if isinstance(catalog, CorruptData):
        return sentence(catalog)
    if _began_since(sources, absent, catalog, since_ms):
        return None
    return f"{where}: its history appeared during the audit, so that none of it was looked at: audit again."


def _began_since(sources: Sources, absent: Absent, catalog: PartitionCatalog, since_ms: int) -> bool:
    """Whether all of it was exported since then: its chain begins there, with an object that is no older."""
    assert sources.store is not None, "an audit has one"
    first = next(iter(catalog), None)
    if first is None:
        return True
    if first.is_substitute or first.previous_hash != genesis_hash(absent.topic.id, PartitionIndex(absent.partition)):
        return False
    key = first.descriptor.key
    return any(meta.key == key and meta.modified_ms >= since_ms for meta in sources.store.objects.list(key))


def _left(sources: Sources, topic: ReadTopic, partition: int) -> Iterator[str]:
    """Keys of the partition in the store."""
    if sources.store is not None and topic.mirrored is not None:
        yield from left_of(sources.store, topic.mirrored, PartitionIndex(partition))
