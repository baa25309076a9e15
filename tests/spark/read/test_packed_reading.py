"""Packed segments, as Spark tasks read them: rows of bare ones, whole, cut, filtered, and around damage. No Spark."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from headrace.spark.read.filters import Wanted
from headrace.storage.tier import export
from headrace.storage.tier.blocks import read_footer
from headrace.storage.tier.packed import parts_of
from headrace.storage.tier.reader import DamagedHistory
from headrace.wire.batches import encode_batch
from headrace.wire.compression import Compression
from headrace.wire.records import Record
from tests.spark.conftest import StoreBuilder
from tests.spark.read.test_reading import counted, offsets, quarantined
from tests.spark.world import TIME, read

PER_BATCH, BATCHES = 10, 12
SEGMENT = PER_BATCH * BATCHES
CODECS = [Compression.NONE, Compression.ZSTD, Compression.LZ4, Compression.NONE]
ALL = len(CODECS) * SEGMENT


def filled(root: Path, codecs: list[Compression]) -> StoreBuilder:
    random, built = Random(1), StoreBuilder(root)
    segments: list[list[bytes]] = []
    at = 0
    for _ in codecs:
        batches = []
        for _ in range(BATCHES):
            records = [Record(at + i, TIME + at + i, b"k%d" % i, b"%d " % random.randrange(99) * 30) for i in range(10)]
            batches.append(encode_batch(records, compression=random.choice([*Compression])))
            at += PER_BATCH
        segments.append(batches)
    built.topic("long", [segments], codecs=codecs)
    return built


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "STORED_BLOCK_BYTES", 1_000)


@pytest.fixture
def mixed(tmp_path: Path) -> StoreBuilder:
    return filled(tmp_path / "mixed", CODECS)


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"maxBytesPerPartition": "700"},
        {"startingOffsets": '{"long": {"0": 217}}', "endingOffsets": '{"long": {"0": 391}}'},
        {"startingOffsets": '{"long": {"0": 135}}', "maxBytesPerPartition": "2000"},
    ],
)
def test_rows_of_mixed_segments_are_those_of_bare_ones(
    mixed: StoreBuilder, tmp_path: Path, more: dict[str, str]
) -> None:
    assert [each.is_packed for each in mixed.segments["long", 0]] == [codec > 0 for codec in CODECS]
    bare = filled(tmp_path / "bare", [Compression.NONE] * len(CODECS))
    options = {"topic": "long", "includeHeaders": "true", **more}
    rows = read({"store": mixed.url, **options})
    assert rows
    assert rows == read({"store": bare.url, **options})


def test_filters_spare_blocks(mixed: StoreBuilder) -> None:
    found, size, objects = counted(mixed, Wanted(offsets=(150, 155)))
    one = mixed.segments["long", 0][1]
    assert (found, objects) == (list(range(150, 156)), 1)
    footer = read_footer(mixed.objects, one)
    assert size < footer.blocks[-1] // 2 + one.object_bytes  # the footer's read takes in all of so small an object
    found, _, objects = counted(mixed, Wanted(time_from_ms=TIME + 350))
    assert set(range(350, ALL)) <= set(found)
    assert min(found) > 2 * SEGMENT
    assert objects == 2


def damaged(built: StoreBuilder, at: int) -> str:
    """Flips a byte of the second segment's object."""
    key = built.segments["long", 0][1].key
    path = built.root / key
    whole = bytearray(path.read_bytes())
    whole[at] ^= 0x55
    path.write_bytes(whole)
    return key


def permissive(built: StoreBuilder, table: Path) -> tuple[list[int], set[int]]:
    """Offsets that are read, and those that are told as bad."""
    options = {"store": built.url, "topic": "long", "includeHeaders": "true", "mode": "PERMISSIVE"}
    rows = read({**options, "quarantinePath": str(table)})
    bad: set[int] = set()
    for row in quarantined(table):
        bad |= {*range(row["first_offset"], row["last_offset"] + 1)}
    return offsets(rows), bad


@pytest.mark.parametrize("where", [0, 3, 7, 12, 40])
def test_a_block_that_is_damaged_is_named_and_read_around(mixed: StoreBuilder, tmp_path: Path, where: int) -> None:
    footer = read_footer(mixed.objects, mixed.segments["long", 0][1])
    third = parts_of(footer)[2]
    key = damaged(mixed, third.at + where)
    first, following = footer.index[2].base_offset, footer.index[3].base_offset
    with pytest.raises(DamagedHistory, match=f"partition 0 is damaged at offset {first} in object '{key}'"):
        read({"store": mixed.url, "topic": "long", "includeHeaders": "true"})
    found, bad = permissive(mixed, tmp_path / "q")
    assert bad == {*range(first, following)}
    assert found == [at for at in range(ALL) if at not in bad]


def test_a_damaged_footer_costs_no_record(mixed: StoreBuilder, tmp_path: Path) -> None:
    footer = read_footer(mixed.objects, mixed.segments["long", 0][1])
    damaged(mixed, footer.blocks[-1] + 5)
    with pytest.raises(DamagedHistory, match="its footer fails"):
        read({"store": mixed.url, "topic": "long", "includeHeaders": "true"})
    assert permissive(mixed, tmp_path / "q") == ([*range(ALL)], set())


def test_with_footer_and_block_damaged_what_is_sound_before_and_behind_is_read(
    mixed: StoreBuilder, tmp_path: Path
) -> None:
    footer = read_footer(mixed.objects, mixed.segments["long", 0][1])
    damaged(mixed, footer.blocks[-1] + 5)
    damaged(mixed, footer.blocks[2] + 20)
    found, bad = permissive(mixed, tmp_path / "q")
    assert {*range(footer.index[2].base_offset, footer.index[3].base_offset)} <= bad
    assert bad <= {*range(footer.index[1].base_offset, footer.index[3].base_offset)}
    assert sorted([*found, *bad]) == [*range(ALL)]


def test_an_object_that_is_no_block_at_all_is_told_whole(mixed: StoreBuilder, tmp_path: Path) -> None:
    second: Any = mixed.segments["long", 0][1]
    (mixed.root / second.key).write_bytes(b"\x00" * second.object_bytes)
    found, bad = permissive(mixed, tmp_path / "q")
    assert bad == {*range(SEGMENT, 2 * SEGMENT)}
    assert found == [at for at in range(ALL) if at not in bad]
