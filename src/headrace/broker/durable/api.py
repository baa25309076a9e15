"""Answers requests of `headrace durable` (`wire.durable`): views of durable history, sweeps, merges and recoveries.

Promises:
- An answer comes at once and is bounded. A long one comes in parts, each true of the image of its moment.
- A sweep, a merge, or a recovery goes on in the background, one of each at a time. The client asks until it is done.

Loop-only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from headrace.base.errors import CorruptData, NotAllowed
from headrace.base.ids import BrokerId, Offset, PartitionIndex, TopicId, TopicPartition
from headrace.base.limits import DURABLE_ENTRIES_TOLD_MAX, DURABLE_SUMMARIES_TOLD_MAX
from headrace.base.reading import uuid_of
from headrace.broker.kit.tasks import OnBug, started
from headrace.metadata.access.acls import CLUSTER_NAME, AclOperation, ResourceType
from headrace.wire import durable
from headrace.wire.durable import MergeTotals, decode_request, encode_answer

if TYPE_CHECKING:
    from headrace.base.ports import Buffer
    from headrace.broker.durable.merger import Merger
    from headrace.broker.durable.recovering import Recovered, Recovering
    from headrace.broker.durable.sweeper import Sweep, Sweeper
    from headrace.controller.recovery import RecoveryWish
    from headrace.metadata.image import MetadataImage
    from headrace.metadata.segments import CatalogEntry, PartitionCatalog

T = TypeVar("T")


class Work(Generic[T]):
    """Background work of one kind, one at a time. Each has the name that its client gave it. Loop-only."""

    def __init__(self, what: str, on_bug: OnBug) -> None:
        self._what = what
        self._on_bug = on_bug
        self._asked: str | None = None
        """The name of the last work."""
        self._task: asyncio.Task[None] | None = None
        self.result: T | None = None
        """The result of the last work; None: it was ended before it was through."""

    def is_over(self, name: str, begin: Callable[[], Coroutine[Any, Any, T]]) -> bool:
        """Whether the work with this name is done. Where nobody has asked for it before, it begins as soon as it
        can."""
        if self._task is not None and not self._task.done():
            return False
        if self._asked == name:
            return True
        self._asked, self.result = name, None
        self._task = started(self._run(begin()), self._what, self._on_bug)
        return False

    async def _run(self, work: Coroutine[Any, Any, T]) -> None:
        self.result = await work

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


class ReadersRights(Protocol):
    """The rights of a request's client (`broker.requests.rights`)."""

    def may(self, operation: AclOperation, kind: ResourceType, name: str) -> bool: ...

    def sees(self, kind: ResourceType, name: str) -> bool: ...


class DurableApi:
    """One per broker. `sweeper` and `merger`: None: there is no durable store. Before the start it answers as if there
    were none: the image may be an old one."""

    def __init__(
        self,
        *,
        image: Callable[[], MetadataImage],
        sweeper: Sweeper | None,
        merger: Merger | None,
        recovering: Recovering | None,
        on_bug: OnBug,
    ) -> None:
        self._image = image
        self._sweeper = sweeper
        self._merger = merger
        self._is_started = False
        self._recovering = recovering
        self._sweeps: Work[Sweep] = Work("a sweep that was asked for", on_bug)
        self._merges: Work[MergeTotals] = Work("a merge that was asked for", on_bug)
        self._recoveries: Work[Recovered] = Work("a recovery that was asked for", on_bug)

    def serve(self, frame: memoryview, rights: ReadersRights) -> list[Buffer]:
        """Serve one frame, for a client with these rights. Raises CorruptData; NotAllowed where it may not do this."""
        request = decode_request(frame)
        try:
            match request.get("op"):
                case durable.SUMMARIES:
                    return [encode_answer(self._summaries(str(request["after"]), rights))]
                case durable.CATALOG:
                    key = TopicPartition(
                        TopicId(uuid_of(request["topic_id"])), PartitionIndex(int(request["partition"]))
                    )
                    topic = self._image().topics.get(key.topic_id)
                    if topic is not None and not rights.may(AclOperation.DESCRIBE, ResourceType.TOPIC, topic.name):
                        raise NotAllowed(f"its user needs the right DESCRIBE on topic {topic.name}: see headrace acl")
                    return [encode_answer(self._catalog(key, int(request["from"])))]
            if not rights.may(AclOperation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME):
                raise NotAllowed("its user needs the right ALTER on the cluster: see headrace acl")
            match request.get("op"):
                case durable.SWEEP:
                    return [encode_answer(self._sweep(str(request["id"]), execute=request["execute"] is True))]
                case durable.MERGE:
                    topic_id, wanted = TopicId(uuid_of(request["topic_id"])), request["partition"]
                    wanted = None if wanted is None else int(wanted)
                    below = None if request.get("below") is None else Offset(int(request["below"]))
                    execute = request["execute"] is True

                    def work(merger: Merger) -> Coroutine[Any, Any, MergeTotals]:
                        return merger.merge(topic_id, wanted, execute=execute, below=below)

                    return [encode_answer(self._merge(str(request["id"]), work))]
                case durable.RECOVER:
                    name, execute = str(request["id"]), request["execute"] is True
                    return [encode_answer(self._recover(name, _recovery_wish(request), execute=execute))]
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptData(f"a question about durable history is malformed: {error!r}") from error
        raise CorruptData("a question about durable history is of no known kind")

    def _summaries(self, after: str, rights: ReadersRights) -> dict[str, Any]:
        """Return summaries of partitions with history, whole topics at a time, for topics with names behind `after`."""
        image, topics, count = self._image(), list[dict[str, Any]](), 0
        names = [each for each in image.topic_names() if rights.sees(ResourceType.TOPIC, each)]
        for name in (name for name in names if name > after):
            if count >= DURABLE_SUMMARIES_TOLD_MAX:
                break
            topic = image.topics[image.topic_ids[name]]
            catalogs = (
                (each.index, image.catalog.get(TopicPartition(topic.id, each.index))) for each in topic.partitions
            )
            parts = [_summary(index, catalog) for index, catalog in catalogs if catalog is not None]
            topics.append(
                {"topic": name, "topic_id": str(topic.id), "count": len(topic.partitions), "partitions": parts}
            )
            count += len(topic.partitions)
        more = bool(topics) and topics[-1]["topic"] != names[-1]
        return {
            "cluster_id": image.cluster_id,
            "topics": topics,
            "more": more,
            "has_store": self._is_started and self._sweeper is not None,
        }

    def _catalog(self, key: TopicPartition, start: int) -> dict[str, Any]:
        """Return the entries from the one that starts at `start` on; -1: from the first."""
        image = self._image()
        catalog = image.durable(key)
        from headrace.storage.tier.mirror import MirroredState

        state = MirroredState.of(catalog, image.index)
        entries = [entry.to_json() for entry in islice(_from(catalog, start), DURABLE_ENTRIES_TOLD_MAX)]
        return {"state": state.to_json(), "entries": entries}

    def _sweep(self, asked: str, *, execute: bool) -> dict[str, Any]:
        sweeper = self._sweeper
        if sweeper is None or not self._is_started:
            return {"done": True, "has_store": False}
        if not self._sweeps.is_over(asked, lambda: sweeper.sweep(execute=execute)):
            return {"done": False}
        from headrace.broker.durable.sweeper import Sweep

        swept = self._sweeps.result or Sweep(problems=["The sweep was ended before it was through."])
        return {
            "done": True,
            "has_store": True,
            "strays": [stray._asdict() for stray in swept.strays],
            "count": swept.count,
            "bytes": swept.bytes,
            "removed": swept.removed,
            "removed_bytes": swept.removed_bytes,
            "problems": swept.problems,
        }

    def _merge(self, asked: str, work: Callable[[Merger], Coroutine[Any, Any, MergeTotals]]) -> dict[str, Any]:
        merger = self._merger
        if merger is None or not self._is_started:
            return {"done": True, "has_store": False}
        if not self._merges.is_over(asked, lambda: work(merger)):
            return {"done": False}
        merged = self._merges.result or MergeTotals(problems=["The merge was ended before it was through."])
        return {"done": True, "has_store": True, **asdict(merged)}

    def _recover(self, asked: str, wish: RecoveryWish, *, execute: bool) -> dict[str, Any]:
        recovering = self._recovering
        if recovering is None:
            return {"done": True, "has_store": False}
        if not self._recoveries.is_over(asked, lambda: recovering.recover(wish, execute=execute)):
            return {"done": False}
        from headrace.broker.durable.recovering import Recovered

        found = self._recoveries.result or Recovered(error="It was ended before it was through: ask again.")
        return {"done": True, "has_store": True, **asdict(found)}

    def start(self) -> None:
        self._is_started = True

    async def stop(self) -> None:
        for work in (self._sweeps, self._merges, self._recoveries):
            await work.stop()


def _recovery_wish(request: dict[str, Any]) -> RecoveryWish:
    """Return the wish in a request. Raises KeyError, TypeError, ValueError."""
    from headrace.controller.recovery import RecoveryWish

    partition, to = request["partition"], request["to"]
    return RecoveryWish(
        topic=str(request["topic"]),
        partitions=() if partition is None else (PartitionIndex(int(partition)),),
        to=None if to is None else BrokerId(int(to)),
    )


def _summary(index: PartitionIndex, catalog: PartitionCatalog) -> dict[str, int]:
    return {
        "partition": index,
        "segments": len(catalog.entries),
        "start_offset": catalog.readable_start,
        "end_offset": catalog.end_offset,
        "bytes": catalog.batch_bytes,
    }


def _from(catalog: PartitionCatalog, start: int) -> Iterator[CatalogEntry]:
    if start < 0:
        yield from catalog
    elif Offset(start) in catalog.entries:
        yield from catalog.above(Offset(start - 1))
