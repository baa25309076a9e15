"""Strongly connected components, cycles and their names, on graphs made by hand and against a plain twin."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.sim.cluster.transactions.graph import Graph, Why, components, name_of
from tests.tiers import examples

WW, WR, RW, TIME = Why.WROTE_AFTER, Why.READ_FROM, Why.READ_BEFORE, Why.IN_TIME


def graph(*edges: tuple[str, Why, str]) -> Graph[str]:
    made = Graph[str]()
    for edge in edges:
        made.add(*edge)
    return made


@pytest.mark.parametrize(
    ("edges", "name"),
    [
        ([("a", WW, "b"), ("b", WW, "a")], "G0"),
        ([("a", WW, "b"), ("b", WR, "a")], "G1c"),
        ([("a", WR, "b"), ("b", WR, "c"), ("c", WR, "a")], "G1c"),
        ([("a", WW, "b"), ("b", RW, "a")], "G-single"),
        ([("a", RW, "b"), ("b", RW, "a")], "G2-item"),
        ([("a", WW, "b"), ("b", TIME, "a")], "G0-realtime"),
        ([("a", RW, "b"), ("b", TIME, "a")], "G-single-realtime"),
    ],
)
def test_a_cycle_has_the_name_of_what_closes_it(edges: list[tuple[str, Why, str]], name: str) -> None:
    (cycle,) = graph(*edges).cycles()
    assert [step.before for step in cycle] == [
        *[step.after for step in cycle[-1:]],
        *[step.after for step in cycle[:-1]],
    ]
    assert {(step.before, step.why, step.after) for step in cycle} == set(edges)
    assert name_of(cycle) == name


def test_what_has_an_order_has_no_cycle() -> None:
    assert not list(graph(("a", WW, "b"), ("b", RW, "c"), ("a", WR, "c"), ("a", WW, "a")).cycles())


def test_each_component_tells_one_short_cycle() -> None:
    long_way = [("a", WW, "b"), ("b", WW, "c"), ("c", WW, "a"), ("b", WR, "a")]
    other = [("x", RW, "y"), ("y", WW, "x"), ("c", WW, "x")]
    assert sorted(len(cycle) for cycle in graph(*long_way, *other).cycles()) == [2, 2]


def reached(edges: dict[int, set[int]], start: int) -> set[int]:
    found, waiting = set[int](), [start]
    while waiting:
        for after in edges[waiting.pop()] - found:
            found.add(after)
            waiting.append(after)
    return found


@settings(max_examples=examples(200))
@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=20))
def test_components_are_the_nodes_that_reach_each_other(pairs: list[tuple[int, int]]) -> None:
    edges: dict[int, set[int]] = {node: set() for node in range(8)}
    for before, after in pairs:
        edges[before].add(after)
    reach = {node: reached(edges, node) | {node} for node in edges}
    expected = {frozenset(other for other in reach[node] if node in reach[other]) for node in edges}
    found = list(components(edges))
    assert set(found) == expected
    assert len(found) == len(expected)


def test_a_long_chain_needs_no_recursion() -> None:
    edges = {node: [node + 1] for node in range(5_000)} | {5_000: [0]}
    assert [len(each) for each in components(edges)] == [5_001]
