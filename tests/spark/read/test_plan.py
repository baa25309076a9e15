"""Options are checked by name, ranges are never shortened, and tasks are even in bytes and hold each offset once."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Any

import pytest

from headrace.base.errors import UsageError
from headrace.spark import options as option_values
from headrace.spark.options import OPTIONS, parse_options
from headrace.spark.read import plan as plans
from headrace.spark.read.extent import Sources
from headrace.spark.read.plan import StorePart, Task, plan_tasks
from headrace.storage.tier.reader import Store
from headrace.wire.batches import encode_batch
from headrace.wire.records import Record
from tests.spark.conftest import StoreBuilder


def plan(built: Any, **options: str) -> list[Task]:
    chosen = {} if {"topicPattern", "assign"} & set(options) else {"topic": "orders"}
    sources = Sources(parse_options({"store": built.url, **chosen, **options}, streaming=False))
    return plan_tasks(sources, sources.ranges())


def ranges(tasks: list[Task]) -> list[tuple[str, int, int, int]]:
    """Neighbours within a task together."""
    found: list[tuple[str, int, int, int]] = []
    for task in tasks:
        begun = len(found)
        for part in task.parts:
            key = (part.place.topic, part.place.partition)
            if len(found) > begun and found[-1][:2] == key and found[-1][3] == part.start:
                found[-1] = (*key, found[-1][2], part.end)
            else:
                found.append((*key, part.start, part.end))
    return found


def test_by_default_all_of_every_partition_is_read_and_what_is_small_is_one_task(store: Any) -> None:
    tasks = plan(store)
    assert len(tasks) == 1
    assert ranges(tasks) == [("orders", 0, 0, 400), ("orders", 1, 0, 200)]


@pytest.mark.parametrize("size", ["500", "2000", "3000"])
def test_small_tasks_cover_the_range_once(store: Any, size: str) -> None:
    tasks = plan(store, maxBytesPerPartition=size)
    assert len(tasks) >= 3
    for partition, end in ((0, 400), (1, 200)):
        found = [(start, stop) for _, index, start, stop in ranges(tasks) if index == partition]
        assert [start for start, _ in found] == [0, *(stop for _, stop in found[:-1])]
        assert found[-1][1] == end


def test_offsets_are_taken_per_partition_with_the_ends_for_the_rest(store: Any) -> None:
    starting, ending = '{"orders": {"0": 250, "1": -2}}', '{"orders": {"0": 390, "1": -1, "2": 0}}'
    found = ranges(plan(store, startingOffsets=starting, endingOffsets=ending))
    assert found == [("orders", 0, 250, 390), ("orders", 1, 0, 200)]
    assert plan(store, startingOffsets='{"orders": {"0": 400, "1": 200}}') == []


def test_topics_are_named_matched_or_assigned(store: Any) -> None:
    both = [("flights", 0, 0, 300), ("flights", 1, 0, 300), ("orders", 0, 0, 400), ("orders", 1, 0, 200)]
    assert ranges(plan(store, topic="orders, flights,")) == both
    assert ranges(plan(store, topicPattern="ord.*|fl.ghts")) == both
    assert ranges(plan(store, assign='{"orders": [1], "flights": [1]}')) == [both[1], both[3]]


def test_a_topic_named_and_given_by_id_is_planned_once(store: Any) -> None:
    topic_id = Store.open(store.url).topic("orders").topic_id
    assert ranges(plan(store, topic=f"orders,{topic_id}")) == [("orders", 0, 0, 400), ("orders", 1, 0, 200)]
    assigned = f'{{"orders": [0], "{topic_id}": [0, 1]}}'
    starting = f'{{"orders": {{"0": 5}}, "{topic_id}": {{"1": 7}}}}'
    found = ranges(plan(store, assign=assigned, startingOffsets=starting))
    assert found == [("orders", 0, 5, 400), ("orders", 1, 7, 200)]


def test_tasks_are_bounded_whatever_the_options_say(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(plan(store, maxBytesPerPartition="1")) > 2
    monkeypatch.setattr(plans, "SPARK_TASKS_MAX", 2)
    assert len(plan(store, maxBytesPerPartition="1")) == 2


def test_times_are_looked_up_in_the_segments(store: Any) -> None:
    """The flights' times are their offsets, so that the answer is known."""
    found = ranges(plan(store, topic="flights", startingTimestamp="70", endingTimestamp="255"))
    assert found == [("flights", 0, 70, 255), ("flights", 1, 70, 255)]
    assert plan(store, topic="flights", startingTimestamp="300") == []
    assert plan(store, topic="flights", startingTimestamp="200", endingTimestamp="100") == []
    everything = [("flights", 0, 0, 300), ("flights", 1, 0, 300)]
    assert ranges(plan(store, topic="flights", startingTimestamp="-5", endingTimestamp="1000")) == everything


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> StoreBuilder:
    """A large partition, a middling one, and twenty that are small; records of 1 to 4,000 bytes."""
    built = StoreBuilder(tmp_path_factory.mktemp("uneven"))
    random, partitions = Random(5), []
    for batches in [300, 60] + [3] * 20:
        at, segment = 0, []
        for _ in range(batches):
            body = [random.randbytes(random.choice((1, 300, 4000))) for _ in range(6)]
            segment.append(encode_batch([Record(at + each, 0, None, value) for each, value in enumerate(body)]))
            at += 6
        partitions.append([segment])
    built.topic("uneven", partitions)
    return built


@pytest.mark.parametrize(("size", "least", "tasks"), [(5, 16, 8), (8, 16, 8), (9, 10, 10), (1, 3, 3), (1, 1, 1)])
def test_few_tasks_are_as_many_as_cores_share_evenly(
    uneven: StoreBuilder, monkeypatch: pytest.MonkeyPatch, size: int, least: int, tasks: int
) -> None:
    """A task has a `size`th of all bytes. It is not made smaller than a `least`th only to be even. The user's choice is
    left as it is."""
    total = sum(each.batch_bytes for segments in uneven.segments.values() for each in segments)
    monkeypatch.setattr(option_values, "PARTITION_BYTES", total / size)
    monkeypatch.setattr(plans, "TASK_BYTES_EVEN_MIN", total / least)
    assert len(plan(uneven, topic="uneven")) == tasks
    assert len(plan(uneven, topic="uneven", maxBytesPerPartition=str(total // 5))) in (5, 6)


@pytest.mark.parametrize("tasks_min", [4, 9, 14])
def test_tasks_are_even_in_bytes_whatever_the_partitions(uneven: StoreBuilder, tasks_min: int) -> None:
    """By the real positions of what each task reads: none has more than its share and two stretches of the index."""
    tasks = plan(uneven, topic="uneven", minPartitions=str(tasks_min))
    assert tasks_min <= len(tasks) <= tasks_min + 1
    total = sum(each.batch_bytes for segments in uneven.segments.values() for each in segments)
    sizes = [sum(bytes_of(uneven, part) for part in task.parts) for task in tasks]
    assert sum(sizes) >= total
    assert max(sizes) <= total / tasks_min * 1.13 + 2 * 70_000
    covered = sorted((part.place.partition, part.start, part.end) for task in tasks for part in task.parts)
    for partition in range(22):
        spans = [(start, end) for index, start, end in covered if index == partition]
        assert spans[0][0] == 0
        assert spans[-1][1] == uneven.segments["uneven", partition][-1].next_offset
        assert all(before[1] == after[0] for before, after in pairwise(spans))


def bytes_of(built: StoreBuilder, part: Any) -> int:
    """Of the batches that hold its offsets, by walking through the object."""
    from headrace.wire.batches import iterate_headers

    assert isinstance(part, StorePart)
    data = built.objects.get_range(part.segment.key, 0, part.segment.batch_bytes)
    return sum(
        header.size
        for _, header in iterate_headers(data)
        if header.next_offset > part.start and header.base_offset < part.end
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"store": ""}, "Option store is missing"),
        ({"topic": " "}, "Option topic is missing"),
        ({"topic": "nothing"}, "holds no topic 'nothing'"),
        ({"topicPattern": "nothing"}, "No topic's name matches 'nothing'"),
        ({"topicPattern": "(", "topic": ""}, "Option topicPattern must be a regular expression"),
        ({"topicPattern": "a", "topic": "b"}, "Options topic and topicPattern contradict each other"),
        ({"assign": '{"orders": [0]}', "topic": "b"}, "Options topic and assign contradict each other"),
        ({"assign": '{"orders": 0}'}, "Option assign must be"),
        ({"assign": "orders"}, "Option assign must be"),
        ({"assign": '{"orders": [3]}'}, "has 3 partitions, so there is no 3"),
        ({"assign": '{"orders": [0]}', "startingOffsets": '{"orders": {"4": 1}}'}, "so there is no 4"),
        ({"startingOfsets": "earliest"}, "no option 'startingofsets'"),
        ({"startingOffsets": "latest"}, "Option startingOffsets must be earliest or"),
        ({"startingOffsets": '{"orders": {"0": -1}}'}, "Option startingOffsets must be"),
        ({"startingOffsets": "earliest", "startingTimestamp": "1"}, "startingOffsets and startingTimestamp contradict"),
        ({"endingOffsets": "latest", "endingTimestamp": "1"}, "endingOffsets and endingTimestamp contradict"),
        ({"startingTimestamp": "yesterday"}, "Option startingTimestamp must be milliseconds"),
        ({"startingTimestamp": "١"}, "Option startingTimestamp must be milliseconds"),
        ({"startingOffsets": '{"flights": {"٠": 1}}'}, "Option startingOffsets must be"),
        ({"startingOffsets": '{"flights": {"00": 1}}'}, "Option startingOffsets must be"),
        ({"startingOffsets": '{"flights": {"0": NaN}}'}, "Option startingOffsets must be"),
        ({"minPartitions": "1_0"}, "Option minPartitions must be a positive number"),
        ({"endingOffsets": "earliest"}, "Option endingOffsets must be latest"),
        ({"endingOffsets": '{"orders": {"0": -2}}'}, "Option endingOffsets must be"),
        ({"endingOffsets": '{"orders": [1]}'}, "Option endingOffsets must be"),
        ({"endingOffsets": '{"orders": {"x": 1}}'}, "Option endingOffsets must be"),
        ({"endingOffsets": "[]"}, "Option endingOffsets must be"),
        ({"endingOffsets": '{"flights": {"0": 1}}'}, "names topic 'flights', which option topic does not"),
        ({"endingOffsets": '{"orders": {"3": 1}}'}, "there is no 3"),
        ({"endingOffsets": '{"orders": {"0": 401}}'}, r"Offsets 0 to 401 .*partition 0 are gone: offsets 0 to 400"),
        ({"startingOffsets": '{"orders": {"1": 201}}'}, r"Offsets 201 to 200 .*partition 1"),
        ({"includeHeaders": "yes"}, "Option includeHeaders must be true or false"),
        ({"columns": "key,nothing"}, "Option columns names 'nothing'"),
        ({"maxBytesPerPartition": "0"}, "Option maxBytesPerPartition must be a positive number of bytes"),
        ({"minPartitions": "-1"}, "Option minPartitions must be a positive number of tasks"),
        ({"maxRecordsPerTrigger": "5"}, "Option maxRecordsPerTrigger is for spark.readStream alone"),
        ({"mode": "DROPMALFORMED"}, "Option mode must be FAILFAST or PERMISSIVE"),
        ({"mode": "permissive"}, "option quarantinePath must say where"),
        ({"path": "/elsewhere"}, "name two stores"),
        ({"startingOffsets": '{"orders": {"0": 3}, "orders": {"1": 3}}'}, "Option startingOffsets must be"),
        ({"quarantinePath": "/tmp/q"}, "Option quarantinePath needs mode=PERMISSIVE"),
    ],
)
def test_a_wrong_option_is_named(store: Any, options: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        plan(store, **options)


def test_what_a_stream_does_not_take_is_named() -> None:
    for options, words in (
        ({"endingOffsets": "latest"}, "Option endingOffsets is for spark.read alone"),
        ({"endingTimestamp": "3"}, "Option endingTimestamp is for spark.read alone"),
        ({"pushFilters": "true"}, "Option pushFilters is for spark.read alone"),
        ({"startingOffsets": "soon"}, "Option startingOffsets must be earliest or latest or"),
        ({"maxBytesPerTrigger": "much"}, "Option maxBytesPerTrigger must be a positive number of bytes"),
    ):
        with pytest.raises(UsageError, match=words):
            parse_options({"store": "/a", "topic": "t", **options}, streaming=True)


def test_a_range_that_is_not_there_is_cut_where_loss_may_be(store: Any) -> None:
    ending = '{"orders": {"0": 1000, "1": 50}}'
    found = ranges(plan(store, endingOffsets=ending, failOnDataLoss="false"))
    assert found == [("orders", 0, 0, 400), ("orders", 1, 0, 50)]


def test_option_names_are_taken_in_any_case_and_a_path_is_a_store() -> None:
    parsed = parse_options({"PATH": "/a", "Topic": "t", "INCLUDEHEADERS": "True", "maxbytesperpartition": "5"})
    assert (parsed.store, parsed.selection.topics, parsed.partition_bytes_max) == ("/a", ("t",), 5)
    assert "headers" in parsed.columns
    assert len(OPTIONS) == len(set(OPTIONS)) == 22
