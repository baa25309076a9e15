"""Regular expressions over topic names, matched in linear time. Their syntax is in `expressions`.

Promises: a name of n characters takes n steps, whatever the expression. The cost of a step is counted, and the cache is
bounded. An invalid or too large expression is refused with PatternError. A name matches in full or not at all.

Method: Thompson's construction and simulation (1968), with a cache of the state sets it met (a lazy DFA).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from headrace.base.limits import GROUP_PATTERN_REMEMBERED_MAX, GROUP_PATTERN_STATES_MAX
from headrace.coordinators.groups.consumer.expressions import (
    ALPHABET,
    Anchor,
    Chars,
    Choice,
    Names,
    Node,
    PatternError,
    Repeat,
    Row,
    parse,
)

_BIT: Final = {char: 1 << at for at, char in enumerate(sorted(ALPHABET))}


@dataclass(slots=True)
class _State:
    """A state of the automaton: a step over a character, a fork, an anchor, or the end."""

    takes: int | None = None
    """The characters that lead on, as bits."""
    anchor: str = ""
    then: list[int] = field(default_factory=list)


class _Builder:
    """Numbered states. A piece of an expression is its first state and its last, which has no successor yet."""

    def __init__(self) -> None:
        self.states: list[_State] = []
        self._bits: dict[Names, int] = {}

    def new(self, takes: int | None = None, anchor: str = "") -> int:
        if len(self.states) >= GROUP_PATTERN_STATES_MAX:
            raise PatternError("the expression is too large")
        self.states.append(_State(takes, anchor))
        return len(self.states) - 1

    def link(self, start: int, end: int) -> None:
        self.states[start].then.append(end)

    def bits(self, names: Names) -> int:
        found = self._bits.get(names)
        if found is None:
            found = self._bits[names] = sum(_BIT[char] for char in names)
        return found


@dataclass(slots=True)
class _Place:
    """A set of states that matching a name can reach, and the known successors for each character."""

    states: frozenset[int]
    is_end: bool
    moves: dict[str, _Place] = field(default_factory=dict)


class Pattern:
    """A compiled expression. Raises PatternError."""

    def __init__(self, text: str) -> None:
        builder = _Builder()
        start, end = _build(parse(text), builder)
        self._end = builder.new()
        builder.link(end, self._end)
        self._states = builder.states
        self.work = 0
        """States visited so far: the cost of matching. Cached steps cost nothing."""
        self._places: dict[frozenset[int], _Place] = {}
        self.remembered = 0
        """States in the cache."""
        begin = frozenset([start])
        at_start = self._reach(begin, at_start=True)
        self._start = _Place(at_start, self._end in self._reach(begin, at_start=True, at_end=True))

    def matches(self, name: str) -> bool:
        """Whether it matches the whole of a topic's name."""
        place = self._start
        for char in name:
            after = place.moves.get(char)
            place = self._move(place, char) if after is None else after
            if not place.states:
                return False
        return place.is_end

    def _move(self, place: _Place, char: str) -> _Place:
        bit, ahead = _BIT.get(char, 0), set[int]()
        self.work += len(place.states)
        for number in place.states:
            state = self._states[number]
            if state.takes is not None and state.takes & bit:
                ahead.update(state.then)
        states = self._reach(frozenset(ahead))
        after = self._places.get(states)
        if after is None:
            self.remembered += 1 + len(states)
            if self.remembered > GROUP_PATTERN_REMEMBERED_MAX:
                self.forget()
                self.remembered = 1 + len(states)
            after = self._places[states] = _Place(states, self._end in self._reach(states, at_end=True))
        place.moves[char] = after
        return after

    def forget(self) -> None:
        """Empty the cache, so that the pattern stays small."""
        for place in self._places.values():
            place.moves.clear()
        self._places.clear()
        self._start.moves.clear()
        self.remembered = 0

    def _reach(self, states: frozenset[int], *, at_start: bool = False, at_end: bool = False) -> frozenset[int]:
        """States that can be reached without a character."""
        found, todo = set(states), list(states)
        while todo:
            state = self._states[todo.pop()]
            shut = (state.anchor == "^" and not at_start) or (state.anchor == "$" and not at_end)
            if state.takes is None and not shut:
                for after in state.then:
                    if after not in found:
                        found.add(after)
                        todo.append(after)
        self.work += len(found)
        return frozenset(found)


def _build(node: Node, builder: _Builder) -> tuple[int, int]:
    """The first state and the last of the node."""
    match node:
        case Chars(names):
            at = builder.new(builder.bits(names))
            return at, at
        case Anchor(char):
            at = builder.new(anchor=char)
            return at, at
        case Row(items):
            start = end = builder.new()
            for item in items:
                first, last = _build(item, builder)
                builder.link(end, first)
                end = last
            return start, end
        case Choice(items):
            start, end = builder.new(), builder.new()
            for item in items:
                first, last = _build(item, builder)
                builder.link(start, first)
                builder.link(last, end)
            return start, end
        case Repeat(item, low, high):
            start = end = builder.new()
            for _ in range(low):
                first, last = _build(item, builder)
                builder.link(end, first)
                end = last
            return (
                (start, _any_number(item, end, builder))
                if high is None
                else (
                    start,
                    _at_most(item, high - low, end, builder),
                )
            )


def _any_number(item: Node, end: int, builder: _Builder) -> int:
    first, last = _build(item, builder)
    loop = builder.new()
    for here, there in ((end, loop), (loop, first), (last, loop)):
        builder.link(here, there)
    after = builder.new()
    builder.link(loop, after)
    return after


def _at_most(item: Node, times: int, end: int, builder: _Builder) -> int:
    after = builder.new()
    builder.link(end, after)
    for _ in range(times):
        first, end_of = _build(item, builder)
        builder.link(end, first)
        builder.link(end_of, after)
        end = end_of
    return after
