"""The judge of what a group read finds what it is there to find."""

from __future__ import annotations

import itertools
import zlib

import pytest

from tests.promises.support.load import PartitionLogs
from tests.promises.support.readings import Readings, Verdict

LOG: PartitionLogs = {0: {offset: b"%d" % offset for offset in range(30)}}


class Told:
    """One partition, and members that tell of it in turns, as clients do."""

    def __init__(self) -> None:
        self.readings = Readings(1, one_reader=True)
        self._times = itertools.count()

    def tell(self, member: int, what: str, *words: object) -> None:
        line = " ".join(map(str, (next(self._times), member, what, *words)))
        self.readings.on_line("a", f"{line}\n")

    def read(self, member: int, first: int, last: int, *, generation: int = 1, crc: int | None = None) -> None:
        values = zlib.crc32(b"".join(LOG[0].get(at, b"") for at in range(first, last + 1)))
        self.tell(member, "read", generation, 0, first, last, values if crc is None else crc)

    def keep(self, member: int, first: int, last: int, *, generation: int = 1) -> None:
        self.read(member, first, last, generation=generation)
        self.tell(member, "committed", 0, last + 1)

    def check(self) -> Verdict:
        return self.readings.check(LOG)


@pytest.fixture
def told() -> Told:
    """The first ten records are read and committed by the first member."""
    made = Told()
    made.tell(1, "assigned", 0)
    made.keep(1, 0, 9)
    return made


def take_over(told: Told) -> None:
    told.tell(1, "revoked", 0)
    told.tell(2, "assigned", 0)


def test_what_was_not_committed_may_be_read_again_by_who_takes_over(told: Told) -> None:
    told.read(1, 10, 19)
    take_over(told)
    told.keep(2, 10, 29, generation=2)
    assert told.check() == Verdict(records=30, again=10, generations=2, refused=0)


def test_a_later_commit_of_the_same_reader_covers_a_refused_one(told: Told) -> None:
    told.read(1, 10, 19)
    told.tell(1, "refused", "why")
    told.keep(1, 20, 24)
    take_over(told)
    told.keep(2, 20, 29, generation=2)
    with pytest.raises(AssertionError, match="read again, and committed up to 25"):
        told.check()


def test_what_was_committed_is_read_again(told: Told) -> None:
    take_over(told)
    told.keep(2, 5, 29, generation=2)
    with pytest.raises(AssertionError, match="read again, and committed up to 10"):
        told.check()


def test_a_commit_of_who_had_lost_the_partition_is_answered_with_success(told: Told) -> None:
    """The client has not heard of it yet."""
    told.read(1, 10, 19)
    told.tell(2, "assigned", 0)
    told.keep(2, 10, 29, generation=2)
    told.tell(1, "committed", 0, 20)
    with pytest.raises(AssertionError, match="read again, and committed up to 20"):
        told.check()


def test_records_are_left_out(told: Told) -> None:
    take_over(told)
    told.keep(2, 11, 29, generation=2)
    with pytest.raises(AssertionError, match="10 to 10 left out"):
        told.check()


def test_the_end_is_never_read(told: Told) -> None:
    told.keep(1, 10, 28)
    with pytest.raises(AssertionError, match="29 to 29 never read"):
        told.check()


def test_a_reader_goes_back_by_itself(told: Told) -> None:
    told.read(1, 10, 19)
    told.read(1, 15, 29)
    with pytest.raises(AssertionError, match="not where it was: 20"):
        told.check()


def test_two_read_in_one_generation(told: Told) -> None:
    take_over(told)
    told.keep(2, 10, 29)
    with pytest.raises(AssertionError, match="two readers in one generation"):
        told.check()


def test_values_are_others(told: Told) -> None:
    told.read(1, 10, 29, crc=1)
    with pytest.raises(AssertionError, match="crc=1"):
        told.check()


def test_a_member_fails(told: Told) -> None:
    told.keep(1, 10, 29)
    told.tell(1, "failed", "why")
    with pytest.raises(AssertionError, match="why"):
        told.check()
