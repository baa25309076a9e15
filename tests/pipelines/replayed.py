"""The expected result of a replay of a topic, and the actual one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final

from headrace.net.client.partitioner import partition_of
from headrace.wire.batches import encode_batch
from headrace.wire.compression import Compression
from headrace.wire.records import Record
from tests.spark.world import TIME, Row, World

OWN: Final = ("headrace.query", "headrace.batch", "headrace.task")


def fill(made: World, topic: str, partitions: int, batches: int, seed: int = 1, *, keyed: bool = False) -> None:
    """Records of every kind, of which each says by its header `at` which it is."""
    random = Random(seed)

    def batch(number: int) -> bytes:
        records = []
        for at in range(random.randrange(1, 9)):
            key = b"%d" % random.randrange(9) if keyed else random.choice([None, b"", random.randbytes(3)])
            value = random.choice([None, b"", random.randbytes(random.randrange(400)), b"v" * random.randrange(900)])
            more = random.choice([(), (), (("größe", None), ("", b"")), (("headrace.task", b"7:000000000001"),)])
            named = (("at", b"%d-%d-%d" % (seed, number, at)), *more)
            records.append(Record(at, TIME + random.randrange(10_000), key, value, named))
        return encode_batch(records, compression=random.choice(list(Compression)))

    made.produce(topic, [(number % partitions, batch(number)) for number in range(batches)])


def content(row: Row) -> tuple[Any, ...]:
    """The parts of a record that a replay keeps. They are time and its type, key, value, and all headers but the three
    that the writer puts last."""
    own = tuple(name for name, _ in row[7][-3:]) == OWN
    return (*row[3:7], row[7][:-3] if own else row[7])


def once(target: Sequence[Row]) -> list[Row]:
    """Without what a worker wrote late, whose task had failed and was tried again: as `dropRepeats` has it."""
    first: dict[tuple[int, bytes | None], Row] = {}
    for row in target:
        first.setdefault((row[1], dict(row[7])["at"]), row)
    return list(first.values())


def repeats(target: Sequence[Row]) -> list[Row]:
    """All that `once` leaves out."""
    first = {row[:3] for row in once(target)}
    return [row for row in target if row[:3] not in first]


Make = Callable[[Row], list[Row]]


def as_it_is(row: Row) -> list[Row]:
    return [row]


Parts = dict[tuple[int, int], list[tuple[Any, ...]]]
"""By partition of the target and of the source."""


def law(
    target: Sequence[Row], source: Sequence[Row], partitions: int, make: Make = as_it_is, *, keep: bool = False
) -> None:
    """Each partition of the target has the results of each source partition's records that belong there, once and in
    their order."""
    found, wanted = parts(target, source, partitions, make, keep=keep)
    assert found == wanted


def parts(
    target: Sequence[Row], source: Sequence[Row], partitions: int, make: Make = as_it_is, *, keep: bool = False
) -> tuple[Parts, Parts]:
    """The actual contents, and the expected final ones."""
    wanted: Parts = {}
    origin: dict[bytes, int] = {}
    for row in source:
        for new in make(row):
            placed = row[1] if keep else row[1] % partitions if new[5] is None else partition_of(new[5], partitions)
            wanted.setdefault((placed, row[1]), []).append(content(new))
            origin[dict(new[7])["at"] or b""] = row[1]
    found: Parts = {}
    for row in target:
        found.setdefault((row[1], origin[dict(row[7])["at"] or b""]), []).append(content(row))
    return found, wanted


def valued(frame: Any) -> Any:
    """A pipeline's function."""
    return frame.where("value is not null")


def valued_row(row: Row) -> list[Row]:
    return [] if row[6] is None else [row]
