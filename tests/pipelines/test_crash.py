"""Materialise under SIGKILL: driver, Java, Python workers and, on S3, the store die at random, and each record is in
the table once.

HEADRACE_CRASH_ROUNDS is how often (`make crash-spark ROUNDS=30`), HEADRACE_CRASH_FORMATS into what,
HEADRACE_CRASH_STORE where (`STORE=s3`); HEADRACE_CRASH_SEED chooses the points.
"""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest

from tests.pipelines.crash import KINDS, STORE, WORKER, PipelineProcess, Place, last_run, moments, numbered, stores
from tests.pipelines.oracle import consumer_rows, delta_listed, differences, iceberg_listed
from tests.spark.world import Row, World, consumed, random_batch, records_in, world
from tests.tiers import IS_LONG
from tools.servers import s3_server

ROUNDS = int(os.environ.get("HEADRACE_CRASH_ROUNDS", "1"))
ALL_FORMATS = ("parquet", "delta", "iceberg")
OF_TIER = ALL_FORMATS if IS_LONG else ALL_FORMATS[:1]
FORMATS = [
    each
    for each in os.environ.get("HEADRACE_CRASH_FORMATS", ",".join(OF_TIER)).split(",")
    if each in ALL_FORMATS  # others have tests of their own
]
IS_SHORT = ROUNDS < 10
SEED = int(os.environ.get("HEADRACE_CRASH_SEED", "1"))
STORES = stores("directory" if s3_server.missing() else "s3")
"""By default on a server where there is one: replays, and the other tests of tables, have directories."""
pytestmark = pytest.mark.timeout(300 + 60 * ROUNDS)


def pipeline_file(made: World, root: Path, kind: str, place: Place) -> Path:
    more = f'format = "{kind}"\n'
    if kind == "iceberg":
        properties = ", ".join(f'"{name}" = "{value}"' for name, value in catalog(root, place).items())
        more += f'identifier = "lake.crash"\ncatalog = {{ {properties} }}\n'
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
        path = "{place.written}"
        {more}
        [spark]
        master = "local[2,4]"
        nice = 0
        settings = {{ "spark.driver.extraJavaOptions" = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto" }}
        """
    )
    return file


def catalog(root: Path, place: Place | None = None) -> dict[str, str]:
    """Beside the table, in a directory; pyiceberg takes credentials from the environment, as we do, but no place."""
    found = {"type": "sql", "uri": f"sqlite:///{root / 'catalog.db'}"}
    if place is not None and place.server is not None:
        known = place.server.environment
        found |= {"s3.endpoint": known["AWS_ENDPOINT_URL"], "s3.region": known["AWS_REGION"]}
    return found


def found(root: Path, kind: str, place: Place) -> list[Row]:
    """As the format's own readers see the table, where there is one."""
    table, names = place.files, None
    if kind == "delta":
        names = delta_listed(table)
    elif kind == "iceberg" and (root / "catalog.db").exists():
        names = iceberg_listed(place.written, catalog(root, place), "lake.crash")
    return consumer_rows(table, names)


def fill(made: World, count: int, random: Random) -> int:
    """How many records."""
    batches = [(at % 3, random_batch(random)) for at in range(count)]
    made.produce("t", batches)
    return sum(records_in(batch) for _, batch in batches)


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("store", STORES)
def test_each_record_is_in_the_table_once_whatever_dies(
    tmp_path: Path, kind: str, store: str, request: pytest.FixtureRequest
) -> None:
    if kind != "parquet":
        pytest.importorskip({"delta": "deltalake", "iceberg": "pyiceberg"}[kind])
    random, place = Random(SEED), Place.of(store, tmp_path, "table", request)
    with world(tmp_path / "world", **{"durable.url": place.history}) as made:
        made.create("t", 3, segment_bytes="1024" if IS_SHORT else "8192", retention_ms="-1")
        file, log = pipeline_file(made, tmp_path, kind, place), tmp_path / "log"
        story, killed, workers, sent = list[str](), 0, 0, 0
        batches, kinds = (30, ["file"]) if IS_SHORT else (100, place.kinds(KINDS))  # in few it has to come to kills

        def tell(text: str) -> None:
            story.append(text)
            print(f"{kind} {len(story)}: {text}", flush=True)

        def hits() -> int:
            return killed

        first = ALL_FORMATS.index(kind)  # each begins with another victim
        for number in numbered(ROUNDS, hits, first=first):
            sent += fill(made, batches, random)
            made.exported("t", 1)  # some of it is read of history
            victim = place.victim(number)
            with PipelineProcess(file, log) as running:
                text, happened = moments(place.files, running, random, kinds)
                died = place.first_blow(number, running, random) if running.until(happened) else []
                workers += WORKER in died
                tell(f"{' and '.join(died) or 'nobody'} when {text}")
                text, happened = moments(place.files, running, random, kinds)
                met = running.until(happened)
                code = place.last_blow(victim, running)
                killed += code != 0
                tell(f"{victim} when {text}: {met}, which gave {code}")
            assert victim != STORE or code in (0, 1), ("who has lost the store says so and ends", code, story)
            wrong = differences(found(tmp_path, kind, place), consumed(made.bootstrap, ["t"]))
            assert all(each.endswith("is missing") for each in wrong), (wrong, story)
        sent += fill(made, 5, random)
        code = last_run(file, log, place, request, apart=not IS_SHORT)
        assert code == 0, log.read_text()[-3000:]
        there = consumed(made.bootstrap, ["t"])
        assert len(there) == sent, "a consumer gets all of them"
        assert differences(found(tmp_path, kind, place), there) == [], story
        assert killed >= (1 if IS_SHORT else ROUNDS // 2), ("half of so many rounds were ended by a kill", story)
        assert workers or IS_SHORT, story
        assert not place.tells_secrets(log), "credentials are in the environment alone"
