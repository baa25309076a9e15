"""A catalog of topics as one client would see it: the model against which the cluster's metadata is judged. Pure.

A topic is its name, the tag from its creation, and one setting that changes later. The tag is unique in a history, so a
topic that is created again is another one.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import immutables

from headrace.sim.cluster.linear import Operation


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
    """List the names of all topics."""


@dataclass(frozen=True, slots=True)
class Mention:
    """Whether a list of all topics has this one: the question of a `List`, for one topic alone."""

    name: str


Action: TypeAlias = Create | Delete | Configure | Describe | List | Mention


@dataclass(frozen=True, slots=True)
class Done:
    """The action was carried out."""


@dataclass(frozen=True, slots=True)
class Exists:
    """Refused: the topic exists."""


@dataclass(frozen=True, slots=True)
class Missing:
    """Refused, or seen: the topic does not exist."""


@dataclass(frozen=True, slots=True)
class Found:
    """The state of a topic. `setting` None: never changed."""

    tag: int
    setting: int | None


@dataclass(frozen=True, slots=True, repr=False)
class Names:
    names: frozenset[str]

    def __repr__(self) -> str:
        return f"Names({', '.join(sorted(self.names))})"  # a set has another order in each process


@dataclass(frozen=True, slots=True)
class Mentioned:
    yes: bool


Answer: TypeAlias = Done | Exists | Missing | Found | Names | Mentioned
Topics: TypeAlias = "immutables.Map[str, Found]"


class Catalog:
    """`linear.Model` of the topics of a cluster."""

    def first(self) -> Topics:
        return immutables.Map()

    def step(self, state: Topics, action: Any, answer: Any) -> Topics | None:
        after, right = self.do(state, action)
        return after if answer is None or answer == right else None

    def do(self, state: Topics, action: Action) -> tuple[Topics, Answer]:
        """The state after the action, and its answer."""
        if isinstance(action, List):
            return state, Names(frozenset(state))
        found = state.get(action.name)
        match action:
            case Create(name=name, tag=tag):
                return (state, Exists()) if found else (state.set(name, Found(tag, None)), Done())
            case Describe():
                return state, found or Missing()
            case Mention():
                return state, Mentioned(found is not None)
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


def relevant(operations: Iterable[Operation]) -> list[Operation]:
    """The operations without setting changes of unknown outcome whose value nobody saw. An order that contains one of
    them is valid without it, too."""
    operations = list(operations)
    seen = {each.answer.setting for each in operations if isinstance(each.answer, Found)}
    return [
        each
        for each in operations
        if each.returned is not None or not isinstance(each.action, Configure) or each.action.setting in seen
    ]


def by_topic(operations: Iterable[Operation]) -> Iterator[Operation]:
    """The operations, with each list of all topics split into a mention of every single topic. If the list is right, so
    are its mentions, and these can be judged topic by topic."""
    operations = list(operations)
    names = sorted({each.action.name for each in operations if not isinstance(each.action, List)})
    for each in operations:
        if not isinstance(each.action, List):
            yield each
        elif isinstance(each.answer, Names):
            for name in names:
                yield replace(each, action=Mention(name), answer=Mentioned(name in each.answer.names))
