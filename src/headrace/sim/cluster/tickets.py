"""A counter that gives out each number once, and the judge of its clients' answers. Pure.

For this object linearizability needs no search, because a number gives its own position in the order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush


@dataclass(frozen=True, slots=True)
class Ticket:
    """One request. Moments are rising numbers, no two the same; `returned` None: the outcome is unknown."""

    taken: bool
    """Whether it took the number, or only read it."""
    called: int
    number: int = -1
    returned: int | None = None

    @property
    def next_number(self) -> int:
        """The counter after this request."""
        return self.number + self.taken


def faults_in(history: Sequence[Ticket]) -> Iterator[str]:
    """Violations that no order explains: a number given out twice, or one lower than an answer from before its request.
    Also numbers that no request can have taken."""
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
