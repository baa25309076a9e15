"""The graph of a history's transactions: who read from whom, who overwrote whom, and who ended before whom began.

Only edges that Kafka promises are in it. Concurrent transactions may be mixed in a partition, and a reader may see one
before another. So writes of a partition count only where they oppose the order in time. Offsets of a group are versions
of a register: each was read, and then replaced.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from headrace.sim.cluster.transactions.graph import Graph, Step, Why, name_of
from headrace.sim.cluster.transactions.history import (
    Contents,
    History,
    Outcome,
    Partition,
    Register,
    Taken,
    Transaction,
)
from headrace.sim.history import Problem


def cycles(history: History, contents: Contents) -> Iterator[Problem]:
    """One problem for each group of transactions of which none can be first."""
    by_number = {each.number: each for each in history.transactions}
    for cycle in graph_of(history, contents).cycles():
        yield Problem(name_of(cycle), _in_words(cycle, by_number))


def _in_words(cycle: list[Step[int]], by_number: Mapping[int, Transaction]) -> str:
    steps = "; ".join(f"{step.before} -{step.why.value}-> {step.after}" for step in cycle)
    return f"{steps}, where {cycle[0].before} is {by_number[cycle[0].before]}"


def graph_of(history: History, contents: Contents) -> Graph[int]:
    """The graph over the numbers of the transactions that took effect."""
    writers = {write.value: each for each in history.transactions for write in each.writes}
    seen = {record.value for records in contents.values() for record in records}
    done = [each for each in history.transactions if _took_effect(each, seen)]
    graph = Graph[int]()
    for before, after in in_time(done):
        graph.add(before, Why.IN_TIME, after)
    for partition, records in contents.items():
        _add_late_writes(graph, [writers[each.value] for each in records if each.value in writers])
        _add_reads(graph, partition, {each.offset: writers.get(each.value) for each in records}, done)
    registers: dict[Register, list[tuple[Taken, int]]] = defaultdict(list)
    for each in done:
        if each.taken is not None:
            registers[each.taken.register].append((each.taken, each.number))
    for takers in registers.values():
        _add_register(graph, takers)
    return graph


def _took_effect(transaction: Transaction, seen: set[bytes]) -> bool:
    return transaction.outcome is Outcome.COMMITTED or any(write.value in seen for write in transaction.writes)


def over_by(transaction: Transaction) -> int | None:
    """A moment by which it had ended, whatever its outcome; None: none is known."""
    known = [moment for moment in (transaction.ended, transaction.fenced) if moment is not None]
    return min(known, default=None)


def in_time(transactions: Iterable[Transaction]) -> Iterator[tuple[int, int]]:
    """Pairs of transactions of which the first had ended before the second began, without those that follow from
    others."""
    events: list[tuple[int, bool, int]] = []
    for each in transactions:
        events.append((each.began, True, each.number))
        over = over_by(each)
        if over is not None:
            events.append((over, False, each.number))
    before: dict[int, frozenset[int]] = {}
    newest: frozenset[int] = frozenset()
    for _, begins, number in sorted(events):
        if begins:
            before[number] = newest
            yield from ((each, number) for each in newest)
        elif number in before:
            newest = (newest - before[number]) | {number}


def _add_late_writes(graph: Graph[int], writers: Iterable[Transaction]) -> None:
    """`writers` of one partition, record by record. None may come behind one that began after its end."""
    youngest: Transaction | None = None
    for each in writers:
        over = over_by(each)
        if youngest is not None and over is not None and over < youngest.began:
            graph.add(youngest.number, Why.WROTE_AFTER, each.number)
        if youngest is None or each.began > youngest.began:
            youngest = each


def _add_reads(
    graph: Graph[int], partition: Partition, writers: Mapping[int, Transaction | None], done: Iterable[Transaction]
) -> None:
    for each in done:
        if each.taken is not None and each.taken.register.partition == partition:
            for writer in map(writers.get, each.taken.offsets):
                if writer is not None:
                    graph.add(writer.number, Why.READ_FROM, each.number)


def _add_register(graph: Graph[int], takers: list[tuple[Taken, int]]) -> None:
    """Offsets rise, so that they are in the order of their versions."""
    in_order = sorted(takers, key=lambda taker: (taker[0].end, taker[1]))
    for (_, before), (_, after) in itertools.pairwise(in_order):
        graph.add(before, Why.WROTE_AFTER, after)
    for taken, number in in_order:
        for other, writer in in_order:
            if other.end == taken.start:
                graph.add(writer, Why.READ_FROM, number)
        replaced = next((writer for other, writer in in_order if other.end > taken.start and writer != number), None)
        if replaced is not None:
            graph.add(number, Why.READ_BEFORE, replaced)
