"""``readStream`` in Spark: goes on from its checkpoint, fetches what comes, and tells what is gone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from tests.spark.world import World, consumed, random_batch, world

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def made(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path / "world") as running:
        yield running


def fill(made: World, count: int, seed: int) -> None:
    random = Random(seed)
    made.produce("t", [(at % 2, random_batch(random)) for at in range(count)])


def run(spark: Any, options: dict[str, str], root: Path) -> Any:
    """One query over what is there, into a table; the query, ended."""
    stream = spark.readStream.format("headrace").options(**options).load().select("partition", "offset")
    writer = stream.writeStream.format("parquet").option("checkpointLocation", str(root / "checkpoint"))
    query = writer.trigger(availableNow=True).start(str(root / "table"))
    query.awaitTermination(120)
    return query


def test_a_query_goes_on_from_its_checkpoint_and_reads_all_once(made: World, spark: Any, tmp_path: Path) -> None:
    made.create("t", 2, segment_bytes="8192", durable_enable="false")
    fill(made, 40, seed=1)
    options = made.options("t", startingOffsets="earliest", maxRecordsPerTrigger="100")
    first = run(spark, options, tmp_path)
    fill(made, 40, seed=2)
    second = run(spark, options, tmp_path)
    rows = consumed(made.bootstrap, ["t"])
    found = spark.read.parquet(str(tmp_path / "table")).collect()
    assert sorted(tuple(row) for row in found) == [row[1:3] for row in rows]
    assert max(each["numInputRows"] for query in (first, second) for each in query.recentProgress) <= 100
    ends = [max(row[2] for row in rows if row[1] == partition) + 1 for partition in range(2)]
    told = json.loads(second.recentProgress[-1]["sources"][0]["endOffset"])["t"]
    assert told == {"id": told["id"], "0": ends[0], "1": ends[1]}
    fill(made, 20, seed=3)
    newest = consumed(made.bootstrap, ["t"])
    made.delete_records("t", *(max(row[2] for row in newest if row[1] == partition) + 1 for partition in range(2)))
    with pytest.raises(StreamingQueryException, match=rf"Offsets {ends[0]} to .* of topic 't', partition 0 are gone"):
        run(spark, options, tmp_path)
    made.delete("t")
    made.create("t", 2, durable_enable="false")
    fill(made, 90, seed=4)
    with pytest.raises(StreamingQueryException, match=r"topic 't', partition 0 .*made anew"):
        run(spark, options, tmp_path)
