"""Decides whether a concurrent history could come from one object that does one thing at a time (linearizability).

Promises:
- `judge` returns LINEARIZABLE exactly where some order respects real time and the model accepts it.
- It returns BROKEN exactly where no such order exists, and UNDECIDED only where it reached its limit.
- An unanswered operation may have happened at any time after its call, or not at all.
- It knows nothing of the meaning of operations.

Sources: Wing and Gong, "Testing and Verifying Concurrent Objects"; Lowe, "Testing for Linearizability" (the memo, and
the list from which an operation is lifted), as in Porcupine.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Generic, Protocol, TypeVar

State = TypeVar("State", bound=Hashable)

STEPS_MAX: Final = 2_000_000
"""Operations tried before a history counts as undecided."""


@dataclass(frozen=True, slots=True)
class Operation:
    """The request of one client and its answer. Moments are any numbers that rise; of two equal ones the call is
    first."""

    client: str
    action: Any
    called: float
    answer: Any = None
    returned: float | None = None
    """None: no answer came, or one that leaves the outcome open."""


class Model(Protocol[State]):
    """The object as it behaves with a single client."""

    def first(self) -> State:
        """The state before any request."""

    def step(self, state: State, action: Any, answer: Any) -> State | None:
        """The state after `action`, where `answer` is right in this state; None where it is wrong. The answer None is
        right in every state."""


class Verdict(Enum):
    LINEARIZABLE = "linearizable"
    BROKEN = "broken"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Judgement:
    """`order`: if linearizable, an order that explains all answers; else the longest valid beginning of one."""

    verdict: Verdict
    order: tuple[Operation, ...] = ()
    stuck_before: tuple[Operation, ...] = ()
    """If broken: the operations under way at the end of that beginning. None of them can come next."""


class _Node:
    """A call or a return, in the list of those not yet in the order."""

    __slots__ = ("after", "before", "is_call", "number", "operation", "returns")

    def __init__(self, number: int, operation: Operation, *, is_call: bool) -> None:
        self.number = number
        self.operation = operation
        self.is_call = is_call
        self.returns: _Node | None = None
        """For a call with an answer: its return."""
        self.before: _Node | None = None
        self.after: _Node | None = None


def judge(operations: Iterable[Operation], model: Model[Any], *, steps_max: int = STEPS_MAX) -> Judgement:
    """Search for an order of the whole history."""
    return _Search(list(operations), model).run(steps_max)


def judge_apart(
    operations: Iterable[Operation],
    model: Model[Any],
    part_of: Callable[[Any], Hashable],
    *,
    steps_max: int = STEPS_MAX,
) -> dict[Hashable, Judgement]:
    """Judge each part of the object alone. That is enough if no action concerns two parts, because linearizability is a
    local property (Herlihy and Wing). `part_of` gives the part that an action concerns."""
    parts: dict[Hashable, list[Operation]] = {}
    for operation in operations:
        parts.setdefault(part_of(operation.action), []).append(operation)
    return {part: judge(found, model, steps_max=steps_max) for part, found in parts.items()}


@dataclass(slots=True)
class _Search(Generic[State]):
    """A depth-first search. Invariant: `placed` and the operations in the list are all operations."""

    operations: Sequence[Operation]
    model: Model[State]
    head: _Node = field(init=False)
    answered: int = 0
    """Number of calls in the list that have a return there."""
    placed: list[tuple[_Node, State]] = field(default_factory=list)
    """The order so far, each operation with the state before it."""
    best: tuple[tuple[Operation, ...], tuple[Operation, ...]] = ((), ())

    def __post_init__(self) -> None:
        self.head = _Node(-1, Operation("", None, 0), is_call=False)
        moments: list[tuple[float, int, int, _Node]] = []
        for number, operation in enumerate(self.operations):
            call = _Node(number, operation, is_call=True)
            moments.append((operation.called, 0, number, call))
            if operation.returned is not None:
                call.returns = _Node(number, operation, is_call=False)
                moments.append((operation.returned, 1, number, call.returns))
                self.answered += 1
        last = self.head
        for _, _, _, node in sorted(moments, key=lambda moment: moment[:3]):
            last.after, node.before = node, last
            last = node

    def run(self, steps_max: int) -> Judgement:
        state, done, seen = self.model.first(), 0, set[tuple[int, State]]()
        node, steps = self._next(self.head, is_answered=True), 0
        while self.answered:
            if node is not None:
                steps += 1
                if steps > steps_max:
                    return Judgement(Verdict.UNDECIDED, *self.best)
                after = self.model.step(state, node.operation.action, self._answer(node))
                is_idle = node.returns is None and after == state
                if after is not None and not is_idle and (done | 1 << node.number, after) not in seen:
                    done |= 1 << node.number
                    seen.add((done, after))
                    self.placed.append((node, state))
                    state = after
                    self._lift(node)
                    node = self._next(self.head, is_answered=True)
                else:
                    node = self._next(node, is_answered=node.returns is not None)
                continue
            self._remember()
            if not self.placed:
                return Judgement(Verdict.BROKEN, *self.best)
            node, state = self.placed.pop()
            done &= ~(1 << node.number)
            self._put_back(node)
            node = self._next(node, is_answered=node.returns is not None)
        return Judgement(Verdict.LINEARIZABLE, self._order())

    def _next(self, node: _Node, *, is_answered: bool) -> _Node | None:
        """The next operation to try after `node`: first answered ones, then the others, of all that may come next. An
        unanswered operation is placed only if it changes the state, which is seldom needed."""
        after = node.after
        while True:
            while after is not None and after.is_call and (after.returns is not None) != is_answered:
                after = after.after
            if after is not None and after.is_call:
                return after
            if not is_answered:
                return None
            is_answered, after = False, self.head.after

    @staticmethod
    def _answer(node: _Node) -> Any:
        return node.operation.answer if node.returns is not None else None

    def _lift(self, node: _Node) -> None:
        for each in (node, node.returns):
            if each is not None:
                assert each.before is not None
                each.before.after = each.after
                if each.after is not None:
                    each.after.before = each.before
        self.answered -= node.returns is not None

    def _put_back(self, node: _Node) -> None:
        for each in (node.returns, node):
            if each is not None:
                assert each.before is not None
                each.before.after = each
                if each.after is not None:
                    each.after.before = each
        self.answered += node.returns is not None

    def _order(self) -> tuple[Operation, ...]:
        return tuple(node.operation for node, _ in self.placed)

    def _remember(self) -> None:
        """Record for people the longest order found, and the operations that were next then."""
        if self.best[1] and len(self.placed) <= len(self.best[0]):
            return
        waiting, node = [], self.head.after
        while node is not None and node.is_call:
            waiting.append(node.operation)
            node = node.after
        self.best = (self._order(), tuple(waiting))
