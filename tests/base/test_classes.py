"""The dataclasses of `headrace.base.classes` beside those of the standard library: the same classes, made twice."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from typing import Any, ClassVar, Final

import pytest

from headrace.base import classes

Decorate = Callable[..., Callable[[type], Any]]
FORMS: Final = [
    dict(zip(("frozen", "slots", "kw_only"), (bool(form & 1), bool(form & 2), bool(form & 4)), strict=True))
    for form in range(8)
]


def made(decorate: Any, **form: bool) -> Any:
    @decorate(**form)
    class Point:
        KIND: ClassVar[str] = "point"
        x: int
        y: int = 2
        tags: list[str] = dataclasses.field(default_factory=list)
        secret: str = dataclasses.field(default="hush", repr=False)
        note: str = dataclasses.field(default="", compare=False)
        double: int = dataclasses.field(init=False)

        def __post_init__(self) -> None:
            assert self.x != 13, "the unlucky one"
            object.__setattr__(self, "double", 2 * self.x)

        @property
        def sum(self) -> int:
            return self.x + self.y

    return Point


def outcome(work: Callable[..., object], *arguments: Any, **named: Any) -> object:
    try:
        return work(*arguments, **named)
    except Exception as error:
        return type(error), str(error)


def shown(kind: Any, *arguments: Any, **named: Any) -> str:
    return repr(kind(*arguments, **named))


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_instances_are_as_the_standard_librarys(form: dict[str, bool]) -> None:
    ours, theirs = made(classes.dataclass, **form), made(dataclasses.dataclass, **form)
    for arguments in (
        {"x": 1},
        {"x": 1, "y": 5, "tags": ["a"]},
        {"x": 1, "note": "other", "secret": "s"},
        {},
        {"x": 13},
        {"x": 1, "z": 2},
    ):
        assert outcome(shown, ours, **arguments) == outcome(shown, theirs, **arguments)
    assert outcome(shown, ours, 1, 2, ["b"]) == outcome(shown, theirs, 1, 2, ["b"])
    for kind in (ours, theirs):
        one = kind(x=1)
        assert one == kind(x=1, note="not compared")
        assert one != kind(x=2)
        assert one != (1, 2, [], "hush")
        assert one.tags is not kind(x=1).tags
        assert dataclasses.replace(one, y=7).sum == 8
        assert copy.copy(one) == copy.deepcopy(one) == one
        assert dataclasses.asdict(one) == {"x": 1, "y": 2, "tags": [], "secret": "hush", "note": "", "double": 2}
    assert [each.name for each in dataclasses.fields(ours)] == [each.name for each in dataclasses.fields(theirs)]
    assert getattr(ours, "__slots__", None) == getattr(theirs, "__slots__", None)
    assert ours.__match_args__ == theirs.__match_args__


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_what_is_frozen_refuses_changes_and_is_hashed(form: dict[str, bool]) -> None:
    ours, theirs = made(classes.dataclass, **form), made(dataclasses.dataclass, **form)
    assert outcome(setattr, ours(x=1), "x", 3) == outcome(setattr, theirs(x=1), "x", 3)
    assert outcome(delattr, ours(x=1), "x") == outcome(delattr, theirs(x=1), "x")
    if form["frozen"]:
        with pytest.raises(dataclasses.FrozenInstanceError):
            ours(x=1).other = 3
    assert outcome(hash, ours(x=1, tags=(1,))) == outcome(hash, theirs(x=1, tags=(1,)))


@classes.dataclass(frozen=True, slots=True)
class Pair:
    a: int
    b: tuple[int, ...] = ()


@classes.dataclass(frozen=True, slots=True)
class One:
    a: int


@classes.dataclass(slots=True, eq=False)
class Thing:
    a: int = 0


def test_frozen_slots_are_pickled() -> None:
    assert pickle.loads(pickle.dumps(Pair(1, (2,)))) == Pair(1, (2,))


def test_a_single_field_and_identity() -> None:
    assert hash(One(3)) == hash((3,))
    assert {One(3): 1}[One(3)] == 1
    assert Thing() != Thing()
    assert len({Thing(), Thing()}) == 2


def test_methods_of_the_class_itself_stay() -> None:
    @classes.dataclass(frozen=True, slots=True)
    class Own:
        a: int

        def __repr__(self) -> str:
            return "mine"

        def __hash__(self) -> int:
            return 7

    assert (repr(Own(1)), hash(Own(1))) == ("mine", 7)


def test_init_is_written_when_the_first_instance_is_made() -> None:
    @classes.dataclass(frozen=True, slots=True)
    class Late:
        a: int

    first = Late.__init__
    Late(1)
    real = Late.__init__
    assert real is not first
    Late(2)
    assert Late.__init__ is real
