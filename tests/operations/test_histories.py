"""A catalog that is read in pages while it changes: what is told of it is of one moment, and damage is not hidden."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from typing import Any
from uuid import UUID

import pytest

from headrace.base.ids import Offset
from headrace.metadata.segments import PartitionCatalog
from headrace.operations.histories import History, steady
from headrace.operations.proving import lasting
from headrace.storage.tier.mirror import MirroredState
from headrace.storage.tier.reader import DamagedHistory
from tests.metadata.test_runs import TOPIC, ZERO
from tests.tier.test_chunks import merged, publish

HISTORY = History(topic="orders", topic_id=TOPIC, partition=0, partitions=1, segments=9, start=0, end=9, bytes=0)


class Pages:
    """Of three entries each; each page is of the next of these catalogs, and then of the last."""

    def __init__(self, *catalogs: PartitionCatalog) -> None:
        self.catalogs = list(catalogs)
        self.asked = 0

    async def __call__(self, topic_id: UUID, partition: int, start: int) -> Mapping[str, Any]:
        assert (topic_id, partition) == (TOPIC, 0)
        catalog = self.catalogs[min(self.asked, len(self.catalogs) - 1)]
        self.asked += 1
        entries = islice(catalog.reaching(start), 3)
        return {"state": MirroredState.of(catalog, 1).to_json(), "entries": [each.to_json() for each in entries]}


async def test_a_merge_between_two_pages_is_no_damage() -> None:
    before = publish(PartitionCatalog.empty(TOPIC, ZERO), 9, 1)
    now = merged(before, 3, 4, 2)
    assert await steady(Pages(before, now), HISTORY) == now
    assert await steady(Pages(before), HISTORY) == before


async def test_what_is_damaged_in_one_moment_is_told() -> None:
    catalog = publish(PartitionCatalog.empty(TOPIC, ZERO), 9, 1)
    pages = Pages(replace(catalog, head="0" * 64))
    with pytest.raises(DamagedHistory):
        await steady(pages, HISTORY)
    assert pages.asked == 3


def test_damage_of_what_has_become_the_first_segment_is_told() -> None:
    before = publish(PartitionCatalog.empty(TOPIC, ZERO), 3, 1)
    gone = next(iter(before)).descriptor
    begun = publish(before.deleted(gone.next_offset, (gone.sha256,)), 2, 2)
    starts = [entry.descriptor.start_offset for entry in begun]
    (linked_at,) = [entry.descriptor.start_offset for entry in begun if entry.deletions]
    shas = tuple(entry.descriptor.sha256 for entry in begun if entry.descriptor.start_offset < linked_at)
    now = begun.deleted(linked_at, shas)
    assert now.entries.get(linked_at) != begun.entries.get(linked_at)
    found = [(Offset(start), f"damaged at {start}") for start in starts]
    assert lasting(found, begun, now) == [text for start, text in found if start >= linked_at]
