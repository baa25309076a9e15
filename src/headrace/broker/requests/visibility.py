"""What this broker alone has appended, and acknowledged at acks=1 before its disk had it, is soon visible: wait for it.

On Kafka, where a leader that is alone in sync has its high watermark at the log's end at once, who was acknowledged a
record and then asks for the latest offset is told of that record. Here the high watermark is what is flushed, so the
same question waits for the flush under way. Where others are in sync too, neither waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from headrace.base.ids import PartitionIndex, TopicPartition
from headrace.base.limits import OWN_FLUSH_WAIT_MS_MAX
from headrace.broker.partitions.partition import Partition
from headrace.broker.requests.context import RequestContext


async def until_own_appends_are_visible(asked: Iterable[tuple[str, int]], context: RequestContext) -> None:
    """Wait, OWN_FLUSH_WAIT_MS_MAX at most, where nothing but this broker's disk lies between what these partitions, by
    topic and index, have appended by now and their readers. Leadership may have changed afterwards."""
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
