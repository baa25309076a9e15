"""Frozen dataclasses that share their comparison are compared, hashed and printed as `dataclass` itself has it."""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass, field, is_dataclass, make_dataclass
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.values import Value
from headrace.controller.asks import access, brokers, history, moves, replicas, topics
from headrace.metadata import events
from headrace.raft import events as raft_events
from headrace.raft import messages


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Many(Value):
    a: object
    b: object = None
    secret: object = field(default=None, repr=False)
    noted: object = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class One(Value):
    a: object


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Nothing(Value):
    pass


def twin(kind: type[Any]) -> type[Any]:
    """The class, as `dataclass` makes it."""
    own = [(each.name, Any, field(default=each.default, repr=each.repr, compare=each.compare)) for each in parts(kind)]
    return make_dataclass(kind.__name__, own, frozen=True, slots=True, kw_only=True)


def parts(kind: type[Any]) -> list[Any]:
    return list(kind.__dataclass_fields__.values())


VALUES = st.one_of(st.none(), st.integers(-2, 2), st.floats(), st.text(max_size=2), st.tuples(st.integers(0, 1)))


@given(st.sampled_from([Many, One, Nothing]), st.data())
def test_two_are_equal_and_look_as_those_of_dataclass(kind: type[Any], data: st.DataObject) -> None:
    theirs = twin(kind)
    values = [{each.name: data.draw(VALUES) for each in parts(kind)} for _ in range(2)]
    ours, others = [kind(**each) for each in values], [theirs(**each) for each in values]
    assert (ours[0] == ours[1]) == (others[0] == others[1])
    assert (ours[0] == copy.copy(ours[0])) == (others[0] == copy.copy(others[0]))
    assert [hash(each) for each in ours] == [hash(each) for each in others]
    assert [repr(each) for each in ours] == [repr(each).replace(theirs.__qualname__, kind.__name__) for each in others]


def test_those_of_two_classes_are_never_equal_and_no_field_is_set() -> None:
    @dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
    class Other(One):
        pass

    assert One(a=1) != Other(a=1)
    assert One(a=1) != (1,)
    assert pickle.loads(pickle.dumps(One(a=(1, 2)))) == One(a=(1, 2))
    with pytest.raises(AttributeError):
        One(a=1).a = 2  # type: ignore[misc]


@pytest.mark.parametrize("module", [access, brokers, events, history, messages, moves, raft_events, replicas, topics])
def test_all_classes_of_a_module_share_it(module: ModuleType) -> None:
    """One that is declared without `eq=False` costs its module what the others save."""
    found = [each for each in vars(module).values() if isinstance(each, type) and each.__module__ == module.__name__]
    own = [each for each in found if is_dataclass(each)]
    assert len(own) > 2
    for each in own:
        assert issubclass(each, Value), each
        assert not {"__eq__", "__hash__", "__repr__"} & vars(each).keys(), each
