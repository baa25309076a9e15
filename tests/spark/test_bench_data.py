"""The benchmark's data for both brokers: exactly so many records of so many bytes, equal each time. It also tests how
the benchmark waits for history, and removes it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from benchmarks.spark import data
from benchmarks.spark.data import (
    BATCH_BYTES,
    EXPORT_TIMEOUT_S,
    PARTITIONS,
    Batches,
    Data,
    HeadraceWithStore,
    await_export,
)
from headrace.wire.batches import decode_records
from headrace.wire.compression import Compression
from tests.spark.conftest import StoreBuilder, flights, orders
from tests.tiers import long_only


@pytest.mark.parametrize(
    "codec", [Compression.LZ4, *(pytest.param(each, marks=long_only) for each in (Compression.NONE, Compression.ZSTD))]
)
def test_partitions_hold_all_records_and_the_same_for_every_rival(codec: Compression) -> None:
    law = Data(name="law", records=7_003, record_bytes=100, compression=codec)
    sent = [list(Batches(law).of(partition)) for partition in range(PARTITIONS)]
    batches = [batch for partition in sent for batch in partition]
    records = [record for batch in batches for record in decode_records(batch)]
    assert len(records) == law.records
    assert {len(record.value or b"") for record in records} == {100}
    assert max(map(len, batches)) < 1.2 * BATCH_BYTES
    assert [list(Batches(law).of(partition)) for partition in range(PARTITIONS)] == sent


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that pass while nobody works."""
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    monkeypatch.setattr(time, "monotonic", lambda: sum(slept))
    return slept


def test_an_export_may_take_long_as_long_as_it_goes_on(
    store: StoreBuilder, monkeypatch: pytest.MonkeyPatch, clock: list[float]
) -> None:
    ends = {0: 50, 1: 50}
    monkeypatch.setattr(data, "LOOK_EVERY_S", 0.9 * EXPORT_TIMEOUT_S)
    monkeypatch.setattr(data, "durable_end", lambda *_: 5 * len(clock))
    await_export(store.url, "orders", ends)
    assert len(clock) == 10
    monkeypatch.setattr(data, "durable_end", lambda *_: 49)
    with pytest.raises(AssertionError, match="than 98 records"):
        await_export(store.url, "orders", ends)


def test_history_of_one_topic_is_removed_at_once(tmp_path: Path) -> None:
    rival = HeadraceWithStore(tmp_path / "rival")
    there = StoreBuilder(tmp_path / "rival" / "store")
    orders(there)
    flights(there)
    rival.remove_history("orders")
    left = {meta.key for meta in there.objects.list("clusters/")}
    kept = {each.key for (topic, _), made in there.segments.items() for each in made if topic == "flights"}
    assert left == kept
    assert kept
