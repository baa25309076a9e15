"""A catalogue of topics as one client would see it: the model that the cluster's metadata is judged by.

A topic is its name, the tag that its creation gave it (unique in a history, so that a topic made anew is another) and
one setting that is changed afterwards. Pure.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, TypeAlias

import immutables


@dataclass(frozen=True, slots=True)
class Create:
    name: str
    tag: int


@dataclass(frozen=True, slots=True)
class Delete:
    name: str


@dataclass(frozen=True, slots=True)
class Configure:
    name: str
    setting: int


@dataclass(frozen=True, slots=True)
class Describe:
    name: str


@dataclass(frozen=True, slots=True)
class List:
    """The names of all topics."""


Action: TypeAlias = Create | Delete | Configure | Describe | List


@dataclass(frozen=True, slots=True)
class Done:
    """It was carried out."""


@dataclass(frozen=True, slots=True)
class Exists:
    """Refused: there is such a topic."""


@dataclass(frozen=True, slots=True)
class Missing:
    """Refused, or seen: there is no such topic."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a topic is. `setting` None: never changed."""

    tag: int
    setting: int | None


@dataclass(frozen=True, slots=True)
class Names:
    names: frozenset[str]


Answer: TypeAlias = Done | Exists | Missing | Found | Names
Topics: TypeAlias = "immutables.Map[str, Found]"


class Catalog:
    """`linear.Model` of the topics of a cluster."""

    def first(self) -> Topics:
        return immutables.Map()

    def step(self, state: Topics, action: Any, answer: Any) -> Topics | None:
        after, right = self.do(state, action)
        return after if answer is None or answer == right else None

    def do(self, state: Topics, action: Action) -> tuple[Topics, Answer]:
        """The state after it, and what it is told."""
        if isinstance(action, List):
            return state, Names(frozenset(state))
        found = state.get(action.name)
        match action:
            case Create(name=name, tag=tag):
                return (state, Exists()) if found else (state.set(name, Found(tag, None)), Done())
            case Describe():
                return state, found or Missing()
            case _ if found is None:
                return state, Missing()
            case Delete(name=name):
                return state.delete(name), Done()
            case Configure(name=name, setting=setting):
                return state.set(name, Found(found.tag, setting)), Done()


def topic_of(action: Action) -> Hashable:
    """The part that an action concerns, for `linear.judge_apart`. Not for a List, which concerns all."""
    assert not isinstance(action, List), "a list of all topics is no question about one"
    return action.name
