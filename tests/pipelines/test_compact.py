"""Small durable segments are put together by brokers, and what is read stays what it was."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from headrace.base.errors import UsageError
from headrace.base.ids import PartitionIndex
from headrace.spark.pipelines import merging
from headrace.spark.pipelines.__main__ import main
from headrace.spark.pipelines.spec import Compact, parse
from headrace.storage.tier.reader import Store
from headrace.wire.batches import encode_batch
from headrace.wire.records import Record
from tests.spark.world import consumed, world

pytestmark = pytest.mark.timeout(240)
PARTITIONS = 2
TIME = 1_700_000_000_000


def batch(random: Random) -> bytes:
    rows = [Record(at, TIME + at, random.choice([None, b"a", b"b"]), random.randbytes(150)) for at in range(10)]
    return encode_batch(rows)


def segments(store: str) -> list[int]:
    """Of each partition."""
    opened = Store.open(store)
    (topic,) = opened.topics()
    return [len(list(opened.catalog(topic, PartitionIndex(index)))) for index in range(PARTITIONS)]


def test_it_is_compacted_and_read_as_before(spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    random = Random(3)
    with world(tmp_path / "world", **{"log.retention.ms": "-1"}) as made:
        made.create("t", PARTITIONS, segment_bytes="4096")
        made.produce("t", [(at % PARTITIONS, batch(random)) for at in range(60)])
        for partition in range(PARTITIONS):
            made.exported("t", 200, partition)
        rows, many = consumed(made.bootstrap, ["t"]), segments(made.store)
        source = {"store": made.store, "bootstrap": made.bootstrap, "topic": "t"}
        spec = parse({"pipeline": "compact", "name": "c", "source": source})
        assert isinstance(spec, Compact)
        file = tmp_path / "c.toml"
        lines = [f'{name} = "{value}"' for name, value in source.items()]
        file.write_text("\n".join(['pipeline = "compact"', 'name = "c"', "[source]", *lines]))
        assert main([str(file), "--dry-run", "--json"]) == 0
        told = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert told["before"] > told["after"] >= PARTITIONS
        assert segments(made.store) == many, "nothing was done"
        (done,) = merging.compact(lambda: spark, spec)
        assert (done.before, done.after) == (told["before"], told["after"])
        assert done.compared
        assert done.holds, done.sentence(dry_run=False)
        few = segments(made.store)
        assert sum(many) - sum(few) == done.before - done.after
        assert consumed(made.bootstrap, ["t"]) == rows
        (again,) = merging.compact(lambda: pytest.fail("nothing is compared"), parse_without_comparing(source))
        assert (again.before, again.after, again.holds) == (0, 0, True)


def parse_without_comparing(source: dict[str, str]) -> Compact:
    spec = parse({"pipeline": "compact", "name": "c", "source": source, "run": {"compare": False}})
    assert isinstance(spec, Compact)
    return spec


def test_what_is_read_otherwise_is_told(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One partition's records are others when they are read again."""
    random, readings = Random(4), list[int]()
    real = merging._read

    def read(session: Any, spec: Compact, parts: Any) -> Any:
        readings.append(len(parts))
        frame = real(session, spec, parts)
        return frame.where("partition = 0 or offset > 0") if len(readings) > 1 else frame

    monkeypatch.setattr(merging, "_read", read)
    with world(tmp_path / "world", **{"log.retention.ms": "-1"}) as made:
        made.create("t", PARTITIONS, segment_bytes="4096")
        made.produce("t", [(at % PARTITIONS, batch(random)) for at in range(20)])
        for partition in range(PARTITIONS):
            made.exported("t", 50, partition)
        source = {"store": made.store, "bootstrap": made.bootstrap, "topic": "t"}
        spec = parse({"pipeline": "compact", "name": "c", "source": source})
        assert isinstance(spec, Compact)
        (done,) = merging.compact(lambda: spark, spec)
    assert done.differs == [1]
    assert not done.holds
    assert "read otherwise" in done.sentence(dry_run=False)


KEYED = {
    "segment_bytes": "4096",
    "cleanup_policy": "compact",
    "min_cleanable_dirty_ratio": "0",
    "durable_compacted_enable": "true",
}


@pytest.mark.parametrize("lost", [None, b"seldom", b"often 1"])
def test_what_comes_while_it_is_compacted_is_no_damage_and_hides_none(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: bytes | None
) -> None:
    """Newer values of the same keys are durable before the broker begins; `lost`: the last record of this key is gone
    when it is read again."""
    random, readings = Random(5), list[int]()
    asked, real = merging._asked, merging._read

    def values(count: int) -> list[tuple[int, bytes]]:
        rows = [Record(at, TIME + at, b"often %d" % at, random.randbytes(150)) for at in range(10)]
        return [(0, encode_batch(rows)) for _ in range(count)]

    async def later(cluster: Any, part: Any, *, execute: bool) -> Any:
        await asyncio.to_thread(made.produce, "t", values(40))
        await asyncio.to_thread(made.exported, "t", part.end + 200)
        return await asked(cluster, part, execute=execute)

    def read(session: Any, spec: Compact, parts: Any) -> Any:
        readings.append(len(parts))
        frame = real(session, spec, parts)
        return frame if lost is None or len(readings) == 1 else frame.where(frame.key != lost)

    monkeypatch.setattr(merging, "_asked", later)
    monkeypatch.setattr(merging, "_read", read)
    with world(tmp_path / "world", **{"log.retention.ms": "-1"}) as made:
        made.create("t", 1, **KEYED)
        made.produce("t", [(0, encode_batch([Record(0, TIME, b"seldom", b"v")])), *values(40)])
        made.exported("t", 300)
        source = {"store": made.store, "bootstrap": made.bootstrap, "topic": "t"}
        spec = parse({"pipeline": "compact", "name": "c", "source": source})
        assert isinstance(spec, Compact)
        (done,) = merging.compact(lambda: spark, spec)
        assert (done.before > done.after > 0, done.compared, done.problems) == (True, True, [])
        assert done.differs == ([] if lost is None else [0])
        assert done.holds is (lost is None)
        monkeypatch.setattr(merging, "_asked", asked)
        lost = None
        (again,) = merging.compact(lambda: spark, spec)
        assert again.after > 0, "what came above waits for the next one"
        assert again.holds


@pytest.mark.parametrize("lacking", ["store", "bootstrap"])
def test_it_needs_both(lacking: str) -> None:
    source = {"store": "memory://", "bootstrap": "127.0.0.1:9", "topic": "t"}
    del source[lacking]
    with pytest.raises(UsageError, match="needs store and bootstrap"):
        parse({"pipeline": "compact", "name": "c", "source": source})
