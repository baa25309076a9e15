"""A counter that gives out each number once, and the judge of what its clients were told. Pure.

Of this one object linearizability needs no search: a number that was given out says where in the order it stood.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush


@dataclass(frozen=True, slots=True)
class Ticket:
    """One request. Moments are numbers that rise, no two the same; `returned` None: nobody knows what became of it."""

    taken: bool
    """Whether it took the number, or only looked which comes next."""
    called: int
    number: int = -1
    returned: int | None = None

    @property
    def next_number(self) -> int:
        """What the counter stood at after it."""
        return self.number + self.taken


def faults_in(history: Sequence[Ticket]) -> Iterator[str]:
    """What no order explains: a number given out twice, one lower than what was told before it was asked for, numbers
    that nobody can have taken."""
    answered = sorted((each for each in history if each.returned is not None), key=lambda each: each.called)
    under_way: list[tuple[int, int]] = []
    given, floor = set[int](), 0
    for each in answered:
        assert each.returned is not None
        while under_way and under_way[0][0] < each.called:
            floor = max(floor, heappop(under_way)[1])
        if each.number < floor:
            yield f"{each} although {floor} was next before it was asked for"
        if each.taken and each.number in given:
            yield f"{each.number} was given out twice"
        if each.taken:
            given.add(each.number)
        heappush(under_way, (each.returned, each.next_number))
    unknown = sum(each.taken and each.returned is None for each in history)
    missing = max((each.next_number for each in answered), default=0) - len(given)
    if missing > unknown:
        yield f"{missing} numbers went to nobody, and only {unknown} requests were not answered"
