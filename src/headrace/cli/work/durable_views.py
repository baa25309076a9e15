"""The views of `headrace durable`: durable history as the brokers know it, or as its store alone shows it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from time import sleep
from typing import Any

from headrace.base.errors import CorruptData, UsageError
from headrace.base.ids import Offset, PartitionIndex, TopicId
from headrace.base.limits import AUDIT_MIRROR_LOOK_MS, AUDIT_MIRROR_TRIES_MAX
from headrace.cli.command_config import reached
from headrace.cli.output import note
from headrace.metadata.segments import PartitionCatalog
from headrace.net.client.durable import DurableLink
from headrace.net.client.errors import ClientError
from headrace.operations.histories import History, live_brokers, summaries
from headrace.operations.proving import Verdict, lasting, prove, proved
from headrace.storage.tier.leftovers import is_a_store, left_of, nameless
from headrace.storage.tier.mirror import TOPICS, MirroredTopic
from headrace.storage.tier.reader import Store
from headrace.storage.tier.verifying import sentence
from headrace.wire.durable import MergeTotals


@dataclass(slots=True)
class Swept:
    """Unreferenced objects in the store that all brokers found."""

    strays: list[dict[str, Any]] = field(default_factory=list)
    count: int = 0
    bytes: int = 0
    removed: int = 0
    removed_bytes: int = 0
    problems: list[str] = field(default_factory=list)

    def add(self, answer: Mapping[str, Any]) -> None:
        """Add the result of one broker."""
        self.strays.extend(answer["strays"])
        self.count += answer["count"]
        self.bytes += answer["bytes"]
        self.removed += answer["removed"]
        self.removed_bytes += answer["removed_bytes"]
        self.problems.extend(answer["problems"])


# without brokers


def mirrored(url: str, topics: Sequence[str]) -> list[History]:
    """Histories in a store. Raises UsageError where the store has no topic of one of these names."""
    return [each for each in _mirrored(Store.open(url), topics) if each.end >= 0]


def mirrored_all(url: str, topics: Sequence[str]) -> list[History]:
    """As `mirrored`, with partitions that have no catalog; their `end` is -1. Raises UsageError where the store has no
    topic at all.
    """
    store = Store.open(url)
    found = list(_mirrored(store, topics))
    if not found and not is_a_store(store):
        raise UsageError(f"The store {url} holds no topic: look whether that is its URL, and its volume is mounted.")
    return found


def _mirrored(store: Store, topics: Sequence[str]) -> Iterator[History]:
    for topic in [store.topic(name) for name in topics] if topics else store.topics():
        for index in range(topic.partitions):
            yield _history(topic, index, _tolerated(store, topic, PartitionIndex(index)))


def _tolerated(store: Store, topic: MirroredTopic, partition: PartitionIndex) -> PartitionCatalog:
    """The catalog. A damaged one counts as a catalog with one segment: `verify` reports the problem."""
    try:
        return store.catalog(topic, partition)
    except CorruptData:
        return replace(PartitionCatalog.empty(topic.topic_id, partition), end_offset=Offset(0))


def _history(topic: MirroredTopic, partition: int, catalog: PartitionCatalog) -> History:
    return History(
        topic=topic.name,
        topic_id=topic.topic_id,
        partition=partition,
        partitions=topic.partitions,
        segments=len(catalog.entries),
        start=catalog.readable_start,
        end=catalog.end_offset,
        bytes=catalog.batch_bytes,
    )


def mirrored_catalog(url: str, history: History) -> PartitionCatalog:
    """One partition's catalog. Raises CorruptData where it is not sound."""
    return Store.open(url).catalog(history.mirrored_topic, PartitionIndex(history.partition))


def nameless_problems(url: str) -> list[str]:
    """Topics in the store without a name, so that their history cannot be examined."""
    return [
        f"The store {url} has a mirror of topic {topic}, and no name of it (storage/names/{topic}): prove it beside "
        "its brokers."
        for topic in nameless(Store.open(url))
    ]


def verified(found: Sequence[History], url: str) -> list[Verdict]:
    """Prove histories from the store alone. Partitions without a catalog are left out where the store has nothing of
    them.
    """
    store = Store.open(url)
    new, verdicts = _without_catalog(store, [each for each in found if each.end < 0])
    found = [each for each in found if each.end >= 0] + new
    with _progress(sum(each.bytes for each in found)) as on_read:
        for history in found:
            verdict = Verdict(history)
            verdicts.append(verdict)
            try:
                catalog = mirrored_catalog(url, history)
                found_wrong = prove(verdict, store, catalog, on_read)
                now = mirrored_catalog(url, history) if found_wrong else catalog
            except CorruptData as error:
                verdict.problems.append(sentence(error))
                continue
            verdict.problems += lasting(found_wrong, catalog, now)
    return verdicts


def _without_catalog(store: Store, lacking: Sequence[History]) -> tuple[list[History], list[Verdict]]:
    """Partitions that have a catalog by now, and verdicts on those that should have one. A catalog that is being
    written is waited for.
    """
    new, left = list[History](), dict[History, str]()
    for look in range(AUDIT_MIRROR_TRIES_MAX + 1 if lacking else 0):
        if look:
            sleep(AUDIT_MIRROR_LOOK_MS / 1000)
        left = {}
        for history in lacking:
            if _tolerated(store, history.mirrored_topic, PartitionIndex(history.partition)).end_offset >= 0:
                new.append(history)
            elif (key := _left(store, history)) is not None:
                left[history] = key
        lacking = [*left]
        if not lacking:
            break
    problem = (
        "{}-{}: its catalog is not in the store, though object '{}' is, so that none of its history was looked at: "
        "prove it beside its brokers."
    )
    return new, [
        Verdict(each, problems=[problem.format(each.topic, each.partition, key)]) for each, key in left.items()
    ]


def _left(store: Store, history: History) -> str | None:
    """A key of the partition's mirror, or of a second segment. A first segment alone may have been put by a broker that
    died then.
    """
    topic = store.topic_of(TopicId(history.topic_id))
    some = [] if topic is None else [*islice(left_of(store, topic, PartitionIndex(history.partition)), 2)]
    return some[0] if len(some) > 1 or (some and some[0].startswith(TOPICS)) else None


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int], object]]:
    """A bar of bytes, on a terminal. Yields a function that is called with the bytes read."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("proving"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("", total=total)
        yield lambda count: progress.update(task, advance=count)


# with brokers


async def verified_of(bootstrap: str, found: Sequence[History]) -> list[Verdict]:
    """Prove histories against the cluster's own catalogs, with the store that its brokers name."""
    async with reached(bootstrap) as cluster:
        with _progress(sum(each.bytes for each in found)) as on_read:
            return await proved(cluster, found, on_read=on_read)


async def sweep(bootstrap: str, *, execute: bool) -> Swept:
    """Have every live broker sweep, one after the other."""
    total, has_store = Swept(), False
    async with reached(bootstrap) as cluster:
        for broker in await live_brokers(cluster):
            try:
                async with DurableLink(broker.address, cluster.security, on_wait=note) as link:
                    answer = await link.sweep(execute=execute)
            except ClientError as error:
                total.problems.append(f"Broker {broker.id}: {error}")
                continue
            if answer["has_store"]:
                has_store = True
                total.add(answer)
    if not has_store and not total.problems:
        raise UsageError("No broker has a durable store (durable.url): there is nothing to sweep.")
    return total


async def merge(bootstrap: str, topic: str, partition: int | None, *, execute: bool) -> MergeTotals:
    """Have the brokers that lead its partitions merge segments. Raises UsageError where there is no such topic, or
    partition.
    """
    total, has_store = MergeTotals(), False
    async with reached(bootstrap) as cluster:
        found = [each for each in await summaries(cluster, [topic]) if partition in (None, each.partition)]
        if not found:
            raise UsageError(f"Topic '{topic}' has no durable history there; see 'headrace durable list'.")
        for broker in await live_brokers(cluster):
            try:
                async with DurableLink(broker.address, cluster.security, on_wait=note) as link:
                    answer = await link.merge(found[0].topic_id, partition, execute=execute)
            except ClientError as error:
                total.problems.append(f"Broker {broker.id}: {error}")
                continue
            if answer["has_store"]:
                has_store = True
                total.add(answer)
    lacking = sorted({each.partition for each in found}.difference(total.partitions))
    if has_store and lacking and not total.problems:
        total.problems.append(f"Partition {lacking[0]} is led by no broker that answered: ask again.")
    return total
