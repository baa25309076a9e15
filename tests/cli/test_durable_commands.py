"""`headrace durable` against a real broker and its store. The oracles are the files and their written format."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
import structlog

from headrace.storage.tier.mirror import state_key, topic_document_key
from headrace.testing import RunningBroker
from headrace.testing.thread import BrokerThread
from tests.cli.test_commands import Headrace, headrace

__all__ = ["headrace"]

RECORDS = 200
"""In partition 0 of `orders`; partition 1 has none."""
LOOK_EVERY_S = 0.05
"""The broker that exports is in this process, too: who looks without a pause keeps it waiting."""


class Stored:
    """A broker with a store, and `orders` in it, all of it durable."""

    def __init__(self, headrace: Headrace, root: Path, running: RunningBroker) -> None:
        self.headrace = headrace
        self.root = root / "store"
        self.url = f"file://{self.root}"
        headrace.ok(
            "topic", "create", "orders", "--partitions", 2, "--config", "segment.bytes=4096",
            "--config", "durable.export.max.lag.ms=0",
        )  # fmt: skip
        producer = confluent_kafka.Producer({"bootstrap.servers": running.bootstrap, "batch.num.messages": 10})
        for number in range(RECORDS):
            producer.produce("orders", b"%d" % number + b"v" * 100, partition=0)
        assert producer.flush(150) == 0
        pause = threading.Event()
        while not (found := headrace.json("durable", "list")) or found[0]["lag"] > 0:
            pause.wait(LOOK_EVERY_S)
        (self.listed,) = found
        while self.listed["end_offset"] != self.mirrored()["end_offset"]:
            pause.wait(LOOK_EVERY_S)

    def mirrored(self) -> dict[str, Any]:
        path = self.root / state_key(self.listed["topic_id"], 0)  # type: ignore[arg-type]  # as texts
        return json.loads(path.read_text()) if path.exists() else {"end_offset": -1}

    def objects(self) -> list[Path]:
        return sorted(self.root.glob("clusters/*/topics/*/0/*.segment"))


@pytest.fixture
def stored(tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Any:
    configs = {"durable.url": f"file://{tmp_path / 'store'}", "durable.sweep.grace.ms": "0"}
    with structlog.testing.capture_logs(), BrokerThread(configs=configs) as running:  # it logs where commands print
        monkeypatch.setenv("HEADRACE_BOOTSTRAP", running.bootstrap)
        yield Stored(Headrace(capsysbinary), tmp_path, running)


def test_history_is_listed_described_and_proven(stored: Stored) -> None:
    run = stored.headrace
    sizes = [path.stat().st_size for path in stored.objects()]
    assert stored.listed["segments"] == len(sizes) > 3
    assert (stored.listed["start_offset"], stored.listed["end_offset"]) == (0, RECORDS - 1)
    assert 0 < stored.listed["bytes"] < sum(sizes)
    assert run.ok("durable", "list", "orders").splitlines()[1].split()[:3] == ["orders", "0", str(len(sizes))]
    (described,) = run.json("durable", "describe", "orders")
    head = described["segments"][0]["previous_hash"]
    for entry in described["segments"]:
        link = json.dumps([head, "published", entry["descriptor"]], sort_keys=True, separators=(",", ":"))
        head = hashlib.sha256(link.encode()).hexdigest()
        assert entry["hash"] == head
        body = (stored.root / entry["descriptor"]["key"]).read_bytes()
        assert hashlib.sha256(body).hexdigest() == entry["descriptor"]["sha256"]
    assert described["head"] == head
    assert sum(entry["descriptor"]["records"] for entry in described["segments"]) == RECORDS
    text = run.ok("durable", "describe", "orders")
    assert head in text
    assert f"bytes {stored.listed['bytes']}  stored {sum(sizes)}  " in text
    assert described["stored_bytes"] == sum(sizes)
    (verdict,) = run.json("durable", "verify")
    assert (verdict["segments"], verdict["end_offset"], verdict["problems"]) == (len(sizes), RECORDS - 1, [])
    assert "all is as its catalog says" in run.ok("durable", "verify", "orders", "--partition", 0)
    assert "Partition 1 of topic 'orders' has no durable history" in run.refused(
        "durable", "verify", "orders", "--partition", 1, code=2
    )


def test_what_is_long_comes_in_parts(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    run = stored.headrace
    for name in ("a", "z"):
        run.ok("topic", "create", name)
    whole = run.json("durable", "describe", "orders")
    monkeypatch.setattr("headrace.broker.durable.api.DURABLE_ENTRIES_TOLD_MAX", 2)
    monkeypatch.setattr("headrace.broker.durable.api.DURABLE_SUMMARIES_TOLD_MAX", 1)
    assert run.json("durable", "describe", "orders") == whole
    assert run.json("durable", "list", "orders", "z") == [stored.listed]


def test_the_store_is_read_with_no_broker(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_BOOTSTRAP", "127.0.0.1:1")
    run, of_store = stored.headrace, ("--store", stored.url)
    (listed,) = run.json("durable", "list", *of_store)
    assert listed == stored.listed | {"lag": None, "log_end_offset": None}
    (described,) = run.json("durable", "describe", "orders", *of_store)
    assert len(described["segments"]) == listed["segments"]
    assert [verdict["problems"] for verdict in run.json("durable", "verify", *of_store)] == [[]]
    assert "no topic 'nothing'" in run.refused("durable", "verify", "nothing", *of_store, code=2)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)


def leave_out(path: Path) -> None:
    """A record less, and an object that is sound in itself."""
    data = path.read_bytes()
    length = 12 + int.from_bytes(data[8:12], "big")
    path.write_bytes(data[length:])


@pytest.mark.parametrize("damage", [flip, leave_out, Path.unlink])
def test_each_damaged_object_is_named_in_one_sentence(stored: Stored, damage: Callable[[Path], None]) -> None:
    run, objects = stored.headrace, stored.objects()
    damaged = [objects[1], objects[-1]]
    for path in damaged:
        damage(path)
    for options in ((), ("--store", stored.url)):
        code, out, _ = run("durable", "verify", *options)
        lines = out.decode().splitlines()
        assert (code, len(lines)) == (1, 2)
        for line, path in zip(lines, damaged, strict=True):
            assert str(path.relative_to(stored.root)) in line
            assert line.endswith(".")
        code, out, _ = run("durable", "verify", "--json", *options)
        assert (code, json.loads(out)["problems"]) == (1, lines)


def test_a_mirror_that_is_not_the_catalogs_is_told(stored: Stored) -> None:
    documents = sorted((stored.root / "storage/topics").glob("*/0/segments/0*"))
    documents[1].write_bytes(documents[2].read_bytes())
    code, out, _ = stored.headrace("durable", "verify", "--json")
    (problem,) = json.loads(out)["problems"]
    assert code == 1
    assert "is damaged at offset" in problem


def test_history_that_nothing_leads_to_is_no_good_one(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not looked at, and that is said: for the store alone, and beside the brokers that know it."""
    monkeypatch.setattr("headrace.cli.work.durable_views.AUDIT_MIRROR_LOOK_MS", 0)
    run, of_store = stored.headrace, ("--store", stored.url)
    state = stored.root / state_key(stored.listed["topic_id"], 0)  # type: ignore[arg-type]  # as texts
    state.unlink()
    code, out, _ = run("durable", "verify", *of_store)
    assert (code, out.decode().count("\n")) == (1, 1)
    assert "orders-0: its catalog is not in the store, though object 'storage/topics/" in out.decode()
    code, out, _ = run("durable", "verify")
    assert (code, out.decode().count("\n")) == (1, 1)
    assert "orders-0: its mirror is not in the store, though the brokers know" in out.decode()
    (stored.root / topic_document_key(stored.listed["topic_id"])).unlink()
    for options in ((), ("--json",)):
        code, out, _ = run("durable", "verify", *of_store, *options)
        assert (code, out.decode().count("\n")) == (1, 1)
        assert f"a mirror of topic {stored.listed['topic_id']}, and no name of it" in out.decode()


def test_what_is_being_written_is_waited_for_and_proven(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    """A first segment's mirror comes behind it. One object that nothing names may be what was never published."""
    run, of_store = stored.headrace, ("--store", stored.url)
    state = stored.root / state_key(stored.listed["topic_id"], 0)  # type: ignore[arg-type]  # as texts
    away = state.rename(stored.root.parent / "away")
    monkeypatch.setattr("headrace.cli.work.durable_views.sleep", lambda _: away.exists() and away.rename(state))
    lone = stored.objects()[0].parents[1] / "1" / "lone.segment"
    lone.parent.mkdir()
    lone.write_bytes(b"never published")
    assert run.ok("durable", "verify", *of_store).count("all is as its catalog says") == 1
    assert not away.exists()


def test_a_store_that_is_not_there_is_no_good_one(stored: Stored, tmp_path: Path) -> None:
    told = stored.headrace.refused("durable", "verify", "--store", f"file://{tmp_path / 'elsewhere'}", code=2)
    assert "holds no topic: look whether that is its URL, and its volume is mounted" in told


def test_what_nothing_refers_to_is_shown_and_then_removed(stored: Stored) -> None:
    run = stored.headrace
    kept = stored.objects()
    digit = "0" if kept[0].stem[-1] != "0" else "1"
    stray = kept[0].with_name(f"{kept[0].stem[:-1]}{digit}.segment")  # another object of the same offsets
    stray.write_bytes(b"x" * 9)
    (shown,) = run.json("durable", "sweep")
    assert [(each["key"], each["due"], each["removed"]) for each in shown["strays"]] == [
        (str(stray.relative_to(stored.root)), True, False)
    ]
    assert "nothing refers to it: goes" in run.ok("durable", "sweep", "--dry-run")
    assert stray.exists()
    (swept,) = run.json("durable", "sweep", "--execute")
    assert (swept["removed"], swept["removed_bytes"], swept["problems"]) == (1, 9, [])
    assert stored.objects() == kept
    assert run.ok("durable", "verify")


def test_without_a_store_there_is_nothing(headrace: Headrace) -> None:
    assert headrace.json("durable", "list") == []
    assert headrace.ok("durable", "verify") == ""
    assert "durable.url" in headrace.refused("durable", "sweep", code=2)
    assert "no topic 'nothing'" in headrace.refused("durable", "list", "nothing", code=2)
    headrace.ok("topic", "create", "plain")
    assert "has no durable history" in headrace.refused("durable", "describe", "plain", code=2)


def test_small_segments_are_merged_and_history_is_proven_again(stored: Stored) -> None:
    run, small = stored.headrace, stored.listed["segments"]
    (told,) = run.json("durable", "merge", "orders")
    assert (told["before"], told["after"], told["partitions"]) == (small - 1, 1, [0, 1])
    assert run.json("durable", "list")[0]["segments"] == small
    assert run.json("durable", "merge", "orders", "--execute") == [told]
    (listed,) = run.json("durable", "list")
    assert (listed["segments"], listed["start_offset"], listed["end_offset"]) == (2, 0, RECORDS - 1)
    (described,) = run.json("durable", "describe", "orders")
    first = described["segments"][0]
    assert first["is_substitute"]
    assert first["descriptor"]["records"] + described["segments"][1]["descriptor"]["records"] == RECORDS
    pause = threading.Event()
    while stored.mirrored()["head"] != described["head"]:
        pause.wait(LOOK_EVERY_S)
    for at in ([], ["--store", stored.url]):
        (proven,) = run.json("durable", "verify", "orders", *at)
        assert (proven["segments"], proven["problems"]) == (2, [])
    assert "nothing" in run.refused("durable", "merge", "nothing", code=2)


def test_topics_of_which_nothing_is_exported_yet_are_named(stored: Stored) -> None:
    assert "nothing is exported yet" not in stored.headrace("durable", "list")[2]
    stored.headrace.ok("topic", "create", "fresh")
    stored.headrace.ok("topic", "create", "kept", "--config", "durable.enable=false")
    assert "nothing is exported yet of fresh\n" in stored.headrace("durable", "list")[2]
    assert "fresh" not in stored.headrace("durable", "list", "orders")[2]
