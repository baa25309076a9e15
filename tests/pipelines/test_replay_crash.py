"""Replay under SIGKILL: driver, Java, Python workers and, on S3, the store die at random. A reader that drops repeats
gets each record once and in order.

HEADRACE_CRASH_ROUNDS is the number of rounds (`make crash-spark ROUNDS=30 FORMATS=replay`). HEADRACE_CRASH_STORE is
where history and checkpoint are. HEADRACE_CRASH_SEED chooses the points.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import pytest

from headrace.net.client.offsets import LATEST
from headrace.spark.brokers import Brokers
from tests.pipelines.crash import STORE, PipelineProcess, Place, last_run, names, numbered, stores
from tests.pipelines.replayed import fill, law, parts, valued_row
from tests.spark.world import Row, World, consumed, read, world

ROUNDS = int(os.environ.get("HEADRACE_CRASH_ROUNDS", "1"))
IS_SHORT = ROUNDS < 10
SEED = int(os.environ.get("HEADRACE_CRASH_SEED", "1"))
KINDS = ("told", "records", "putting", "entry")
PORTION = 100
"""Offsets."""
SOURCE, TARGET = 3, 4
"""Partitions."""
pytestmark = [
    pytest.mark.timeout(300 + 60 * ROUNDS),
    pytest.mark.skipif("replay" not in os.environ.get("HEADRACE_CRASH_FORMATS", "replay").split(","), reason="others"),
]


def pipeline_file(made: World, root: Path, checkpoint: str) -> Path:
    file = root / "crash.toml"
    file.write_text(
        f"""
        pipeline = "replay"
        name = "crash"
        [source]
        store = "{made.store}"
        bootstrap = "{made.bootstrap}"
        topic = "s"
        maxRecordsPerTrigger = {PORTION}
        [target]
        bootstrap = "{made.bootstrap}"
        topic = "t"
        [transform]
        function = "tests.pipelines.replayed:valued"
        [run]
        checkpoint = "{checkpoint}"
        [spark]
        master = "local[2,4]"
        nice = 0
        settings = {{ "spark.driver.extraJavaOptions" = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto" }}
        """
    )
    return file


def moments(
    checkpoint: Path, brokers: Brokers, running: PipelineProcess, random: Random, kinds: Sequence[str]
) -> tuple[str, Callable[[], bool]]:
    """Something to wait for, by name: a portion that is told, or put down, or being so; records in the target."""
    kind, count = random.choice(kinds), random.randrange(1, 4)
    if kind == "told":
        return f"{count} portions are told", lambda: running.commits >= count
    if kind == "putting":
        seen = {*names(checkpoint / ".incoming")}
        return "a put has begun", lambda: bool({*names(checkpoint / ".incoming")} - seen)
    if kind == "entry":
        before = len(names(checkpoint / "_headrace_replay"))
        return f"{count} more entries", lambda: len(names(checkpoint / "_headrace_replay")) >= before + count
    there, more = written(brokers), random.randrange(1, 60)
    return f"{more} more records", lambda: written(brokers) >= there + more


def written(brokers: Brokers) -> int:
    return sum(found.offset for found in brokers.offsets("t", range(TARGET), LATEST).values())


def once(made: World) -> list[Row]:
    return read({"bootstrap": made.bootstrap, "topic": "t", "includeHeaders": "true", "dropRepeats": "true"})


def written_again(now: list[Row], before: list[Row]) -> set[bytes | None]:
    """Of what was there when a run had ended, what the next ones wrote: they look for it, and leave it out."""
    places = {row[:3] for row in before}
    return {dict(row[7])["at"] for row in now if row[:3] not in places} & {dict(row[7])["at"] for row in before}


@pytest.mark.parametrize("store", stores("directory"))
def test_each_record_is_replayed_once_and_in_order_whatever_dies(
    tmp_path: Path, store: str, request: pytest.FixtureRequest
) -> None:
    random, place = Random(SEED), Place.of(store, tmp_path, "checkpoint", request)
    with world(tmp_path / "world", **{"durable.url": place.history}) as made, Brokers(made.bootstrap) as brokers:
        made.create("s", SOURCE, segment_bytes="8192", retention_ms="-1")
        made.create("t", TARGET, retention_ms="-1")
        file, log = pipeline_file(made, tmp_path, place.written), tmp_path / "log"
        story, there, killed, blows = list[str](), list[Row](), 0, 0
        batches, kinds = (
            (100, place.kinds(KINDS)) if ROUNDS > 2 else (70, ["records"])
        )  # in few it has to come to kills

        def tell(text: str) -> None:
            story.append(text)
            print(f"replay {len(story)}: {text}", flush=True)

        def hits() -> int:
            return killed

        for number in numbered(ROUNDS, hits):
            fill(made, "s", SOURCE, batches, seed=number)
            victim = place.victim(number)
            with PipelineProcess(file, log) as running:
                text, happened = moments(place.files, brokers, running, random, kinds)
                died = place.first_blow(number, running, random) if running.until(happened) else []
                blows += len(died)
                tell(f"{' and '.join(died) or 'nobody'} when {text}")
                text, happened = moments(place.files, brokers, running, random, kinds)
                met = running.until(happened)
                code = place.last_blow(victim, running)
                killed += code != 0
                tell(f"{victim} when {text}: {met}, which gave {code}")
            assert victim != STORE or code in (0, 1), ("who has lost the store says so and ends", code, story)
            found, wanted = parts(once(made), consumed(made.bootstrap, ["s"]), TARGET, valued_row)
            for where, rows in found.items():
                assert rows == wanted[where][: len(rows)], (where, story)
            there, before = consumed(made.bootstrap, ["t"]), there
            assert not written_again(there, before), story
        fill(made, "s", SOURCE, 5, seed=ROUNDS)
        code = last_run(file, log, place, request, apart=not IS_SHORT)
        assert code == 0, log.read_text()[-3000:]
        source, all_of_them, own = consumed(made.bootstrap, ["s"]), consumed(made.bootstrap, ["t"]), once(made)
        law(own, source, TARGET, valued_row)
        assert not written_again(all_of_them, there), story
        repeats = len(all_of_them) - len(own)
        print(f"replay: {len(own)} records, and {repeats} repeats", flush=True)
        assert repeats <= (killed + blows) * PORTION, ("each kill repeats no more than what was under way", story)
        assert killed >= (ROUNDS + 1) // 2, ("of so many rounds at least half were ended by a kill", story)
        assert not place.tells_secrets(log), "credentials are in the environment alone"
