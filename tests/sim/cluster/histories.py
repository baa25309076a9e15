"""Concurrent histories of a catalogue of topics, made at random: of one that is sound, and of some that are not.

Only `Random.random` is drawn from, whose sequence every Python keeps, so that a number stands for a history.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headrace.sim.cluster.catalog import (
    Action,
    Answer,
    Catalog,
    Configure,
    Create,
    Delete,
    Describe,
    Done,
    Exists,
    Found,
    List,
    Missing,
    Names,
    Topics,
)
from headrace.sim.cluster.linear import Operation

NAMES = ("a", "b", "c")
SHARE_BROKEN = 0.75
SHARE_LOST = 0.08


@dataclass(slots=True)
class _Asked:
    action: Action
    called: int
    answer: Answer | None = None


class Author:
    """One history. Each step something happens to one client: it asks, the catalogue acts, or it hears the answer."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.names = NAMES[: 1 + self.below(len(NAMES))]
        self.lists = self.chance(0.4)
        self.clients: list[_Asked | None] = [None] * (2 + self.below(5))
        self.lost: list[_Asked] = []
        """Whose client went away: the catalogue may act yet."""
        self.states: list[Topics] = [Catalog().first()]
        self.operations: list[Operation] = []
        self.now = 0
        self.tags = 0
        self.fault = self.chance(SHARE_BROKEN)

    def below(self, count: int) -> int:
        return int(self.random.random() * count)

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def write(self, count: int) -> list[Operation]:
        while self.now < 4 * count:
            self.now += 1
            self.step(self.below(len(self.clients)), may_ask=self.now < 3 * count)
        for number, asked in enumerate(self.clients):
            if asked is not None:
                self.operations.append(Operation(f"client-{number}", asked.action, asked.called))
        return self.operations

    def step(self, number: int, *, may_ask: bool) -> None:
        if self.lost and self.chance(0.2):
            self.act(self.lost.pop(self.below(len(self.lost))))
        asked = self.clients[number]
        if asked is None:
            if may_ask:
                self.clients[number] = _Asked(self.action(), self.now)
        elif self.chance(SHARE_LOST):
            self.operations.append(Operation(f"client-{number}", asked.action, asked.called))
            self.clients[number] = None
            if asked.answer is None and self.chance(0.7):
                self.lost.append(asked)
        elif asked.answer is None:
            self.act(asked)
        else:
            self.operations.append(Operation(f"client-{number}", asked.action, asked.called, asked.answer, self.now))
            self.clients[number] = None

    def action(self) -> Action:
        self.tags += 1
        name = self.names[self.below(len(self.names))]
        roll = self.random.random()
        if roll < 0.3:
            return Create(name, self.tags)
        if roll < 0.45:
            return Delete(name)
        if roll < 0.6:
            return Configure(name, self.tags)
        return List() if self.lists and roll < 0.7 else Describe(name)

    def act(self, asked: _Asked) -> None:
        """At one moment; or as a broken catalogue does."""
        state, model = self.states[-1], Catalog()
        is_read = isinstance(asked.action, Describe | List)
        if self.fault and self.chance(0.35):
            if is_read and len(self.states) > 1:  # an old state is shown
                state = self.states[-1 - self.below(min(4, len(self.states)))]
            elif not is_read:  # it is acknowledged and forgotten
                _, asked.answer = model.do(state, asked.action)
                return
        after, asked.answer = model.do(state, asked.action)
        if not is_read:
            self.states.append(after)


def history(seed: int) -> list[Operation]:
    author = Author(seed)
    return author.write(4 + author.below(20))


def as_data(operations: Sequence[Operation]) -> list[dict[str, Any]]:
    """For JSON; moments are made ranks, so that a reader needs no rule for equal ones."""
    moments = [(each.called, 0, at) for at, each in enumerate(operations)]
    moments += [(each.returned, 1, at) for at, each in enumerate(operations) if each.returned is not None]
    ranks = {(at, kind): rank for rank, (_, kind, at) in enumerate(sorted(moments))}
    return [
        {
            "client": each.client,
            "called": ranks[at, 0],
            "returned": ranks.get((at, 1)),
            "action": _action(each.action),
            "answer": None if each.returned is None else _answer(each.answer),
        }
        for at, each in enumerate(operations)
    ]


def _action(action: Action) -> dict[str, Any]:
    match action:
        case Create(name=name, tag=tag):
            return {"kind": "create", "name": name, "value": tag}
        case Delete(name=name):
            return {"kind": "delete", "name": name, "value": 0}
        case Configure(name=name, setting=setting):
            return {"kind": "configure", "name": name, "value": setting}
        case Describe(name=name):
            return {"kind": "describe", "name": name, "value": 0}
        case _:
            assert isinstance(action, List)
            return {"kind": "list", "name": "", "value": 0}


def _answer(answer: Answer) -> str:
    match answer:
        case Done():
            return "done"
        case Exists():
            return "exists"
        case Missing():
            return "missing"
        case Found(tag=tag, setting=setting):
            return f"found {tag} {0 if setting is None else setting}"
        case _:
            assert isinstance(answer, Names)
            return " ".join(["names", *sorted(answer.names)])


def as_text(operations: Sequence[Operation]) -> str:
    return json.dumps(as_data(operations), separators=(",", ":"))
