"""Waits until a topic is durable: its catalog's mirror in the store covers every offset. Then proves every byte of it.

It looks at the store alone, as anybody without a broker could.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from headrace.base.errors import HeadraceError, UsageError
from headrace.base.ids import PartitionIndex
from headrace.cli.demo.process import BrokerProcess
from headrace.cli.demo.screen import Meter
from headrace.storage.tier.mirror import MirroredTopic
from headrace.storage.tier.reader import Store, VerifiedPartition

EXPORT_SECONDS_MAX = 60.0
LOOK_EVERY_SECONDS = 0.1


def wait_until_durable(
    store: Store, topic: str, ends: Mapping[int, int], broker: BrokerProcess, meter: Meter
) -> MirroredTopic:
    """Return once the catalog holds all offsets below `ends` (per partition, exclusive). Raises HeadraceError."""
    durable = dict.fromkeys(ends, 0)
    deadline = time.monotonic() + EXPORT_SECONDS_MAX
    while True:
        found = _topic(store, topic)
        if found is not None:
            for index in (index for index, end in ends.items() if durable[index] < end):
                durable[index] = store.catalog(found, PartitionIndex(index)).next_offset
            meter.update(sum(durable.values()))
            if all(durable[index] >= end for index, end in ends.items()):
                return found
        broker.check()
        if time.monotonic() > deadline:
            late = ", ".join(
                f"{index} at {durable[index]} of {end}" for index, end in ends.items() if durable[index] < end
            )
            raise HeadraceError(
                f"Not all is durable after {EXPORT_SECONDS_MAX:.0f} s (partition {late}); see {broker.log}."
            )
        time.sleep(LOOK_EVERY_SECONDS)


def verify(store: Store, topic: MirroredTopic, meter: Meter) -> list[VerifiedPartition]:
    """Read every object back: hash chain, SHA-256, CRC32C, continuity. Raises CorruptData."""
    verified = []
    for index in range(topic.partitions):
        verified.append(store.verify(topic, PartitionIndex(index)))
        meter.update(sum(one.records for one in verified))
    return verified


def _topic(store: Store, name: str) -> MirroredTopic | None:
    try:
        return store.topic(name)
    except UsageError:
        return None
