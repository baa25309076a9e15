"""Regular expressions over topic names, in the syntax of RE2 (which Kafka's SubscribedTopicRegex has), in linear time.

Promises: a name of n characters costs n steps, whatever the expression; an expression that is too large, or that is
none, is refused with PatternError. It takes a name whole or not at all. Names are made of 65 characters, so that a set
of these is all that a class, a dot or an escape can mean. Left out, and refused: \\b and \\B, Unicode classes by name,
flags but i and s. As RE2 itself it has no references back and no looking around.

Thompson's construction and simulation (1968), with the sets of states that were met remembered (a lazy DFA).
"""

from __future__ import annotations

import string
from dataclasses import dataclass, field
from typing import Final

from headrace.base.limits import GROUP_PATTERN_CHARS_MAX, GROUP_PATTERN_DEPTH_MAX, GROUP_PATTERN_STATES_MAX

ALPHABET: Final = frozenset(string.ascii_letters + string.digits + "._-")
"""What names of topics are made of."""
_CLASSES: Final = {
    "d": frozenset(string.digits),
    "w": frozenset(string.ascii_letters + string.digits + "_"),
    "s": frozenset[str](),
}
_POSIX: Final = {
    "alnum": frozenset(string.ascii_letters + string.digits),
    "alpha": frozenset(string.ascii_letters),
    "ascii": ALPHABET,
    "blank": frozenset[str](),
    "cntrl": frozenset[str](),
    "digit": frozenset(string.digits),
    "graph": ALPHABET,
    "lower": frozenset(string.ascii_lowercase),
    "print": ALPHABET,
    "punct": frozenset("._-"),
    "space": frozenset[str](),
    "upper": frozenset(string.ascii_uppercase),
    "word": _CLASSES["w"],
    "xdigit": frozenset(string.hexdigits),
}
_CONTROL: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}
REPEATS_MAX: Final = 1_000
"""RE2's: the highest count of a repetition."""

Names = frozenset[str]


class PatternError(ValueError):
    """It is no expression, or too large a one."""


@dataclass(slots=True)
class _State:
    """One of these: a step over a character, a fork, an anchor, or the end."""

    takes: Names | None = None
    anchor: str = ""
    then: list[int] = field(default_factory=list)


class _Builder:
    """States, numbered; a piece of an expression is its first state and its last, which leads nowhere yet."""

    def __init__(self) -> None:
        self.states: list[_State] = []

    def new(self, takes: Names | None = None, anchor: str = "") -> int:
        if len(self.states) >= GROUP_PATTERN_STATES_MAX:
            raise PatternError("the expression is too large")
        self.states.append(_State(takes, anchor))
        return len(self.states) - 1

    def link(self, start: int, end: int) -> None:
        self.states[start].then.append(end)

    def step(self, takes: Names | None = None, anchor: str = "") -> tuple[int, int]:
        start, end = self.new(takes, anchor), self.new()
        self.link(start, end)
        return start, end


# --- what an expression says: a tree ---


@dataclass(frozen=True, slots=True)
class _Chars:
    names: Names


@dataclass(frozen=True, slots=True)
class _Anchor:
    at: str
    """`^` or `$`."""


@dataclass(frozen=True, slots=True)
class _Row:
    items: tuple[_Node, ...]


@dataclass(frozen=True, slots=True)
class _Choice:
    items: tuple[_Node, ...]


@dataclass(frozen=True, slots=True)
class _Repeat:
    item: _Node
    low: int
    high: int | None


_Node = _Chars | _Anchor | _Row | _Choice | _Repeat


class _Parser:
    """Recursive descent over the text."""

    def __init__(self, text: str) -> None:
        if len(text) > GROUP_PATTERN_CHARS_MAX:
            raise PatternError(f"the expression is longer than {GROUP_PATTERN_CHARS_MAX} characters")
        self._text = text
        self._at = 0
        self._depth = 0
        self._any_case = False

    def whole(self) -> _Node:
        node = self._choice()
        if self._at < len(self._text):
            raise PatternError("unexpected )")
        return node

    def _peek(self, text: str) -> bool:
        return self._text.startswith(text, self._at)

    def _take(self, text: str) -> bool:
        found = self._peek(text)
        self._at += len(text) if found else 0
        return found

    def _next(self) -> str:
        if self._at >= len(self._text):
            raise PatternError("the expression ends too soon")
        self._at += 1
        return self._text[self._at - 1]

    def _choice(self) -> _Node:
        self._depth += 1
        if self._depth > GROUP_PATTERN_DEPTH_MAX:
            raise PatternError("the expression is nested too deeply")
        any_case = self._any_case
        items = [self._row()]
        while self._take("|"):
            items.append(self._row())
        self._any_case = any_case
        self._depth -= 1
        return items[0] if len(items) == 1 else _Choice(tuple(items))

    def _row(self) -> _Node:
        items: list[_Node] = []
        while self._at < len(self._text) and not self._peek("|") and not self._peek(")"):
            if self._take("\\Q"):
                end = self._text.find("\\E", self._at)
                quoted = self._text[self._at :] if end < 0 else self._text[self._at : end]
                self._at = len(self._text) if end < 0 else end + 2
                items.extend(self._literal(each) for each in quoted)
                if quoted:
                    items.append(self._repeated(items.pop()))
                continue
            atom = self._atom()
            if atom is not None:
                items.append(self._repeated(atom))
        return _Row(tuple(items))

    def _repeated(self, node: _Node) -> _Node:
        bounds = self._bounds()
        if bounds is None:
            return node
        self._take("?")  # lazy: of no consequence to what matches
        if self._bounds() is not None:
            raise PatternError("a repetition of a repetition")
        return _Repeat(node, *bounds)

    def _bounds(self) -> tuple[int, int | None] | None:
        for sign, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(sign):
                return bounds
        end = self._text.find("}", self._at)
        if not self._peek("{") or end < 0:
            return None
        low, comma, high = self._text[self._at + 1 : end].partition(",")
        if not _is_count(low) or (high and not _is_count(high)):
            return None  # a brace that counts nothing is a character
        self._at = end + 1
        least = int(low)
        most = least if not comma else (int(high) if high else None)
        if max(least, most or 0) > REPEATS_MAX or (most is not None and most < least):
            raise PatternError("a repetition cannot be so often")
        return least, most

    def _atom(self) -> _Node | None:
        """None: it stands for nothing (flags)."""
        char = self._next()
        match char:
            case "(":
                return self._group()
            case "[":
                return _Chars(self._class())
            case ".":
                return _Chars(ALPHABET)
            case "^" | "$":
                return _Anchor(char)
            case "*" | "+" | "?":
                raise PatternError("a repetition of nothing")
            case "\\":
                return self._escape()
            case _:
                return self._literal(char)

    def _literal(self, char: str) -> _Chars:
        return _Chars(self._cased({char}))

    def _cased(self, chars: set[str] | Names) -> Names:
        wanted = {each for char in chars for each in (char.lower(), char.upper())} if self._any_case else chars
        return ALPHABET & wanted

    def _group(self) -> _Node | None:
        if self._take("?P<") or self._take("?<"):
            name = self._until(">")
            if not name.isidentifier():
                raise PatternError("a group's name is none")
        elif self._take("?"):
            flags = ""
            while not self._peek(":") and not self._peek(")"):
                flags += self._next()
            on, _, off = flags.partition("-")
            if set(on + off) - {"i", "s"}:
                raise PatternError(f"(?{flags}) is not supported")
            before = self._any_case
            self._any_case = ("i" in on or before) and "i" not in off
            if self._take(")"):
                return None
            self._next()
            node = self._inner()
            self._any_case = before
            return node
        return self._inner()

    def _inner(self) -> _Node:
        node = self._choice()
        if not self._take(")"):
            raise PatternError("missing )")
        return node

    def _until(self, end: str) -> str:
        found = self._text.find(end, self._at)
        if found < 0:
            raise PatternError(f"missing {end}")
        text, self._at = self._text[self._at : found], found + len(end)
        return text

    def _escape(self) -> _Node:
        char = self._next()
        if char in "Az":
            return _Anchor("^" if char == "A" else "$")
        chars = self._escaped(char)
        return _Chars(chars) if isinstance(chars, frozenset) else self._literal(chars)

    def _escaped(self, char: str) -> Names | str:
        """A class, or a character."""
        if char.lower() in _CLASSES:
            chars = _CLASSES[char.lower()]
            return chars if char.islower() else ALPHABET - chars
        if char in _CONTROL:
            return _CONTROL[char]
        if char == "x":
            digits = self._until("}") if self._take("{") else self._next() + self._next()
            if not digits or len(digits) > 6 or set(digits) - set(string.hexdigits) or int(digits, 16) > 0x10FFFF:
                raise PatternError("\\x needs a number")
            return chr(int(digits, 16))
        if char.isascii() and char.isalnum():
            raise PatternError(f"\\{char} is not supported")
        return char

    def _class(self) -> Names:
        negated = self._take("^")
        chars: set[str] = set()
        first = True
        while first or not self._peek("]"):
            first = False
            if self._take("[:"):
                chars |= self._posix(self._until(":]"))
                continue
            low = self._member()
            if isinstance(low, frozenset):
                chars |= low
            elif self._peek("-") and not self._peek("-]"):
                self._at += 1
                high = self._member()
                if isinstance(high, frozenset) or high < low:
                    raise PatternError("a range that is none")
                chars |= {char for char in ALPHABET if low <= char <= high}
            else:
                chars.add(low)
        self._next()
        found = self._cased(chars)
        return ALPHABET - found if negated else found

    def _posix(self, name: str) -> Names:
        found = _POSIX.get(name.removeprefix("^"))
        if found is None:
            raise PatternError(f"[:{name}:] is no class")
        return ALPHABET - found if name.startswith("^") else found

    def _member(self) -> Names | str:
        char = self._next()
        return self._escaped(self._next()) if char == "\\" else char


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 6


@dataclass(slots=True)
class _Place:
    """Where a name may have got to: a set of states, and where each character leads from there, as far as is known."""

    states: frozenset[int]
    is_end: bool
    moves: dict[str, _Place] = field(default_factory=dict)


class Pattern:
    """An expression, ready to be matched. Raises PatternError."""

    def __init__(self, text: str) -> None:
        builder = _Builder()
        start, self._end = _build(_Parser(text).whole(), builder)
        self._states = builder.states
        self._places: dict[frozenset[int], _Place] = {}
        begin = frozenset([start])
        at_start = self._reach(begin, at_start=True)
        self._start = _Place(at_start, self._end in self._reach(begin, at_start=True, at_end=True))

    def matches(self, name: str) -> bool:
        """Whether it takes the whole of a topic's name."""
        place = self._start
        for char in name:
            after = place.moves.get(char)
            place = self._move(place, char) if after is None else after
            if not place.states:
                return False
        return place.is_end

    def _move(self, place: _Place, char: str) -> _Place:
        ahead: set[int] = set()
        for number in place.states:
            state = self._states[number]
            if state.takes is not None and char in state.takes:
                ahead.update(state.then)
        states = self._reach(frozenset(ahead))
        after = self._places.get(states)
        if after is None:
            if len(self._places) >= GROUP_PATTERN_STATES_MAX:
                self._forget()
            after = self._places[states] = _Place(states, self._end in self._reach(states, at_end=True))
        place.moves[char] = after
        return after

    def _forget(self) -> None:
        """All that was remembered, so that it stays small."""
        for place in self._places.values():
            place.moves.clear()
        self._places.clear()
        self._start.moves.clear()

    def _reach(self, states: frozenset[int], *, at_start: bool = False, at_end: bool = False) -> frozenset[int]:
        """What can be got to without a character."""
        found, todo = set(states), list(states)
        while todo:
            state = self._states[todo.pop()]
            shut = (state.anchor == "^" and not at_start) or (state.anchor == "$" and not at_end)
            if state.takes is None and not shut:
                for after in state.then:
                    if after not in found:
                        found.add(after)
                        todo.append(after)
        return frozenset(found)


def _build(node: _Node, builder: _Builder) -> tuple[int, int]:
    """Its first state and its last."""
    match node:
        case _Chars(names):
            return builder.step(names)
        case _Anchor(at):
            return builder.step(anchor=at)
        case _Row(items):
            start = end = builder.new()
            for item in items:
                first, last = _build(item, builder)
                builder.link(end, first)
                end = last
            return start, end
        case _Choice(items):
            start, end = builder.new(), builder.new()
            for item in items:
                first, last = _build(item, builder)
                builder.link(start, first)
                builder.link(last, end)
            return start, end
        case _Repeat(item, low, high):
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


def _any_number(item: _Node, end: int, builder: _Builder) -> int:
    first, last = _build(item, builder)
    loop = builder.new()
    for here, there in ((end, loop), (loop, first), (last, loop)):
        builder.link(here, there)
    after = builder.new()
    builder.link(loop, after)
    return after


def _at_most(item: _Node, times: int, end: int, builder: _Builder) -> int:
    after = builder.new()
    builder.link(end, after)
    for _ in range(times):
        first, end_of = _build(item, builder)
        builder.link(end, first)
        builder.link(end_of, after)
        end = end_of
    return after
