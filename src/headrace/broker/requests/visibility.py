"""Waits until records that this broker has acknowledged at acks=1 before their flush are visible to readers.

On Kafka, a leader that is alone in the ISR has its high watermark at the log end at once. So a client whose record was
acknowledged sees it in the latest offset. Here the high watermark is what is flushed, and the same question waits for
the flush under way. Where the ISR has other replicas, neither waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from headrace.base.ids import PartitionIndex, TopicPartition
from headrace.base.limits import OWN_FLUSH_WAIT_MS_MAX
from headrace.broker.partitions.partition import Partition
from headrace.broker.requests.context import RequestContext


async def until_own_appends_are_visible(asked: Iterable[tuple[str, int]], context: RequestContext) -> None:
    """Wait until readers see what these partitions, by topic and index, have appended so far. Waits only where this
    broker's disk alone is missing for that, and at most OWN_FLUSH_WAIT_MS_MAX. Leadership may have changed afterwards.
    """
    waiting: set[asyncio.Future[None]] = set()
    for name, index in asked:
        if (topic := context.image.topic(name)) is None:
            continue
        key = TopicPartition(topic.id, PartitionIndex(index))
        found = context.services.partitions.find(key, context.image)
        if isinstance(found, Partition) and (visible := found.own_appends_visible()) is not None:
            waiting.add(visible)
    if waiting:
        await asyncio.wait(waiting, timeout=OWN_FLUSH_WAIT_MS_MAX / 1000)
