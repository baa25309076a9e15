"""The commits, deletions and fetches of a run's groups, as operations on one register per partition.

A register holds the offset that one group has committed for one partition of one topic. It goes by the topic's id, so a
topic that is created again has other registers. Every commit of a run has a unique number as its offset, so an offset
identifies the commit.

`linear` judges them: a fetched offset must fit some order of the commits that agrees with real time. A commit of
unknown outcome may take effect at any time after it was sent, or never.
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
    """OffsetFetch, or the answer that the group does not exist."""

    register: Register


Action: TypeAlias = Commit | Clear | Look


class Registers:
    """`linear.Model` of one register: the committed offset."""

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
    """The operations of a run, by moments."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self._moment = 0
        self._offset = 0
        self._asked: dict[Register, None] = {}
        """Registers that any client tried to commit to, in order of the first attempt."""
        self.acknowledged = self.looks = 0

    def now(self) -> int:
        """A new moment, later than all before."""
        self._moment += 1
        return self._moment

    def next_offset(self) -> int:
        self._offset += 1
        return self._offset

    def done(self, client: str, action: Action, called: int, answer: int | None = 0) -> None:
        """The operation was answered just now."""
        self.acknowledged += isinstance(action, Commit)
        self.looks += isinstance(action, Look)
        self.operations.append(Operation(client, action, called, answer, self.now()))

    def unknown(self, client: str, action: Action, called: int) -> None:
        """The outcome of the operation is unknown."""
        self.operations.append(Operation(client, action, called))

    def registers(self, group: str) -> list[Register]:
        """All registers of a group that any client has tried to commit to, in order of the first attempt."""
        return [register for register in self._asked if register.group == group]

    def asks_for(self, commits: Iterable[Commit]) -> None:
        """These commits are being sent."""
        self._asked.update((commit.register, None) for commit in commits)


def relevant(operations: Iterable[Operation]) -> list[Operation]:
    """The operations without commits of unknown outcome that nobody saw. An order that contains one of them is valid
    without it, too."""
    operations = list(operations)
    seen = {each.answer for each in operations if isinstance(each.action, Look)}
    return [
        each
        for each in operations
        if each.returned is not None or not isinstance(each.action, Commit) or each.action.offset in seen
    ]


def judge_offsets(ledger: Ledger) -> Iterator[Problem]:
    """Problems of registers whose operations no order explains."""
    judged = judge_apart(relevant(ledger.operations), Registers(), lambda action: action.register, steps_max=STEPS_MAX)
    for register, judgement in judged.items():
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
