"""Compares the native road of a led partition with its twins in Python:
`python -m tools.partition_fuzz --operations 1000000 --seed 1`.

A case is two partitions over two logs, which get the same operations. One appends by the native road, where that takes
the batch. The other does not have it. After each operation both have to be in the same state, have given the same
answer, and told the same to whoever waits. At the end of a case, all files have to be the same. The first difference is
printed with the operations that led there, and the exit code is 1. So it is where the native road took too few appends.

With --fetches, a case is several partitions on each road, which consumers read together (see `fetching`). With --copies
it is a leader with a follower that copies from it (see `copying`).

It needs HEADRACE_NATIVE=1: the fields of both partitions lie in native memory then. Where these behave otherwise than
Python's own, the simulator tells another story (tests/sim/test_both_roads.py).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Final, TypeAlias

import structlog
from rich.console import Console
from rich.progress import Progress

from headrace.broker.partitions.replica import WriteRefusal
from headrace.native import ROAD, VARIABLE, Native
from headrace.storage.engine.appending import Appended
from headrace.wire.errors import ErrorCode
from tools.partition_fuzz import operations as do
from tools.partition_fuzz.batches import Bodies
from tools.partition_fuzz.choosing import Chooser, Operation, settings_of, to
from tools.partition_fuzz.copying import CountedCopies, Pair, Side
from tools.partition_fuzz.fetching import CountedReads, Group, answer_of
from tools.partition_fuzz.fetching import Side as ReadSide
from tools.partition_fuzz.observed import Seen, differing, seen_of
from tools.partition_fuzz.world import Clock, InlineLoop, World

OPERATIONS_OF_A_CASE: Final = 300
AFTER_ITS_END: Final = 15
"""Operations of a case after its partition has ended."""
OPERATIONS_OF_A_GROUP: Final = 900
"""Operations of a case with fetches, over all its partitions."""
OF_READS: Final = ("disk's operations", "again")
"""Parts of a world's state that depend on how often it was read."""
TAKEN_MIN: Final = 0.35
"""The least share of all appends that the native road has to take."""
READS_TAKEN_MIN: Final = 0.6
"""The least share of all fetches that it has to take."""
COPIES_TAKEN_MIN: Final = 0.3
"""The least share of all frames that each function of the copy stream has to take."""
OPERATIONS_OF_A_PAIR: Final = 500
"""Operations of a case with a follower."""
STEP: Final = 1_000


class DifferenceError(Exception):
    """The two partitions differ."""


class StoppedError(Exception):
    """Both have met an assertion. Then the operation is not one that a broker would do, or Headrace has a bug."""


@dataclass
class Fetches:
    """By the native road, but for `reads`."""

    reads: int = 0
    """Passes over all partitions of a fetch, by either road."""
    taken: int = 0
    with_records: int = 0
    with_aborted: int = 0
    after_a_wait: int = 0

    @property
    def share(self) -> float:
        return self.taken / max(self.reads, 1)

    def __str__(self) -> str:
        return (
            f"{self.taken} of {self.reads} reads by the native road, {self.with_records} of them with records, "
            f"{self.with_aborted} with aborted transactions; {self.after_a_wait} answers after a wait"
        )


@dataclass
class Copies:
    """Frames of the copy stream: by function of the native road, how many it was asked for, and how many it took."""

    asked: dict[str, int] = field(default_factory=dict)
    taken: dict[str, int] = field(default_factory=dict)

    def add(self, counted: CountedCopies) -> None:
        for own, more in ((self.asked, counted.asked), (self.taken, counted.taken)):
            own.update({name: own.get(name, 0) + number for name, number in more.items()})

    @property
    def share(self) -> float:
        """Of the function that takes the least."""
        return min((self.taken[name] / max(number, 1) for name, number in self.asked.items()), default=0.0)

    def __str__(self) -> str:
        return ", ".join(f"{name} {self.taken[name]} of {number}" for name, number in self.asked.items())


@dataclass
class Counts:
    operations: int = 0
    appended: int = 0
    """Batches that were appended, by either road, and not known already."""
    natively: int = 0
    refused: int = 0
    fetches: Fetches = field(default_factory=Fetches)
    copies: Copies = field(default_factory=Copies)

    @property
    def share(self) -> float:
        return self.natively / max(self.appended, 1)

    def __str__(self) -> str:
        return f"{self.natively} of {self.appended} appends by the native road, {self.refused} refusals"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.partition_fuzz", description=__doc__)
    parser.add_argument("--operations", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--case", type=int, default=0, help="the first case")
    parser.add_argument("--fetches", action="store_true", help="fetches of many partitions, beside the appends")
    parser.add_argument("--copies", action="store_true", help="a follower that copies what is appended")
    options = parser.parse_args()
    counts = Counts()
    console = Console()
    with Progress(console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("operations", total=options.operations)
        run = run_group if options.fetches else run_pair if options.copies else run_case
        try:
            for _ in fuzz(options.seed, options.operations, counts, first_case=options.case, run=run):
                progress.update(task, completed=counts.operations)
        except (DifferenceError, StoppedError) as found:
            print(found)
            return 1
    told = str(counts.fetches if options.fetches else counts.copies if options.copies else counts)
    if options.fetches:
        too_few = counts.fetches.share < READS_TAKEN_MIN
    elif options.copies:
        too_few = counts.copies.share < COPIES_TAKEN_MIN
    else:
        too_few = counts.share < TAKEN_MIN
    if too_few:
        print(f"seed {options.seed}: too few by the native road: {told}")
        return 1
    print(
        f"{counts.operations} operations from seed {options.seed}: no difference; {told}; the rest runs as {ROAD.name}"
    )
    return 0


def fuzz(seed: int, operations: int, counts: Counts, *, first_case: int = 0, run: Run | None = None) -> Iterator[int]:
    """Yields the number of each case. Raises DifferenceError. `run`: of one case; None: `run_case`."""
    native = ROAD.native
    assert native is not None, f"{VARIABLE}=1 has to be set"
    bodies = Bodies(Random(seed), native)
    case = first_case
    with silent(), InlineLoops() as loops:
        while counts.operations < operations:
            (run or run_case)(seed, case, bodies, loops, native, counts)
            yield case
            case += 1


Run: TypeAlias = Callable[[int, int, Bodies, tuple[InlineLoop, InlineLoop], Native, Counts], None]


class InlineLoops:
    """One event loop for each world."""

    def __enter__(self) -> tuple[InlineLoop, InlineLoop]:
        self._loops = InlineLoop(), InlineLoop()
        return self._loops

    def __exit__(self, *_: object) -> None:
        for loop in self._loops:
            loop.close()


@contextmanager
def silent() -> Iterator[None]:
    """Log nothing: failures are planned."""
    before = structlog.get_config()
    structlog.configure(processors=[_dropped], cache_logger_on_first_use=False)
    try:
        yield
    finally:
        structlog.configure(**before)


def _dropped(*_: object) -> structlog.types.EventDict:
    raise structlog.DropEvent


def run_case(
    seed: int, case: int, bodies: Bodies, loops: tuple[InlineLoop, InlineLoop], native: Native, counts: Counts
) -> None:
    chance, clock = Random(f"{seed} {case}"), Clock()
    fsync, disk = chance.random() < 0.6, chance.randrange(1 << 32)
    replicas, has_journal = chance.choice((1, 1, 1, 2, 3)), chance.random() < 0.85
    settings, config = settings_of(chance, fsync=fsync, is_narrow=chance.random() < 0.4, replicas=replicas)
    natively, python = (
        World(
            disk, clock, loop, native=road, config=config, settings=settings,
            replicas=replicas, has_journal=has_journal,
        )
        for loop, road in zip(loops, (native, None), strict=True)
    )  # fmt: skip
    chooser = Chooser(chance, bodies, python, fsync=fsync)
    done: list[Operation] = []
    try:
        left = OPERATIONS_OF_A_CASE
        while left:
            done.append(chooser.next() if done else chooser.append_plain())
            _compare(done[-1], natively, python, counts)
            left -= 1
            if python.partition.availability is not ErrorCode.NONE:
                left = min(left, AFTER_ITS_END)
        done.append(Operation(do.close))
        _compare(done[-1], natively, python, counts, all_of_it=True)
    except (DifferenceError, StoppedError) as found:
        story = "\n".join(f"  {at}: {_told(each)}" for at, each in enumerate(done))
        settings_told = f"fsync={fsync} {settings} {config} replicas={replicas} journal={has_journal}"
        raise type(found)(
            f"seed {seed}, case {case}, operation {len(done) - 1}\n{settings_told}\n{story}\n{found}"
        ) from found
    assert natively.counted is not None
    counts.natively += natively.counted.appended


def _told(operation: Operation) -> str:
    return f"{operation.func.__name__}({', '.join(f'{name}={each!r}' for name, each in operation.keywords.items())})"


def _compare(operation: Operation, natively: World, python: World, counts: Counts, *, all_of_it: bool = False) -> None:
    """Carry it out on both. Raises DifferenceError."""
    counts.operations += 1
    end = python.log.log_end_offset
    answers = answer_of(operation, natively), answer_of(operation, python)
    _count((answers[1][1], *(each[1] for each in python.told if each[0] == "taken")), end, counts)
    found = [f"answer:\n  native: {answers[0]!r}\n  python: {answers[1]!r}"] if answers[0] != answers[1] else []
    if natively.partition.hot is not natively.counted:
        found.append("the native road failed, and the twin went on")
    seen = seen_of(natively, all_of_it=all_of_it), seen_of(python, all_of_it=all_of_it)
    if found or seen[0] != seen[1]:
        raise DifferenceError("\n".join([*found, *differing(*seen)]))
    natively.told.clear()
    python.told.clear()
    if answers[1][0] is AssertionError:
        raise StoppedError(f"both stop: {answers[1][1]}")


def run_group(
    seed: int, case: int, bodies: Bodies, loops: tuple[InlineLoop, InlineLoop], native: Native, counts: Counts
) -> None:
    """As `run_case`, for partitions that are fetched together."""
    reads = CountedReads(native)
    group = Group(Random(f"{seed} {case} fetches"), bodies, loops, reads)
    done: list[tuple[int | None, Operation]] = []

    def carry_out(at: int | None, operation: Operation, *, all_of_it: bool = False) -> None:
        done.append((at, operation))
        _compare_group(group, at, operation, counts, all_of_it=all_of_it)

    try:
        left = OPERATIONS_OF_A_GROUP
        while left:
            carry_out(*group.next())
            left -= 1
            if group.python.has_ended:
                left = min(left, AFTER_ITS_END)
        carry_out(None, to(ReadSide.leave_all))
        for at, _ in enumerate(group.python.worlds):
            carry_out(at, to(do.unpacked))
            carry_out(at, to(do.close), all_of_it=True)
    except (DifferenceError, StoppedError) as found:
        story = "\n".join(f"  {number}: {at} {_told(each)}" for number, (at, each) in enumerate(done))
        raise type(found)(
            f"seed {seed}, case {case}, operation {len(done) - 1}\n{group.told}\n{story}\n{found}"
        ) from found
    fetches = counts.fetches
    fetches.reads += reads.reads
    fetches.taken += reads.taken
    fetches.with_records += reads.with_records
    fetches.with_aborted += reads.with_aborted


def _compare_group(group: Group, at: int | None, operation: Operation, counts: Counts, *, all_of_it: bool) -> None:
    counts.operations += 1
    sides = natively, python = group.natively, group.python
    answers = [side.carry_out(at, operation) for side in sides]
    views: list[tuple[str, list[Seen]]] = [
        (
            "",
            [
                {"answer": answer, "told": side.told, "fetches": side.fetches}
                for answer, side in zip(answers, sides, strict=True)
            ],
        )
    ]
    which = range(len(python.worlds)) if at is None or natively.told or python.told else [at]
    views += [
        (f"partition {each}: ", [seen_of(side.worlds[each], all_of_it=all_of_it) for side in sides]) for each in which
    ]
    for _, seen in views if group.reads.has_handed_back else ():
        for one in seen:
            for name in OF_READS:
                one.pop(name, None)
    found = ["the native road failed, and the twin went on"] if natively.has_failed else []
    for name, seen in views:
        found += [f"{name}{line}" for line in differing(*seen)]
    if found:
        raise DifferenceError("\n".join(found))
    counts.fetches.after_a_wait += sum(each[1] != "left" for each in python.told)
    for side in sides:
        side.forget_told()
    if answers[1][0] is AssertionError:
        raise StoppedError(f"both stop: {answers[1][1]}")


def run_pair(
    seed: int, case: int, bodies: Bodies, loops: tuple[InlineLoop, InlineLoop], native: Native, counts: Counts
) -> None:
    """As `run_case`, for a leader with a follower."""
    chance = Random(f"{seed} {case} copies")
    pair = Pair(chance, bodies, native)
    done: list[Operation] = []
    looks_every = chance.choice((1, 2, 5))
    try:
        left = OPERATIONS_OF_A_PAIR
        while left:
            done.append(pair.next())
            _compare_pair(pair, done[-1], counts, looks_at_leader=len(done) % looks_every == 0)
            left -= 1
            if any(world.partition.availability is not ErrorCode.NONE for world in pair.python.worlds):
                left = min(left, AFTER_ITS_END)
        done.append(to(Side.close))
        _compare_pair(pair, done[-1], counts, looks_at_leader=True, all_of_it=True)
    except (DifferenceError, StoppedError) as found:
        story = "\n".join(f"  {at}: {_told(each)}" for at, each in enumerate(done))
        raise type(found)(
            f"seed {seed}, case {case}, operation {len(done) - 1}\n{pair.told}\n{story}\n{found}"
        ) from found
    finally:
        pair.close()
    counts.copies.add(pair.counted)


def _compare_pair(
    pair: Pair, operation: Operation, counts: Counts, *, looks_at_leader: bool, all_of_it: bool = False
) -> None:
    counts.operations += 1
    sides = pair.natively, pair.python
    answers = [side.carry_out(operation) for side in sides]
    found = [f"answer:\n  native: {answers[0]!r}\n  python: {answers[1]!r}"] if answers[0] != answers[1] else []
    if pair.natively.has_failed:
        found.append("the native road failed, and the twin went on")
    views = [side.seen(looks_at_leader=looks_at_leader, all_of_it=all_of_it) for side in sides]
    for (name, natively), (_, python) in zip(*views, strict=True):
        found += [f"{name}{line}" for line in differing(natively, python)]
    if found:
        raise DifferenceError("\n".join(found))
    for side in sides:
        side.forget_told()
    if answers[1][0] is AssertionError:
        raise StoppedError(f"both stop: {answers[1][1]}")


def _count(answers: object, end: int, counts: Counts) -> None:
    """`end`: where the log ended before."""
    for each in answers if type(answers) is tuple else ():
        counts.appended += isinstance(each, Appended) and each.base_offset >= end
        counts.refused += isinstance(each, WriteRefusal)
        _count(each, end, counts)


if __name__ == "__main__":
    sys.exit(main())
