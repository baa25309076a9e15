"""Cycles in a graph of transactions that depend on each other, as Elle finds them (Kingsbury and Alvaro, 2020).

An edge says that one transaction comes before the other, and why. Where every edge is a promise, a cycle breaks one.
Strongly connected components are found by Tarjan's algorithm, without recursion, and one short cycle is told of each.
The names are Adya's: G0 has writes alone, G1c also reads of what was written, and with one `rw` it is G-single.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Generic, NamedTuple, TypeVar

Node = TypeVar("Node", bound=Hashable)


class Why(StrEnum):
    WROTE_AFTER = "ww"
    """The second one wrote the next version."""
    READ_FROM = "wr"
    """The second one read what the first one wrote."""
    READ_BEFORE = "rw"
    """The second one wrote the version that follows the one that the first one read."""
    IN_TIME = "time"
    """The first one had ended before the second one began."""


class Step(NamedTuple, Generic[Node]):
    """An edge of a cycle."""

    before: Node
    why: Why
    after: Node


class Graph(Generic[Node]):
    """The graph. Two nodes may depend on each other for several reasons."""

    def __init__(self) -> None:
        self._edges: dict[Node, dict[Node, set[Why]]] = {}

    def add(self, before: Node, why: Why, after: Node) -> None:
        """Add an edge. A node does not depend on itself."""
        if before != after:
            self._edges.setdefault(before, {}).setdefault(after, set()).add(why)
            self._edges.setdefault(after, {})

    def cycles(self) -> Iterator[list[Step[Node]]]:
        """One short cycle of each strongly connected component, the gravest reasons first."""
        for component in components(self._edges):
            if len(component) > 1:
                yield self._cycle_in(component)

    def _cycle_in(self, component: frozenset[Node]) -> list[Step[Node]]:
        first = next(node for node in self._edges if node in component)
        path = [first, *_way_back(self._edges, component, first)]
        return [
            Step(one, min(self._edges[one][other], key=list(Why).index), other)
            for one, other in itertools.pairwise(path)
        ]


def _way_back(edges: Mapping[Node, Iterable[Node]], within: frozenset[Node], first: Node) -> list[Node]:
    """The shortest way from a node to itself, without its start."""
    came_from: dict[Node, Node] = {}
    waiting = deque([first])
    while first not in came_from:
        node = waiting.popleft()
        for after in edges[node]:
            if after in within and after not in came_from:
                came_from[after] = node
                waiting.append(after)
    way = [first]
    while came_from[way[-1]] != first:
        way.append(came_from[way[-1]])
    return way[::-1]


def name_of(cycle: Iterable[Step[Node]]) -> str:
    """Adya's name of a cycle; with `-realtime` where it takes the order in time to close it."""
    reasons = [step.why for step in cycle]
    if reasons.count(Why.READ_BEFORE) > 1:
        name = "G2-item"
    elif Why.READ_BEFORE in reasons:
        name = "G-single"
    else:
        name = "G1c" if Why.READ_FROM in reasons else "G0"
    return f"{name}-realtime" if Why.IN_TIME in reasons else name


def components(edges: Mapping[Node, Iterable[Node]]) -> Iterator[frozenset[Node]]:
    """The strongly connected components (Tarjan, 1972). Every node has to be a key of `edges`."""
    index: dict[Node, int] = {}
    lowest: dict[Node, int] = {}
    stack: list[Node] = []
    on_stack: set[Node] = set()
    for root in edges:
        if root in index:
            continue
        work = [(root, iter(edges[root]))]
        index[root] = lowest[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, rest = work[-1]
            after = next(rest, None)
            if after is None:
                work.pop()
                if work:
                    lowest[work[-1][0]] = min(lowest[work[-1][0]], lowest[node])
                if lowest[node] == index[node]:
                    yield _popped(stack, on_stack, node)
            elif after not in index:
                index[after] = lowest[after] = len(index)
                stack.append(after)
                on_stack.add(after)
                work.append((after, iter(edges[after])))
            elif after in on_stack:
                lowest[node] = min(lowest[node], index[after])


def _popped(stack: list[Node], on_stack: set[Node], node: Node) -> frozenset[Node]:
    found = set[Node]()
    while node not in found:
        found.add(stack.pop())
    on_stack -= found
    return frozenset(found)
