"""Java dies as it hands over a result: no pipeline takes what came of it for all there is."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from tests.pipelines.crash import ROOT
from tests.pipelines.oracle import consumer_rows, differences
from tests.spark.world import World, consumed, random_batch, records_in, world
from tests.tiers import long_only

QUICK = (
    '[spark]\nmaster = "local[1]"\nnice = 0\n'
    'settings = { "spark.driver.extraJavaOptions" = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto" }\n'
)
pytestmark = pytest.mark.timeout(240)


def ran(file: Path, *, dies_at: int = 0) -> subprocess.CompletedProcess[str]:
    """A pipeline; Java is killed as it hands over its result of that number, if any."""
    module = ["tests.pipelines.dying_java", str(dies_at)] if dies_at else ["headrace.spark.pipelines"]
    places = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", *module, str(file), "--json"]
    return subprocess.run(command, env={**os.environ, "PYTHONPATH": places}, capture_output=True, text=True)


def source(made: World, more: str = "") -> str:
    return f'[source]\nstore = "{made.store}"\nbootstrap = "{made.bootstrap}"\ntopic = "t"\n{more}'


def filled(made: World) -> int:
    """How many records."""
    random = Random(1)
    made.create("t", 2, segment_bytes="1024", retention_ms="-1")
    batches = [(at % 2, random_batch(random)) for at in range(20)]
    made.produce("t", batches)
    made.exported("t", 1)
    return sum(records_in(batch) for _, batch in batches)


def test_a_table_lists_all_files_or_claims_nothing(tmp_path: Path) -> None:
    with world(tmp_path / "world") as made:
        sent = filled(made)
        file, table = tmp_path / "table.toml", tmp_path / "table"
        read = source(made, more="includeHeaders = true\n")
        head = f'pipeline = "materialise"\nname = "t"\n{read}[table]\npath = "{table}"\n'
        file.write_text(head + QUICK)
        died = ran(file, dies_at=1)
        assert died.returncode == 1, died
        assert "Spark's Java process ended before all of a job's result was there" in died.stderr
        assert consumer_rows(table) == []
        healed = ran(file)
        assert healed.returncode == 0, healed
        there = consumed(made.bootstrap, ["t"])
        assert len(there) == sent
        assert differences(consumer_rows(table), there) == []


@pytest.mark.parametrize(
    ("pipeline", "at"),
    [
        ("audit", 1),
        ("statistics", 3),
        ("compact", 2),
    ],
)
@long_only
def test_a_report_is_of_all_or_is_none(tmp_path: Path, pipeline: str, at: int) -> None:
    """Of two digests that are empty, it would be said that they are the same."""
    with world(tmp_path / "world") as made:
        filled(made)
        file = tmp_path / "report.toml"
        file.write_text(f'pipeline = "{pipeline}"\nname = "t"\n{source(made)}{QUICK}')
        died = ran(file, dies_at=at)
    assert died.returncode == 1, died
    assert "Spark's Java process ended before all of a job's result was there" in died.stderr
    assert not {"result", "topic"} & {json.loads(line)["event"] for line in died.stdout.splitlines()}


def test_no_result_of_spark_is_taken_another_way() -> None:
    """``DataFrame.collect`` and its kin take a Java that is gone for the end of the rows."""
    ends_early = re.compile(r"(?<!gc)\.(collect|head|tail|first|isEmpty|toLocalIterator|toPandas)\(")
    for file in (ROOT / "src/headrace/spark").rglob("*.py"):
        for line in file.read_text().splitlines():
            assert not ends_early.search(line), f"{file.name}: {line.strip()}"
