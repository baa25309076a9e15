"""Regular expressions over topic names, parsed to a tree: RE2's syntax, as in Kafka's SubscribedTopicRegex.

Names consist of 65 characters, so a class, a dot or an escape is a set of these. Missing, and refused: \\b and \\B,
Unicode classes by name, and flags other than i and s. Like RE2 itself, it has no back references and no look-around.
"""

from __future__ import annotations

import string
from dataclasses import dataclass
from typing import Final

from headrace.base.limits import GROUP_PATTERN_CHARS_MAX, GROUP_PATTERN_DEPTH_MAX

ALPHABET: Final = frozenset(string.ascii_letters + string.digits + "._-")
"""The characters of topic names."""
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
"""The highest count of a repetition, as in RE2."""

Names = frozenset[str]


class PatternError(ValueError):
    """The text is not an expression, or the expression is too large."""


@dataclass(frozen=True, slots=True)
class Chars:
    names: Names


@dataclass(frozen=True, slots=True)
class Anchor:
    at: str
    """`^` or `$`."""


@dataclass(frozen=True, slots=True)
class Row:
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    item: Node
    low: int
    high: int | None


Node = Chars | Anchor | Row | Choice | Repeat


def parse(text: str) -> Node:
    """Parse a text. Raises PatternError where it is no expression, or exceeds the limits on length or nesting."""
    return _Parser(text).whole()


class _Parser:
    """Recursive descent over the text."""

    def __init__(self, text: str) -> None:
        if len(text) > GROUP_PATTERN_CHARS_MAX:
            raise PatternError(f"the expression is longer than {GROUP_PATTERN_CHARS_MAX} characters")
        self._text = text
        self._at = 0
        self._depth = 0
        self._any_case = False

    def whole(self) -> Node:
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

    def _choice(self) -> Node:
        self._depth += 1
        if self._depth > GROUP_PATTERN_DEPTH_MAX:
            raise PatternError("the expression is nested too deeply")
        any_case = self._any_case
        items = [self._row()]
        while self._take("|"):
            items.append(self._row())
        self._any_case = any_case
        self._depth -= 1
        return items[0] if len(items) == 1 else Choice(tuple(items))

    def _row(self) -> Node:
        items: list[Node] = []
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
        return Row(tuple(items))

    def _repeated(self, node: Node) -> Node:
        bounds = self._bounds()
        if bounds is None:
            return node
        self._take("?")  # lazy matching does not change what matches
        if self._bounds() is not None:
            raise PatternError("a repetition of a repetition")
        return Repeat(node, *bounds)

    def _bounds(self) -> tuple[int, int | None] | None:
        for sign, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(sign):
                return bounds
        end = self._text.find("}", self._at)
        if not self._peek("{") or end < 0:
            return None
        low, comma, high = self._text[self._at + 1 : end].partition(",")
        if not _is_count(low) or (high and not _is_count(high)):
            return None  # a brace without a count is an ordinary character
        self._at = end + 1
        least = int(low)
        most = least if not comma else (int(high) if high else None)
        if max(least, most or 0) > REPEATS_MAX or (most is not None and most < least):
            raise PatternError("a repetition cannot be so often")
        return least, most

    def _atom(self) -> Node | None:
        """Parse an atom; None: it matches nothing itself (flags)."""
        char = self._next()
        match char:
            case "(":
                return self._group()
            case "[":
                return Chars(self._class())
            case ".":
                return Chars(ALPHABET)
            case "^" | "$":
                return Anchor(char)
            case "*" | "+" | "?":
                raise PatternError("a repetition of nothing")
            case "\\":
                return self._escape()
            case _:
                return self._literal(char)

    def _literal(self, char: str) -> Chars:
        return Chars(self._cased({char}))

    def _cased(self, chars: set[str] | Names) -> Names:
        wanted = {each for char in chars for each in (char.lower(), char.upper())} if self._any_case else chars
        return ALPHABET & wanted

    def _group(self) -> Node | None:
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

    def _inner(self) -> Node:
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

    def _escape(self) -> Node:
        char = self._next()
        if char in "Az":
            return Anchor("^" if char == "A" else "$")
        chars = self._escaped(char)
        return Chars(chars) if isinstance(chars, frozenset) else self._literal(chars)

    def _escaped(self, char: str) -> Names | str:
        """Parse an escape to a class, or a character."""
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
