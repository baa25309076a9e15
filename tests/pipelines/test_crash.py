"""Materialise under SIGKILL: driver, Java and Python workers die at random, and each record is in the table once.

HEADRACE_CRASH_ROUNDS is how often (`make crash-spark ROUNDS=30`), HEADRACE_CRASH_FORMATS into what; HEADRACE_CRASH_SEED
chooses the points.
"""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest

from tests.pipelines.crash import KINDS, PipelineProcess, moments
from tests.pipelines.oracle import consumer_rows, delta_listed, differences, iceberg_listed
from tests.spark.world import Row, World, consumed, random_batch, world

ROUNDS = int(os.environ.get("HEADRACE_CRASH_ROUNDS", "1"))
FORMATS = [each for each in os.environ.get("HEADRACE_CRASH_FORMATS", "parquet").split(",") if each != "replay"]
SEED = int(os.environ.get("HEADRACE_CRASH_SEED", "1"))
VICTIMS = ("all", "driver", "java")
pytestmark = pytest.mark.timeout(120 + 60 * ROUNDS)


def pipeline_file(made: World, root: Path, kind: str) -> Path:
    more = f'format = "{kind}"\n'
    if kind == "iceberg":
        more += f'identifier = "lake.crash"\ncatalog = {{ type = "sql", uri = "{catalog(root)["uri"]}" }}\n'
    file = root / "crash.toml"
    file.write_text(
        f"""
        pipeline = "materialise"
        name = "crash"
        [source]
        store = "{made.store}"
        bootstrap = "{made.bootstrap}"
        topic = "t"
        includeHeaders = true
        maxRecordsPerTrigger = 100
        maxBytesPerPartition = 4000
        [table]
        path = "{root / "table"}"
        {more}
        [spark]
        master = "local[2,4]"
        settings = {{ "spark.driver.extraJavaOptions" = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto" }}
        """
    )
    return file


def catalog(root: Path) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{root / 'catalog.db'}"}


def found(root: Path, kind: str) -> list[Row]:
    """As the format's own readers see the table, where there is one."""
    table, names = root / "table", None
    if kind == "delta":
        names = delta_listed(table)
    elif kind == "iceberg" and (root / "catalog.db").exists():
        names = iceberg_listed(table, catalog(root), "lake.crash")
    return consumer_rows(table, names)


def fill(made: World, count: int, random: Random) -> None:
    made.produce("t", [(at % 3, random_batch(random)) for at in range(count)])


@pytest.mark.parametrize("kind", FORMATS)
def test_each_record_is_in_the_table_once_whatever_dies(tmp_path: Path, kind: str) -> None:
    if kind != "parquet":
        pytest.importorskip({"delta": "deltalake", "iceberg": "pyiceberg"}[kind])
    random = Random(SEED)
    with world(tmp_path / "world") as made:
        made.create("t", 3, segment_bytes="8192", retention_ms="-1")
        file, log, table = pipeline_file(made, tmp_path, kind), tmp_path / "log", tmp_path / "table"
        story, killed, workers = list[str](), 0, 0
        batches, kinds = (100, KINDS) if ROUNDS > 1 else (30, ("file",))  # in one round it has to come to kills

        def tell(text: str) -> None:
            story.append(text)
            print(f"{kind} {len(story)}: {text}", flush=True)

        for number in range(ROUNDS):
            fill(made, batches, random)
            victim = VICTIMS[number % len(VICTIMS)]
            with PipelineProcess(file, log) as running:
                text, happened = moments(table, running, random, kinds)
                met = running.until(happened) and running.kill_worker(random)  # its task is tried again
                workers += met
                tell(f"a worker when {text}: {met}")
                text, happened = moments(table, running, random, kinds)
                met = running.until(happened)
                {"all": running.kill_all, "driver": running.kill_driver, "java": running.kill_java}[victim]()
                code = running.wait()
                killed += code != 0
                tell(f"{victim} when {text}: {met}, which gave {code}")
            wrong = differences(found(tmp_path, kind), consumed(made.bootstrap, ["t"]))
            assert all(each.endswith("is missing") for each in wrong), (wrong, story)
        fill(made, 5, random)
        with PipelineProcess(file, log) as running:
            code = running.wait()
        assert code == 0, log.read_text()[-3000:]
        assert differences(found(tmp_path, kind), consumed(made.bootstrap, ["t"])) == [], story
        assert killed >= (ROUNDS + 1) // 2, ("of so many rounds at least half were ended by a kill", story)
        assert workers or ROUNDS < 5, story
