"""A replay: what is in the target is what the function makes of the source, in order, whoever went on with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from threading import Event
from typing import Any

import pytest
from pyspark.errors import PySparkException

from headrace.base.errors import UsageError
from headrace.spark.extent import DataLoss
from headrace.spark.pipelines import planned_replay, replay, replaying
from headrace.spark.pipelines.replay_log import REPLAYED, ConcurrentReplay
from headrace.spark.pipelines.replaying import Sum
from headrace.spark.pipelines.spec import Replay, parse
from headrace.wire.batches import encode_batch
from headrace.wire.records import Record
from tests.spark.world import TIME, Row, World, consumed, random_batch, read, world

pytestmark = pytest.mark.timeout(180)
OWN = ("headrace.query", "headrace.batch", "headrace.task")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("world")) as running:
        yield running


class Runner:
    """Replays into a topic of its own."""

    def __init__(self, made: World, spark: Any, checkpoint: Path, source: str, target: str) -> None:
        self.made, self.spark, self.checkpoint, self.source, self.target = made, spark, checkpoint, source, target

    def spec(self, *, source: Any = None, target: Any = None, function: str | None = None, **run: Any) -> Replay:
        found = parse(
            {
                "pipeline": "replay",
                "name": "again",
                "source": {
                    **{"store": self.made.store, "bootstrap": self.made.bootstrap, "topic": self.source},
                    **(source or {}),
                },
                "target": {"bootstrap": self.made.bootstrap, "topic": self.target, **(target or {})},
                "transform": {} if function is None else {"function": f"tests.pipelines.test_replay:{function}"},
                "run": {"checkpoint": str(self.checkpoint), **run},
            }
        )
        assert isinstance(found, Replay)
        return found

    def run(self, **wanted: Any) -> Sum:
        return replay(lambda: self.spark, self.spec(**wanted))


def fill(made: World, topic: str, partitions: int, batches: int, seed: int = 1, *, keyed: bool = False) -> None:
    random = Random(seed)
    made.produce(topic, [(at % partitions, random_batch(random, keyed=keyed)) for at in range(batches)])


def content(row: Row) -> tuple[Any, ...]:
    """What a replay keeps: time and its type, key, value, and all headers but the writer's."""
    return (*row[3:7], tuple(header for header in row[7] if header[0] not in OWN))


def by_partition(rows: Sequence[Row]) -> dict[int, list[tuple[Any, ...]]]:
    found: dict[int, list[tuple[Any, ...]]] = {}
    for row in rows:
        found.setdefault(row[1], []).append(content(row))
    return found


def in_order(
    target: Sequence[Row], source: Sequence[Row], make: Callable[[Row], list[Row]] = lambda row: [row]
) -> None:
    """The law, where the target's records say by their headers which of the source's they were: of each partition of
    the source what was made of its records is there once, and in order in each partition of the target."""
    wanted = {
        at: [content(new) for row in source if row[1] == at for new in make(row)] for at in {r[1] for r in source}
    }
    found = [content(row) for row in target]
    assert sorted(map(repr, found)) == sorted(repr(each) for rows in wanted.values() for each in rows)
    for rows in by_partition(target).values():
        for own in wanted.values():
            at, known = 0, {repr(each) for each in own}
            for each in (row for row in rows if repr(row) in known):
                while own[at] != each:
                    at += 1


def test_a_replay_keeps_all_of_a_record(made: World, spark: Any, tmp_path: Path) -> None:
    made.create("s1", 3, segment_bytes="4096")
    made.create("t1", 4, retention_ms="-1")
    fill(made, "s1", 3, 40)
    runner = Runner(made, spark, tmp_path, "s1", "t1")
    plan = planned_replay(runner.spec())
    source = consumed(made.bootstrap, ["s1"])
    assert sum(each.end - each.start for each in plan) == len(source)
    assert not (tmp_path / REPLAYED).exists(), "a plan writes nothing"
    done = runner.run(source={"maxRecordsPerTrigger": 50})
    assert (done.records, done.repeated) == (len(source), 0)
    assert done.portions >= len(source) // 50
    target = consumed(made.bootstrap, ["t1"])
    in_order(target, source)
    assert runner.run() == Sum()
    fill(made, "s1", 3, 10, seed=2)
    runner.run()
    in_order(consumed(made.bootstrap, ["t1"]), consumed(made.bootstrap, ["s1"]))
