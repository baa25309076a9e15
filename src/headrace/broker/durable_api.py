"""Tells of durable history, sweeps the store and merges segments, for `headrace durable` (`wire.durable`). Loop-only.

Promises: an answer comes at once and is bounded; what is long comes in parts, each true of the image of its moment. A
sweep, or a merge, that is asked for goes on beside, one of each at a time, and is asked after until it is done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import asdict
from functools import partial
from itertools import islice
from typing import Any
from uuid import UUID

from headrace.base.errors import CorruptData
from headrace.base.ids import Offset, PartitionIndex, TopicId, TopicPartition
from headrace.base.limits import DURABLE_ENTRIES_TOLD_MAX, DURABLE_SUMMARIES_TOLD_MAX
from headrace.base.ports import Buffer
from headrace.broker.merger import Merged, Merger
from headrace.broker.sweeper import Sweep, Sweeper
from headrace.broker.tasks import OnBug, started
from headrace.metadata.image import MetadataImage
from headrace.metadata.segments import CatalogEntry, PartitionCatalog
from headrace.storage.tier.mirror import MirroredState
from headrace.wire import durable
from headrace.wire.durable import decode_request, encode_answer


class DurableApi:
    """One per broker. `sweeper`: None while there is no durable store."""

    def __init__(
        self,
        *,
        image: Callable[[], MetadataImage],
        sweeper: Callable[[], Sweeper | None],
        merger: Callable[[], Merger | None],
        on_bug: OnBug,
    ) -> None:
        self._image = image
        self._sweeper = sweeper
        self._merger = merger
        self._on_bug = on_bug
        self._asked: str | None = None
        """Who asked for the last sweep."""
        self._sweeping: asyncio.Task[None] | None = None
        self._swept: Sweep | None = None
        self._merge_asked: str | None = None
        """Who asked for the last merge."""
        self._merging: asyncio.Task[None] | None = None
        self._merged: Merged | None = None

    def serve(self, frame: memoryview, _: object) -> list[Buffer]:
        """Raises CorruptData."""
        request = decode_request(frame)
        try:
            match request.get("op"):
                case durable.SUMMARIES:
                    return [encode_answer(self._summaries(str(request["after"])))]
                case durable.CATALOG:
                    key = TopicPartition(TopicId(UUID(request["topic_id"])), PartitionIndex(int(request["partition"])))
                    return [encode_answer(self._catalog(key, int(request["from"])))]
                case durable.SWEEP:
                    return [encode_answer(self._sweep(str(request["id"]), execute=request["execute"] is True))]
                case durable.MERGE:
                    topic_id, wanted = TopicId(UUID(request["topic_id"])), request["partition"]
                    wanted = None if wanted is None else int(wanted)
                    below = None if request.get("below") is None else Offset(int(request["below"]))
                    work = partial(self._run_merge, topic_id, wanted, request["execute"] is True, below)
                    return [encode_answer(self._merge(str(request["id"]), work))]
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptData(f"a question about durable history is malformed: {error!r}") from error
        raise CorruptData("a question about durable history is of no known kind")

    def _summaries(self, after: str) -> dict[str, Any]:
        """Of partitions with history, of topics whose names come behind `after`, whole topics at a time."""
        image, topics, count = self._image(), list[dict[str, Any]](), 0
        names = image.topic_names()
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
            "has_store": self._sweeper() is not None,
        }

    def _catalog(self, key: TopicPartition, start: int) -> dict[str, Any]:
        """Entries from the one on that starts at `start`; -1: from the first."""
        image = self._image()
        catalog = image.durable(key)
        state = MirroredState.of(catalog, image.index)
        entries = [entry.to_json() for entry in islice(_from(catalog, start), DURABLE_ENTRIES_TOLD_MAX)]
        return {"state": state.to_json(), "entries": entries}

    def _sweep(self, asked: str, *, execute: bool) -> dict[str, Any]:
        sweeper = self._sweeper()
        if sweeper is None:
            return {"done": True, "has_store": False}
        if self._sweeping is not None and not self._sweeping.done():
            return {"done": False}
        if self._asked != asked:
            self._asked, self._swept = asked, None
            self._sweeping = started(self._run(sweeper, execute), "a sweep that was asked for", self._on_bug)
            return {"done": False}
        swept = self._swept
        if swept is None:
            swept = Sweep(problems=["The sweep was ended before it was through."])
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

    def _merge(self, asked: str, work: Callable[[Merger], Coroutine[Any, Any, None]]) -> dict[str, Any]:
        merger = self._merger()
        if merger is None:
            return {"done": True, "has_store": False}
        if self._merging is not None and not self._merging.done():
            return {"done": False}
        if self._merge_asked != asked:
            self._merge_asked, self._merged = asked, None
            self._merging = started(work(merger), "a merge that was asked for", self._on_bug)
            return {"done": False}
        merged = self._merged or Merged(problems=["The merge was ended before it was through."])
        return {"done": True, "has_store": True, **asdict(merged)}

    async def _run_merge(
        self, topic_id: TopicId, partition: int | None, execute: bool, below: Offset | None, merger: Merger
    ) -> None:
        self._merged = await merger.merge(topic_id, partition, execute=execute, below=below)

    async def _run(self, sweeper: Sweeper, execute: bool) -> None:
        self._swept = await sweeper.sweep(execute=execute)

    async def stop(self) -> None:
        for task in (self._sweeping, self._merging):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)


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
