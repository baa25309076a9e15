"""What was committed, forgotten and fetched of a run's groups, as operations on one register for each partition.

A register is what one group has committed for one partition of one topic (by its id, so that a topic which is made anew
has registers of its own). Every commit of a run has a number of its own for an offset, so that an offset stands for the
commit. `linear` judges them: what is fetched must be what some order of the commits, in keeping with real time, had
then; a commit that nobody knows the outcome of may be in it anywhere after it was sent, or nowhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias
from uuid import UUID

from headrace.sim.cluster.linear import Operation, Verdict, judge_apart
from headrace.sim.history import Problem

NOTHING: Final = -1
"""The offset where none is committed."""
STEPS_MAX: Final = 60_000


class Register(NamedTuple):
    group: str
    topic_id: UUID
    partition: int

    def __str__(self) -> str:
        return f"{self.group} of {str(self.topic_id)[:8]}-{self.partition}"


@dataclass(frozen=True, slots=True)
class Commit:
    register: Register
    offset: int


@dataclass(frozen=True, slots=True)
class Clear:
    """OffsetDelete, or DeleteGroups."""

    register: Register


@dataclass(frozen=True, slots=True)
class Look:
    """OffsetFetch; or the answer that there is no such group."""

    register: Register


Action: TypeAlias = Commit | Clear | Look


class Registers:
    """`linear.Model` of one of them: the offset that is committed."""

    def first(self) -> int:
        return NOTHING

    def step(self, state: int, action: Any, answer: Any) -> int | None:
        match action:
            case Commit(offset=offset):
                return offset
            case Clear():
                return NOTHING
            case _:
                return state if answer in (None, state) else None


class Ledger:
    """The operations of a run, in the order of moments."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self._moment = 0
        self._offset = 0
        self._asked: dict[Register, None] = {}
        """That anybody asked to commit to, whatever came of it, in the order of that."""
        self.acknowledged = self.looks = 0

    def now(self) -> int:
        """A moment of its own, later than all before."""
        self._moment += 1
        return self._moment

    def next_offset(self) -> int:
        self._offset += 1
        return self._offset

    def done(self, client: str, action: Action, called: int, answer: int | None = 0) -> None:
        """It was answered just now."""
        self.acknowledged += isinstance(action, Commit)
        self.looks += isinstance(action, Look)
        self.operations.append(Operation(client, action, called, answer, self.now()))

    def unknown(self, client: str, action: Action, called: int) -> None:
        """Nobody knows whether it was done, or will be."""
        self.operations.append(Operation(client, action, called))

    def registers(self, group: str) -> list[Register]:
        """All of a group that anybody has asked to commit to by now, in the order of that."""
        return [register for register in self._asked if register.group == group]

    def asks_for(self, commits: Iterable[Commit]) -> None:
        """They are on their way."""
        self._asked.update((commit.register, None) for commit in commits)


def relevant(operations: Iterable[Operation]) -> list[Operation]:
    """Without the commits that nobody knows the outcome of and nobody ever saw: an order with one of them is one
    without it too."""
    operations = list(operations)
    seen = {each.answer for each in operations if isinstance(each.action, Look)}
    return [
        each
        for each in operations
        if each.returned is not None or not isinstance(each.action, Commit) or each.action.offset in seen
    ]


def judge_offsets(ledger: Ledger) -> Iterator[Problem]:
    """What no order of commits explains, register by register."""
    told = judge_apart(relevant(ledger.operations), Registers(), lambda action: action.register, steps_max=STEPS_MAX)
    for register, judgement in told.items():
        if judgement.verdict is Verdict.BROKEN:
            last = "; ".join(map(_line, judgement.order[-3:])) or "nothing"
            next_ = "; ".join(map(_line, judgement.stuck_before[:4]))
            yield Problem("lost-commit", f"{register}: after {last}, none of these can be: {next_}")
        elif judgement.verdict is Verdict.UNDECIDED:
            yield Problem("undecided", f"{register}: more orders than can be tried")


def _line(operation: Operation) -> str:
    action, span = operation.action, f"{operation.called:.0f} to {operation.returned or 'never answered'}"
    match action:
        case Commit(offset=offset):
            what = f"commits {offset}"
        case Clear():
            what = "clears"
        case _:
            what = f"sees {operation.answer}"
    return f"{operation.client} {what} ({span})"
