"""The audit finds what is wrong with history, each thing by name, and calls good only what it has read."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from headrace.base.errors import UsageError
from headrace.base.ids import LeaderEpoch, Offset, PartitionIndex
from headrace.base.limits import AUDIT_MIRROR_TRIES_MAX
from headrace.metadata.segments import SegmentDescriptor
from headrace.spark.pipelines.audit import brokers as audit_brokers
from headrace.spark.pipelines.audit import unmirrored
from headrace.spark.pipelines.audit.auditing import Audited, Report, audit
from headrace.spark.pipelines.audit.examining import (
    Finding,
    Sequences,
    _days,
    _times,
    break_between,
    examine,
    joined,
)
from headrace.spark.pipelines.audit.report import _draw_times, document, page, records_over_time, tell
from headrace.spark.pipelines.meter import Lines
from headrace.spark.pipelines.spec import Audit, parse
from headrace.storage.keeping import Keeping
from headrace.storage.objects import open_objects
from headrace.storage.tier.compact import compact_segments
from headrace.storage.tier.reader import Store
from headrace.wire.batches import LOG_APPEND_TIME, SEQUENCE_MAX, encode_batch, parse_header
from headrace.wire.records import Record
from tests.spark.conftest import StoreBuilder
from tests.spark.world import random_batch, world

pytestmark = pytest.mark.timeout(180)
TIME = 1_767_225_600_000


def batch(base: int, sequence: int, *, epoch: int = 0, producer: int = 7, incarnation: int = 0) -> bytes:
    rows = [Record(base + at, TIME + base + at, None, b"v") for at in range(3)]
    return encode_batch(
        rows, producer_id=producer, producer_epoch=incarnation, base_sequence=sequence, leader_epoch=epoch
    )


def spec_of(store: str, *topics: str, **report: Any) -> Audit:
    source = {"store": store, "topic": ",".join(topics)}
    spec = parse({"pipeline": "audit", "name": "a", "source": source, "report": report})
    assert isinstance(spec, Audit)
    return spec


def built(root: Path, *segments: list[bytes]) -> StoreBuilder:
    made = StoreBuilder(root)
    made.topic("t", [[*segments]])
    return made


def problems(report: Report) -> list[str]:
    return [problem for each in report.partitions for problem in each.problems]


def findings(made: StoreBuilder) -> dict[int, Finding]:
    return {int(each.start_offset): examine(each, made.objects) for each in made.segments["t", 0]}


def all_of(made: StoreBuilder) -> list[str]:
    found = findings(made)
    return [text for each in found.values() for text in each.problems] + [text for _, text in joined(found)]


def test_what_holds_is_found_to_hold(tmp_path: Path) -> None:
    made = built(tmp_path, [batch(0, 0), batch(3, 3)], [batch(6, 6), batch(9, 0, incarnation=1)])
    assert all_of(made) == []
    assert [each.records for each in findings(made).values()] == [6, 6]


@pytest.mark.parametrize(
    ("segments", "words"),
    [
        ([[batch(0, 0), batch(3, 4)]], "offset 3: producer 7 goes on with sequence 4 where 3 should follow"),
        ([[batch(0, 0)], [batch(3, 0)]], "offset 3 or later: producer 7 goes on with sequence 0 where 3 should follow"),
        ([[batch(0, 0, incarnation=2), batch(3, 0, incarnation=1)]], "writes in epoch 1 after epoch 2"),
        ([[batch(0, 0), batch(3, 5, incarnation=1)]], "begins epoch 1 with sequence 5, not 0"),
        ([[batch(0, 0, epoch=0), batch(3, 3, epoch=-1)]], "offset 3: epoch -1 comes after epoch 0"),
        ([[batch(0, 0, epoch=0)], [batch(3, 3, epoch=-1)]], "offset 3: epoch -1 comes after epoch 0"),
        ([[batch(0, 0, epoch=4)]], "it has batches of epoch 4, and was exported in epoch 0"),
    ],
)
def test_epochs_and_sequences_that_do_not_go_on_are_told(
    tmp_path: Path, segments: list[list[bytes]], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SegmentDescriptor, "contradiction", lambda _: None)  # the export would refuse the last
    (problem,) = all_of(built(tmp_path, *segments))
    assert words in problem


def test_sequences_wrap() -> None:
    assert break_between(Sequences(0, 0, 0, SEQUENCE_MAX), Sequences(0, 0, 0, 5)) is None
    assert break_between(Sequences(0, 0, 0, 5), Sequences(0, 6, 0, 9)) is None
    assert break_between(Sequences(0, 0, 0, 5), Sequences(0, 5, 0, 9)) is not None


def test_a_finding_survives_its_way_to_the_driver(tmp_path: Path) -> None:
    for finding in findings(built(tmp_path, [batch(0, 0)])).values():
        assert Finding.from_json(finding.to_json()) == finding


DAY = 86_400_000


def spread(first: int, count: int, every_ms: int, start_ms: int, **more: Any) -> bytes:
    rows = [Record(first + at, start_ms + at * every_ms, None, b"v") for at in range(count)]
    return encode_batch(rows, **more)


def bars(made: StoreBuilder) -> dict[str, int]:
    """The bars of the picture of records over time."""
    from matplotlib.dates import num2date
    from matplotlib.figure import Figure

    each = Audited(topic="t", partition=0, findings=findings(made))
    report, axes = Report("a", 0, partitions=[each]), Figure().subplots()
    _draw_times(records_over_time(report), axes)
    shown: Any = axes.patches
    return {str(num2date(bar.get_x() + bar.get_width() / 2).date()): round(bar.get_height()) for bar in shown}


def test_records_are_drawn_on_their_own_days_and_not_on_that_of_their_segments_last(tmp_path: Path) -> None:
    """Four days in three segments; one batch goes over midnight."""
    start, every = TIME, DAY // 24
    batches = [spread(at, 8, every, start + at * every) for at in range(0, 96, 8)]
    made = built(tmp_path / "1", batches[:5], batches[5:9], batches[9:])
    days = {f"2026-01-0{day}": 24 for day in (1, 2, 3, 4)}
    assert bars(made) == days
    whole = built(tmp_path / "2", [spread(0, 96, every, start)])
    assert bars(whole) == days, "of one batch its header tells the first time and the last"


def test_records_without_a_time_are_on_no_day(tmp_path: Path) -> None:
    timeless, far = spread(0, 3, 0, -1), spread(3, 2, 0, 2**62)
    made = built(tmp_path, [timeless, far, spread(5, 4, 0, TIME)])
    assert bars(made) == {"2026-01-01": 4}
    each = Audited(topic="t", partition=0, findings=findings(made))
    assert records_over_time(Report("a", 0, partitions=[each])).left_out == 5


def test_of_a_batch_with_the_brokers_time_only_that_counts(tmp_path: Path) -> None:
    """The first record's time in its header is the producer's."""
    header = parse_header(spread(0, 4, DAY, TIME))
    assert _days([header]) == {TIME // DAY + at: 1 for at in range(4)}
    appended = header._replace(attributes=header.attributes | LOG_APPEND_TIME)
    assert _days([appended]) == {TIME // DAY + 3: 4}


def test_times_out_of_bounds_are_told(tmp_path: Path) -> None:
    made = built(tmp_path, [batch(0, 0)])
    (segment,) = made.segments["t", 0]
    finding = Finding()
    header = parse_header(batch(0, 0))
    _times(finding, replace(segment, last_timestamp_ms=5), [header._replace(max_timestamp=header.base_timestamp - 1)])
    assert len(finding.problems) == 2


async def never(*_: object) -> None:
    """A catalog that is cut each time."""


@pytest.mark.usefixtures("impatient")
def test_an_audit_beside_its_brokers_and_after_damage(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with world(tmp_path / "world") as made:
        made.create("good", 2, segment_bytes="4096")
        made.create("bad", 1, segment_bytes="4096")
        random = Random(1)
        made.produce("good", [(at % 2, random_batch(random)) for at in range(60)])
        made.produce("bad", [(0, random_batch(random)) for _ in range(60)])
        for topic in ("good", "bad"):
            made.exported(topic, 20)
        source = {"store": made.store, "bootstrap": made.bootstrap, "topic": "good,bad"}
        spec = parse({"pipeline": "audit", "name": "a", "source": source, "report": {"html": str(tmp_path / "a.html")}})
        assert isinstance(spec, Audit)
        report = audit(lambda: spark, spec)
        assert report.holds, problems(report)
        assert all(each.compared for each in report.partitions)
        assert {(each.topic, each.partition) for each in report.partitions} == {("good", 0), ("good", 1), ("bad", 0)}
        assert all(each.segments > 0 and each.records > 0 for each in report.partitions)
        lost, good = {}, Store.open(made.store).topic("good").topic_id
        for path in (tmp_path / "world").rglob(f"*/{good}/0/state*"):
            lost[path] = path.read_bytes()
            path.unlink()
        assert lost
        (problem,) = problems(audit(lambda: spark, spec))
        assert problem.startswith("good-0: its catalog is not in the store, though the brokers know")

        def write_anew(_: float) -> None:
            for path, data in lost.items():
                path.write_bytes(data)

        with monkeypatch.context() as patch:
            patch.setattr(unmirrored, "sleep", write_anew)
            assert problems(audit(lambda: spark, spec)) == [f"good-0: {APPEARED}"]
        with monkeypatch.context() as patch:
            patch.setattr(audit_brokers, "_whole", never)
            told = problems(audit(lambda: spark, spec))
        assert [text.partition(" ")[0] for text in told] == ["good-0:", "good-1:", "bad-0:"]
        assert all("changes too fast" in text for text in told)
    objects = open_objects(made.store)
    damaged = spec_of(made.store, "good", "bad")
    store = Store.open(made.store)
    first, second = [each.descriptor for each in store.catalog(store.topic("bad"), PartitionIndex(0))][:2]
    body = bytearray(objects.get(first.key))
    body[100] ^= 1
    objects.put(first.key, bytes(body), if_absent=False)
    objects.delete(second.key)
    report = audit(lambda: spark, damaged)
    assert not report.holds
    told = problems(report)
    assert len(told) == 2, told
    assert f"bad-0: object '{first.key}': it fails its SHA-256." in told
    assert any(second.key in text for text in told)
    capsys.readouterr()
    tell(
        report,
        spec_of(made.store, "good", html=str(tmp_path / "b.html"), json=str(tmp_path / "b.json")),
        Lines(as_json=True),
    )
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert said[-1]["ok"] is False
    assert json.loads((tmp_path / "b.json").read_text()) == document(report)
    shown = (tmp_path / "b.html").read_text()
    assert shown == page(report)
    assert first.key in shown
    assert shown.count("data:image/png;base64,") == 3


def test_a_damaged_catalog_is_told_and_the_rest_is_read(spark: Any, tmp_path: Path) -> None:
    made = StoreBuilder(tmp_path)
    made.topic("t", [[[batch(0, 0)]], [[batch(0, 0)]]])
    state = next(tmp_path.rglob("*/0/state*"))
    state.write_text("{}")
    report = audit(lambda: spark, spec_of(made.url, "t"))
    assert [bool(each.problems) for each in report.partitions] == [True, False]
    assert report.partitions[1].records == 3


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unmirrored, "AUDIT_MIRROR_LOOK_MS", 0)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("gone", [("*/0/state*",), ("*/0/state*", "*/0/segments/*")])
def test_what_no_catalog_names_is_told(tmp_path: Path, gone: tuple[str, ...]) -> None:
    """Its mirror is gone: a partition of which there is nothing is none of these."""
    made = StoreBuilder(tmp_path)
    made.topic("t", [[[batch(0, 0)]], []])
    for pattern in gone:
        for path in [path for path in tmp_path.rglob(pattern) if path.is_file()]:
            path.unlink()
    report = audit(lambda: pytest.fail("there is nothing to read"), spec_of(made.url, "t"))
    assert [len(each.problems) for each in report.partitions] == [1, 0]
    assert problems(report)[0].startswith("t-0: its catalog is not in the store, though object '")
    assert not report.holds


def taken_away(root: Path, partition: int) -> tuple[Path, bytes]:
    """A partition's mirror, but for its single documents."""
    (state,) = root.rglob(f"*/{partition}/state")
    data = state.read_bytes()
    state.unlink()
    return state, data


def exported_at(root: Path, seconds: float) -> None:
    for path in root.rglob("*.segment"):
        os.utime(path, (seconds, seconds))


APPEARED = "its history appeared during the audit, so that none of it was looked at: audit again."


@pytest.mark.parametrize("kind", ["exported before", "begun meanwhile", "cut since it began"])
def test_a_history_that_appears_is_told_unless_all_of_it_was_exported_since(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    made = built(tmp_path, [batch(0, 0)], [batch(3, 3)])
    if kind == "cut since it began":
        store = Store.open(made.url)
        topic = store.topic("t")
        catalog = store.catalog(topic, PartitionIndex(0))
        cut = catalog.deleted(Offset(3), (made.segments["t", 0][0].sha256,))
        made.mirror.write_partition(topic.topic_id, PartitionIndex(0), cut, raft_index=2)
    exported_at(tmp_path, time.time() + (-60 if kind == "exported before" else 60))
    state, data = taken_away(tmp_path, 0)
    monkeypatch.setattr(unmirrored, "sleep", lambda _: state.write_bytes(data))
    report = audit(lambda: pytest.fail("there was nothing to read"), spec_of(made.url, "t"))
    assert problems(report) == ([] if kind == "begun meanwhile" else [f"t-0: {APPEARED}"])
    assert report.holds == (kind == "begun meanwhile")


def test_a_partition_that_is_lost_takes_no_time_of_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mirror of the other is damaged for a while, as when it is being written, and whole at the last look."""
    made = StoreBuilder(tmp_path)
    made.topic("t", [[[batch(0, 0)]], [[batch(0, 0)]]])
    exported_at(tmp_path, time.time() - 60)
    taken_away(tmp_path, 0)
    state, data = taken_away(tmp_path, 1)
    story: list[str] = []
    left = unmirrored._left

    def looked(sources: Any, topic: Any, partition: int) -> Any:
        story.append("looked")
        return left(sources, topic, partition)

    def sleep(_: float) -> None:
        story.append("slept")
        state.write_bytes(data if story.count("slept") == AUDIT_MIRROR_TRIES_MAX else b"{")

    monkeypatch.setattr(unmirrored, "_left", looked)
    monkeypatch.setattr(unmirrored, "sleep", sleep)
    report = audit(lambda: pytest.fail("there was nothing to read"), spec_of(made.url, "t"))
    assert story == ["looked"] * 2 + ["slept"] * AUDIT_MIRROR_TRIES_MAX, "each has all of it"
    (first,), (second,) = (each.problems for each in report.partitions)
    assert first.startswith("t-0: its catalog is not in the store")
    assert second == f"t-1: {APPEARED}"


def test_a_catalog_that_came_and_is_damaged_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = built(tmp_path, [batch(0, 0)])
    state, _ = taken_away(tmp_path, 0)
    monkeypatch.setattr(unmirrored, "sleep", lambda _: state.write_bytes(b"{"))
    (problem,) = problems(audit(lambda: pytest.fail("there was nothing to read"), spec_of(made.url, "t")))
    assert "is not JSON" in problem


def test_what_only_neighbours_can_tell_is_in_the_report(spark: Any, tmp_path: Path) -> None:
    made = built(tmp_path, [batch(0, 0)], [batch(3, 0)])
    (problem,) = problems(audit(lambda: spark, spec_of(made.url, "t")))
    assert problem.startswith("t-0: offset 3 or later: producer 7 goes on with sequence 0")


def test_an_audit_needs_a_store() -> None:
    source = {"bootstrap": "127.0.0.1:1", "topic": "t"}
    spec = parse({"pipeline": "audit", "name": "a", "source": source})
    assert isinstance(spec, Audit)
    with pytest.raises(UsageError, match="Key store of section"):
        audit(lambda: pytest.fail("no session"), spec)


def test_what_compaction_has_taken_is_no_gap(tmp_path: Path) -> None:
    def keyed(base: int) -> bytes:
        """Of a producer that wrote something else between two of these."""
        rows = [Record(base + at, TIME + base + at, b"key %d" % at, None if at else b"v") for at in range(3)]
        return encode_batch(rows, producer_id=7, producer_epoch=0, base_sequence=2 * base, leader_epoch=0)

    made = built(tmp_path, *([keyed(at)] for at in (0, 3, 6)))
    first, second, third = made.segments["t", 0]
    keeping = Keeping(last={b"key 0": 6}, clean_to=9, now_ms=TIME, delete_retention_ms=1_000_000)
    whole = {int(each.start_offset): examine(each, made.objects) for each in (first, third)}
    assert len([text for _, text in joined(whole)]) == 1
    thin = compact_segments(made.objects, [second], keeping, made_in=LeaderEpoch(9))
    assert thin is not None
    assert thin.records == 2
    found = {int(each.start_offset): examine(each, made.objects) for each in (first, thin, third)}
    assert [text for _, text in joined(found)] == []
    assert [problem for each in found.values() for problem in each.problems] == []
