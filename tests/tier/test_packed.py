"""Durable segments with compressed blocks: their batches are read verbatim, and damage anywhere is found and named."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable, Sequence
from random import Random
from typing import Any
from uuid import UUID

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.errors import CorruptData
from headrace.base.ids import LeaderEpoch, Offset, PartitionIndex, TopicId
from headrace.base.limits import PACKED_SEGMENT_BYTES_MAX, STORED_BLOCK_BYTES
from headrace.metadata.segments import PartitionCatalog, SegmentDescriptor
from headrace.storage.objects import open_objects
from headrace.storage.packed_blocks import HEADER, pack_block
from headrace.storage.tier import blocks, export
from headrace.storage.tier.blocks import Plan, plan_of, read_block, read_footer, read_plan
from headrace.storage.tier.export import export_segment
from headrace.storage.tier.format import TRAILER, SegmentFooter, decode_footer, encode_footer
from headrace.storage.tier.merge import merge_segments, read_proven
from headrace.storage.tier.packed import batches_of, parts_of, walked
from headrace.storage.tier.reader import DamagedHistory, Store, check_object
from headrace.wire.batches import check_batches
from headrace.wire.compression import Compression
from headrace.wire.transactions import AbortedTransaction
from tests.tier import old_segment
from tests.tier.conftest import History

ZERO = PartitionIndex(0)
PACKING = [Compression.LZ4, Compression.ZSTD]
SMALL_BLOCK = 600
pytestmark = pytest.mark.usefixtures("small_blocks")


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of a few batches, and parts of a few blocks for brokers."""
    monkeypatch.setattr(export, "STORED_BLOCK_BYTES", SMALL_BLOCK)
    monkeypatch.setattr(blocks, "HISTORY_BLOCK_BYTES", 1_500)


def fresh() -> History:
    return History(open_objects("memory:///"))


def values(random: Random, count: int) -> list[bytes]:
    """Most can be packed, a few cannot, and some are larger than a block."""
    size = random.choice([10, 100, 100, 400, 2 * SMALL_BLOCK])
    if random.random() < 0.2:
        return [random.randbytes(size) for _ in range(count)]
    return [b"%d " % random.randrange(1_000) * (size // 4) for _ in range(count)]


def exported(seed: int, codec: Compression, segments: int = 3) -> History:
    random, history = Random(seed), fresh()
    for _ in range(segments):
        batches = [
            history.batch(values(random, random.randint(1, 4)), codec=random.choice([*Compression]))
            for _ in range(random.randint(1, 15))
        ]
        history.export(chunked(random, batches), codec=codec)
    return history


def chunked(random: Random, batches: Sequence[bytes]) -> list[bytes]:
    """The batches in buffers of one or more, as an exporter reads them."""
    chunks: list[bytes] = []
    for batch in batches:
        if chunks and random.random() < 0.6:
            chunks[-1] += batch
        else:
            chunks.append(batch)
    return chunks


@settings(deadline=None, max_examples=30)
@given(
    seed=st.integers(0, 10**6),
    codec=st.sampled_from(PACKING),
    start=st.integers(0, 60),
    bytes_max=st.integers(1, 4_000),
    at_least_one=st.booleans(),
)
def test_any_batches_are_read_verbatim_from_any_offset(
    seed: int, codec: Compression, start: int, bytes_max: int, at_least_one: bool
) -> None:
    history = exported(seed, codec)
    start, end = start % len(history.records), len(history.records)
    wanted = [batch for batch in history.batches if check_batches(batch)[0][1].last_offset >= start]
    store = Store(history.objects)
    topic = store.topic("orders")
    assert [bytes(batch) for batch, _ in store.batches(topic, ZERO, start, end)] == wanted
    slices = store.slices("orders", 0, history.catalog, start, end, slice_bytes=bytes_max)
    found = [buffer for part in slices for buffer, _ in store.read(pickle.loads(pickle.dumps(part)), read_bytes=700)]
    assert b"".join(found).endswith(b"".join(wanted))
    assert store.verify(topic, ZERO).records == end
    assert served(history, start, bytes_max, at_least_one=at_least_one) == b"".join(wanted)


def served(history: History, start: int, bytes_max: int, *, at_least_one: bool) -> bytes:
    """All that a broker's clients get, fetch after fetch, beginning at this offset."""
    found = b""
    while start < len(history.records):
        segment = next(iter(history.catalog.reaching(start))).descriptor
        plan = read_plan(history.objects, segment)
        block = read_block(history.objects, plan, plan.block_of(start))
        part = block.read(start, bytes_max, len(history.records), at_least_one=at_least_one)
        if not part:  # the next batch is larger: ask for one
            assert not at_least_one
            part = block.read(start, bytes_max, len(history.records), at_least_one=True)
            assert len(part) > bytes_max
        assert len(part) <= bytes_max or len(check_batches(part)) == 1
        found += bytes(part)
        start = check_batches(part)[-1][1].next_offset
    return found


@pytest.mark.parametrize("codec", PACKING)
def test_a_packed_object_is_smaller_and_the_catalog_tells_it(codec: Compression) -> None:
    history = fresh()
    batches = [history.batch([b"the same again " * 10] * 3) for _ in range(20)]
    one = export_segment(history.objects, history.source(codec=codec), [b"".join(batches)])
    body = history.objects.get(one.key)
    footer = read_footer(history.objects, one)
    assert one.is_packed
    assert (one.object_bytes, one.batch_bytes) == (len(body), len(b"".join(batches)))
    assert one.object_bytes < one.batch_bytes // 2
    assert one.crc32c == footer.crc32c == crc32c(b"".join(batches)), "of the batches, as they are in the log"
    assert [entry.position for entry in footer.index] == [part.position for part in parts_of(footer)]
    assert all(part.end_position - part.position <= SMALL_BLOCK for part in parts_of(footer))
    assert batches_of(body, footer) == b"".join(batches)
    assert SegmentDescriptor.from_json(one.to_json()) == one
    assert export_segment(history.objects, history.source(codec=codec), batches) == one, "whatever the chunks"
    bare = export_segment(history.objects, history.source(), batches)
    assert (bare.is_packed, bare.batch_bytes, bare.crc32c) == (False, one.batch_bytes, one.crc32c)


@pytest.mark.parametrize("codec", PACKING)
def test_what_cannot_be_packed_is_stored_as_before(codec: Compression) -> None:
    history = fresh()
    batches = [history.batch([Random(at).randbytes(300)]) for at in range(9)]
    one = export_segment(history.objects, history.source(codec=codec), batches)
    assert one == export_segment(history.objects, history.source(), batches)
    assert history.objects.get(one.key).startswith(b"".join(batches))


def test_blocks_are_bounded_and_a_larger_batch_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "STORED_BLOCK_BYTES", STORED_BLOCK_BYTES)
    history = fresh()
    batches = [history.batch([b"abc" * size]) for size in (30_000, 30_000, 400_000, 10, 80_000, 10)]
    one = export_segment(history.objects, history.source(codec=Compression.ZSTD), batches)
    footer = read_footer(history.objects, one)
    assert [entry.base_offset for entry in footer.index] == [0, 2, 3]
    assert batches_of(history.objects.get(one.key), footer) == b"".join(batches)


def test_too_much_for_readers_is_not_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    history = fresh()
    batches = [history.batch([b"abc" * 2_000]), history.batch([b"abc" * 2_000])]
    source = history.source(codec=Compression.ZSTD)
    assert export_segment(history.objects, source, batches).is_packed
    monkeypatch.setattr(export, "STORED_BLOCK_BYTES_MAX", 5_000)
    assert not export_segment(history.objects, source, batches).is_packed
    monkeypatch.undo()
    monkeypatch.setattr(export, "PACKED_SEGMENT_BYTES_MAX", 10_000)
    assert not export_segment(history.objects, source, batches).is_packed


# segments of before


def test_an_old_segment_is_still_read_and_would_be_written_again_as_it_is() -> None:
    history, one = fresh(), SegmentDescriptor.from_json(old_segment.DESCRIPTOR)
    history.objects.put(one.key, old_segment.BODY)
    history.catalog = PartitionCatalog.empty(TopicId(UUID(int=0xABC)), ZERO).published(one)
    assert history.catalog.head == old_segment.HEAD
    history.mirror.write_partition(history.topic.topic_id, ZERO, history.catalog, 2)
    store = Store(history.objects)
    assert sum(header.count for _, header in check_object(one, old_segment.BODY)) == 9
    with pytest.raises(DamagedHistory, match="producer snapshot is cut"):  # its producers were made up
        store.verify(store.topic("orders"), ZERO)
    batches = b"".join(bytes(batch) for batch, _ in store.batches(store.topic("orders"), ZERO, 0, 9))
    assert batches == old_segment.BODY[: one.batch_bytes]
    footer = decode_footer(old_segment.BODY)
    assert footer.blocks == ()
    source = dataclasses.replace(
        history.source(start_offset=Offset(0), limit_offset=Offset(9)),
        producers="AAA=",
        aborted_transactions=(AbortedTransaction(4, 0, 1, 2),),
    )
    assert export_segment(history.objects, source, batches) == one


def test_a_segment_without_checksums_is_read_and_proven_by_its_batches() -> None:
    """The footers of the first brokers have none."""
    history, one = fresh(), SegmentDescriptor.from_json(old_segment.DESCRIPTOR)
    history.objects.put(one.key, old_segment.BODY)
    footer = dataclasses.replace(decode_footer(old_segment.BODY), checksums=())
    block = read_block(history.objects, plan_of(one, footer), 0)
    assert bytes(block.data) == old_segment.BODY[: one.batch_bytes]
    other_epoch = tuple(each._replace(leader_epoch=LeaderEpoch(4)) for each in footer.leader_epochs)
    wrong: tuple[tuple[dict[str, Any], str], ...] = (
        ({"leader_epochs": other_epoch}, "begins at offset 0, where one of epoch 4"),
        ({"end_offset": Offset(9)}, "end at offset 9 where 10 should follow"),
    )
    for changes, words in wrong:
        with pytest.raises(CorruptData, match=words):
            read_block(history.objects, plan_of(one, dataclasses.replace(footer, **changes)), 0)


def test_merging_joins_old_and_packed_segments() -> None:
    history = fresh()
    for codec in (Compression.NONE, Compression.ZSTD, Compression.LZ4, Compression.NONE):
        history.export([history.batch([b"the same again " * 10] * 9) for _ in range(5)], codec=codec)
    parts = [entry.descriptor for entry in history.catalog][:3]
    assert [each.is_packed for each in parts] == [False, True, True]
    for codec in Compression.NONE, Compression.ZSTD:
        made = merge_segments(history.objects, parts, made_in=LeaderEpoch(9), codec=codec)
        assert made.is_packed == (codec is Compression.ZSTD)
        assert read_proven(history.objects, made)[0] == b"".join(history.batches[:15])
        assert merge_segments(history.objects, parts, made_in=LeaderEpoch(9), codec=codec) == made


# damage


def flip(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]


@pytest.mark.parametrize("codec", PACKING)
def test_a_changed_byte_anywhere_is_found(codec: Compression) -> None:
    """By `verify` in every part; by reads of a range wherever it changes what they read."""
    history = fresh()
    noise = Random(5).randbytes(SMALL_BLOCK)  # a block that is stored as it is
    history.export(
        [history.batch([b"the same %d " % at * 20, noise[: 200 * (at % 3)]]) for at in range(12)], codec=codec
    )
    store, one = Store(history.objects), next(iter(history.catalog)).descriptor
    topic, body = store.topic("orders"), history.objects.get(one.key)
    plan = read_plan(history.objects, one)
    batches = b"".join(history.batches)
    assert one.is_packed
    ends = plan.footer.blocks
    heads = [end + at for end in ends[:-1] for at in range(HEADER.size)]
    for at in sorted({*heads, *range(0, len(body), 7), *range(len(body) - TRAILER.size, len(body))}):
        history.objects.put(one.key, flip(body, at), if_absent=False)
        with pytest.raises(DamagedHistory, match=r"offset 0 in object .*SHA-256"):
            store.verify(topic, ZERO)
        if at < ends[-1]:
            assert read_or_refused(lambda: read_all(history, plan)) in (None, batches)
            found = read_or_refused(lambda: [bytes(batch) for batch, _ in store.batches(topic, ZERO, 0, 10**6)])
            assert found in (None, history.batches), "a codec may ignore a bit"
        elif not len(body) - 12 <= at < len(body) - 8:  # these are unused
            assert read_or_refused(lambda: read_footer(history.objects, one)) is None
    for lost in (body[: one.object_bytes - 1], body[:50], b""):
        history.objects.put(one.key, lost, if_absent=False)
        with pytest.raises(DamagedHistory):
            store.verify(topic, ZERO)
        with pytest.raises(DamagedHistory):
            list(store.batches(topic, ZERO, 0, 10**6))
    history.objects.put(one.key, body, if_absent=False)
    assert b"".join(bytes(batch) for batch, _ in store.batches(topic, ZERO, 0, 10**6)) == batches


def read_all(history: History, plan: Plan) -> bytes:
    return b"".join(bytes(read_block(history.objects, plan, number).data) for number in range(len(plan.starts)))


def read_or_refused(read: Callable[[], Any]) -> Any:
    """The result of the read; None where it finds damage."""
    try:
        return read()
    except CorruptData:
        return None


def hostile(history: History) -> tuple[SegmentDescriptor, SegmentFooter, bytes]:
    batches = [history.batch([b"the same again " * 10] * 3) for _ in range(20)]
    one = export_segment(history.objects, history.source(codec=Compression.ZSTD), batches)
    footer = read_footer(history.objects, one)
    return one, footer, history.objects.get(one.key)[: footer.blocks[-1]]


def with_footer(footer: SegmentFooter, held: bytes, **changes: Any) -> bytes:
    return held + encode_footer(dataclasses.replace(footer, **changes))


def test_a_footer_whose_blocks_contradict_it_is_refused() -> None:
    _, footer, held = hostile(fresh())
    ends = footer.blocks
    wrong: list[tuple[int, ...]] = [
        ends[:-1],
        (*ends, ends[-1] + 9),
        (1, *ends[1:]),
        (0, ends[2], ends[1], *ends[3:]),
        (0, 0, *ends[2:]),
        (0, True, *ends[2:]),
    ]
    for places in wrong:
        with pytest.raises(CorruptData, match="malformed"):
            decode_footer(with_footer(footer, held, blocks=places))
    with pytest.raises(CorruptData, match="malformed"):
        decode_footer(with_footer(footer, held, checksums=()))
    with pytest.raises(CorruptData, match="malformed"):
        decode_footer(with_footer(footer, held, batch_bytes=footer.index[-1].position))


def test_the_sizes_tell_the_version_and_a_footer_of_the_other_is_refused() -> None:
    history = fresh()
    one, footer, held = hostile(history)
    body = with_footer(footer, held, blocks=())
    assert TRAILER.unpack(body[-TRAILER.size :])[2] == 1
    history.objects.put(one.key, body, if_absent=False)
    with pytest.raises(CorruptData, match="sizes contradict"):
        read_footer(history.objects, dataclasses.replace(one, object_bytes=len(body)))


numbers = st.one_of(st.integers(-5, 3_000), st.integers(-(2**70), 2**70), st.booleans(), st.none(), st.text(max_size=2))


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_whatever_a_footer_says_nothing_but_damage_or_the_batches_comes(data: st.DataObject) -> None:
    """A hostile footer, with a sound checksum and in a sound catalog."""
    history = fresh()
    one, footer, held = hostile(history)
    changes: dict[str, Any] = {"blocks": list(footer.blocks), "index": [list(entry) for entry in footer.index]}
    for _ in range(data.draw(st.integers(1, 3))):
        name = data.draw(st.sampled_from(["blocks", "index"]))
        places = changes[name] if name == "blocks" else data.draw(st.sampled_from(changes[name]))
        places[data.draw(st.integers(0, len(places) - 1))] = data.draw(numbers)
    if data.draw(st.booleans()):
        changes["blocks"] = data.draw(st.lists(numbers, max_size=4))
    body = with_footer(footer, held, **changes)
    segment = dataclasses.replace(one, object_bytes=len(body))
    history.objects.put(one.key, body, if_absent=False)

    def read() -> bytes:
        return read_all(history, read_plan(history.objects, segment))

    assert read_or_refused(read) in (None, batches_of(history.objects.get(one.key), footer))


def test_an_object_that_unpacks_to_too_much_is_refused() -> None:
    """A hostile object: bombs in its blocks, in the footer's positions, and in the catalog's size."""
    history = fresh()
    one, footer, held = hostile(history)
    bomb = pack_block(Compression.ZSTD, bytes(50 * 1024 * 1024))
    told = HEADER.pack(bomb[0], footer.index[1].position, len(bomb) - HEADER.size) + bomb[HEADER.size :]
    for block in (bomb, told):
        shift = len(block) - footer.blocks[1]
        moved = (0, *(place + shift for place in footer.blocks[1:]))
        body = with_footer(footer, block + held[footer.blocks[1] :], blocks=moved)
        with pytest.raises(CorruptData, match="no sound block"):
            batches_of(body, decode_footer(body))
    far = with_footer(footer, held, batch_bytes=PACKED_SEGMENT_BYTES_MAX + 1)
    with pytest.raises(CorruptData, match="are said to hold"):
        batches_of(far, decode_footer(far))
    with pytest.raises(CorruptData, match="may they be packed"):
        SegmentDescriptor.from_json({**one.to_json(), "batch_bytes": PACKED_SEGMENT_BYTES_MAX + 1})


def test_blocks_are_found_without_the_footer() -> None:
    _, footer, held = hostile(fresh())
    assert tuple(walked(held + b"?" * 99, footer.batch_bytes)) == parts_of(footer)
    third = footer.blocks[2]
    assert tuple(walked(flip(held, third), footer.batch_bytes)) == parts_of(footer)[:2]
    assert tuple(walked(held, footer.batch_bytes - 1)) == parts_of(footer)[:-1]
