"""Options are checked by name, ranges are never shortened, and tasks are even."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.base.errors import UsageError
from headrace.spark.plan import OPTIONS, TaskPlan, parse_options, plan_read
from headrace.storage.tier.reader import Store


def plan(built: Any, **options: str) -> list[TaskPlan]:
    parsed = parse_options({"store": built.url, "topic": "orders", **options})
    return plan_read(parsed, Store.open(parsed.store))


def ranges(tasks: list[TaskPlan]) -> list[tuple[int, int, int]]:
    return [(task.partition, task.slices[0].first_offset, task.slices[-1].next_offset) for task in tasks]


def test_by_default_all_of_every_partition_is_read_small_segments_together(store: Any) -> None:
    assert ranges(plan(store)) == [(0, 0, 400), (1, 0, 200)]
    assert [len(task.slices) for task in plan(store)] == [2, 1]


def test_small_slices_make_tasks_that_cover_the_range_once(store: Any) -> None:
    tasks = plan(store, sliceBytes="2000")
    assert len(tasks) > 2
    for partition, end in ((0, 400), (1, 200)):
        found = [(start, stop) for index, start, stop in ranges(tasks) if index == partition]
        assert [start for start, _ in found] == [0, *(stop for _, stop in found[:-1])]
        assert found[-1][1] == end


def test_offsets_are_taken_per_partition_with_the_ends_for_the_rest(store: Any) -> None:
    starting, ending = '{"orders": {"0": 250, "1": -2}}', '{"orders": {"0": 390, "1": -1, "2": 0}}'
    assert ranges(plan(store, startingOffsets=starting, endingOffsets=ending)) == [(0, 250, 390), (1, 0, 200)]
    assert ranges(plan(store, startingOffsets='{"orders": {"0": 400, "1": 200}}')) == []
    assert [task.topic for task in plan(store, topic="orders, flights,")] == ["orders"] * 2 + ["flights"] * 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"store": ""}, "Option store is missing"),
        ({"topic": " "}, "Option topic is missing"),
        ({"topic": "nothing"}, "holds no topic 'nothing'"),
        ({"startingOfsets": "earliest"}, "no option 'startingofsets'"),
        ({"startingOffsets": "latest"}, "Option startingOffsets must be earliest or"),
        ({"startingOffsets": '{"orders": {"0": -1}}'}, "Option startingOffsets must be"),
        ({"endingOffsets": '{"orders": {"0": -2}}'}, "Option endingOffsets must be"),
        ({"endingOffsets": '{"orders": [1]}'}, "Option endingOffsets must be"),
        ({"endingOffsets": '{"orders": {"x": 1}}'}, "Option endingOffsets must be"),
        ({"endingOffsets": "[]"}, "Option endingOffsets must be"),
        ({"endingOffsets": '{"flights": {"0": 1}}'}, "names topic 'flights', which option topic does not"),
        ({"endingOffsets": '{"orders": {"3": 1}}'}, "there is no 3"),
        ({"endingOffsets": '{"orders": {"0": 401}}'}, r"Offsets 0 to 401 .*partition 0.* holds 0 to 400"),
        ({"startingOffsets": '{"orders": {"1": 201}}'}, r"Offsets 201 to 200 .*partition 1"),
        ({"includeHeaders": "yes"}, "Option includeHeaders must be true or false"),
        ({"columns": "key,nothing"}, "Option columns names 'nothing'"),
        ({"sliceBytes": "0"}, "Option sliceBytes must be a positive number"),
    ],
)
def test_a_wrong_option_is_named(store: Any, options: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        plan(store, **options)


def test_option_names_are_taken_in_any_case_and_a_path_is_a_store() -> None:
    parsed = parse_options({"PATH": "/a", "Topic": "t", "INCLUDEHEADERS": "True", "slicebytes": "5"})
    assert (parsed.store, parsed.topics, parsed.slice_bytes) == ("/a", ("t",), 5)
    assert "headers" in parsed.columns
    assert len(OPTIONS) == 7
