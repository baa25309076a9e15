"""The commands against a real broker, run in this process: what they print, and the sentences that they fail with."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from headrace.cli.commands import MODULES, Commands
from headrace.cli.main import main
from headrace.testing import RunningBroker

GROUPS = [each for each in MODULES if hasattr(Commands()[each], "commands") and each != "quorum"]
"""`headrace quorum` is a command, too."""


@dataclass
class Headrace:
    """Runs `headrace` with a bootstrap address."""

    capture: pytest.CaptureFixture[bytes]

    def __call__(self, *arguments: object) -> tuple[int, bytes, str]:
        """Exit code, standard output, standard error."""
        self.capture.readouterr()
        code = main([str(argument) for argument in arguments])
        printed = self.capture.readouterr()
        return code, printed.out, printed.err.decode()

    def ok(self, *arguments: object) -> str:
        code, out, err = self(*arguments)
        assert code == 0, err
        return out.decode()

    def json(self, *arguments: object) -> list[Any]:
        return [json.loads(line) for line in self.ok(*arguments, "--json").splitlines()]

    def refused(self, *arguments: object, code: int = 1) -> str:
        found, out, err = self(*arguments)
        assert (found, out) == (code, b""), (found, out, err)
        sentences = [line for line in err.splitlines() if line.startswith("headrace: ")]
        assert len(sentences) == 1, err
        assert "Traceback" not in err
        return sentences[0]


@pytest.fixture
def headrace(
    headrace_broker: RunningBroker, capsysbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> Headrace:
    monkeypatch.setenv("HEADRACE_BOOTSTRAP", headrace_broker.bootstrap)
    return Headrace(capsysbinary)


@pytest.mark.parametrize("words", [(), *((name,) for name in GROUPS)])
def test_a_group_alone_shows_its_help_and_nothing_after_it(headrace: Headrace, words: tuple[str, ...]) -> None:
    code, out, err = headrace(*words)
    assert code == 2
    assert "Usage: headrace" in out.decode() + err
    assert "see 'headrace" not in err


def test_a_topic_from_its_creation_to_its_end(headrace: Headrace) -> None:
    (made,) = headrace.json("topic", "create", "orders", "--partitions", 3, "--config", "retention.ms=3600000")
    assert (made["topic"], made["created"], made["partitions"]) == ("orders", True, 3)
    assert "already there" in headrace.ok("topic", "create", "orders", "--if-not-exists")
    words = ("topic", "create", "more", "--dry-run", "--partitions")
    assert headrace.ok(*words, 1) == "topic more could be created with 1 partition\n"
    assert headrace.ok(*words, 2) == "topic more could be created with 2 partitions\n"
    (listed,) = headrace.json("topic", "list")
    assert (listed["topic"], listed["partitions"], listed["id"]) == ("orders", 3, made["id"])
    assert headrace.ok("topic", "alter", "orders", "--partitions", 4, "--delete-config", "retention.ms")
    (described,) = headrace.json("topic", "describe", "orders")
    assert [part["partition"] for part in described["partitions"]] == [0, 1, 2, 3]
    assert {part["end_offset"] for part in described["partitions"]} == {0}
    assert described["configs"]["retention.ms"]["source"] == "DEFAULT_CONFIG"
    shown = headrace.ok("topic", "describe", "orders")
    assert "CONFIG" not in shown
    assert f"{len(described['configs'])} configs more at the default; 'headrace config list topic orders'" in shown
    assert headrace.ok("topic", "alter", "orders", "--config", "retention.ms=7200000")
    assert ["retention.ms", "7200000", "DYNAMIC_TOPIC_CONFIG"] in [
        line.split() for line in headrace.ok("topic", "describe", "orders").splitlines()
    ]
    assert "begins at offset 0" in headrace.refused(
        "topic", "delete-records", "orders", "--partition", 1, "--before", "end"
    )
    assert headrace.json("topic", "delete", "orders") == [{"topic": "orders", "deleted": True}]
    assert headrace.ok("topic", "delete", "orders", "--if-exists") == "topic orders was not there\n"
    assert headrace.json("topic", "list") == []


def test_leaders_are_elected_where_there_is_need(headrace: Headrace) -> None:
    headrace.ok("topic", "create", "led", "--partitions", 2)
    assert headrace.ok("topic", "elect", "led", "--partition", 1) == "led-1: led-1 is led by broker 1 already.\n"
    assert [(one["partition"], one["error"]) for one in headrace.json("topic", "elect", "led", "--unclean")] == [
        (0, "ELECTION_NOT_NEEDED"),
        (1, "ELECTION_NOT_NEEDED"),
    ]
    assert "nothing" in headrace.refused("topic", "elect", "nothing")
    code, out, _ = headrace("topic", "elect", "led", "--partition", 9, "--partition", 0)
    assert (code, out.splitlines()[0]) == (1, b"led-9: Partition led-9 does not exist.")
    headrace.ok("topic", "delete", "led")


def test_a_dry_run_creates_nothing(headrace: Headrace) -> None:
    headrace.ok("topic", "create", "ghost", "--dry-run")
    assert headrace.json("topic", "list") == []


def test_lines_go_in_and_come_out(headrace: Headrace, tmp_path: Path) -> None:
    lines = [f"k{number % 3}:{number} ü" for number in range(500)]
    source = tmp_path / "lines.txt"
    source.write_text("\n".join(lines))
    headrace.ok("topic", "create", "lines", "--partitions", 2)
    (summary,) = headrace.json("produce", "lines", source, "--key-separator", ":", "--compression", "zstd")
    assert summary["records"] == 500
    assert sum(span["last_offset"] + 1 for span in summary["partitions"].values()) == 500
    out = headrace.ok("consume", "lines", "--end", "--key-separator", ":").splitlines()
    assert sorted(out) == sorted(lines)
    for key in ("k0", "k1", "k2"):
        mine = [line for line in lines if line.startswith(key)]
        assert [line for line in out if line.startswith(key)] == mine
    partition, span = next(iter(summary["partitions"].items()))
    trim = ("topic", "delete-records", "lines", "--partition", partition, "--before")
    end = span["last_offset"] + 1
    planned = {"topic": "lines", "partition": int(partition), "before": 7, "offsets": 7, "deleted": False}
    assert headrace.json(*trim, 7) == [planned]
    assert len(headrace.ok("consume", "lines", "--end").splitlines()) == 500, "a plan deletes nothing"
    assert headrace.json(*trim, 7, "--execute") == [{**planned, "deleted": True}]
    assert headrace.ok(*trim, "end", "--execute").startswith(
        f"lines-{partition}: what is before offset {end:,} is deleted"
    )
    assert len(headrace.ok("consume", "lines", "--end").splitlines()) == 500 - end


def test_records_as_json(headrace: Headrace, tmp_path: Path) -> None:
    source = tmp_path / "one"
    source.write_bytes(b"key=\xff\xfe\r\nplain")
    headrace.ok("topic", "create", "shown", "--partitions", 1)
    headrace.ok("produce", "shown", source, "--key-separator", "=", "--header", "a=b", "--timestamp", 1700000000000)
    place = {"topic": "shown", "partition": 0, "timestamp": 1700000000000, "headers": [{"name": "a", "value": "b"}]}
    assert headrace.json("consume", "shown", "--end") == [
        {**place, "offset": 0, "key": "key", "value_base64": "//4="},
        {**place, "offset": 1, "key": None, "value": "plain"},
    ]


def test_where_reading_starts_and_stops(headrace: Headrace, tmp_path: Path) -> None:
    headrace.ok("topic", "create", "span", "--partitions", 1)
    for number in range(4):
        source = tmp_path / str(number)
        source.write_text(f"v{number}\n")
        headrace.ok("produce", "span", source, "--timestamp", 1700000000000 + number * 60_000)
    assert headrace.ok("consume", "span", "--max", 2) == "v0\nv1\n"
    assert headrace.ok("consume", "span", "--partition", 0, "--offset", 3, "--end") == "v3\n"
    assert headrace.ok("consume", "span", "--from", "2023-11-14T22:14:20Z", "--end") == "v1\nv2\nv3\n"
    assert headrace.ok("consume", "span", "--from", "2030-01-01", "--end") == ""
    assert headrace.ok("consume", "span", "--from", "latest", "--end") == ""
    assert headrace.ok("consume", "span", "--max", 0) == ""


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["topic", "create", "a b"], 1, "INVALID_TOPIC_EXCEPTION"),
        (["topic", "create", "a", "--partitions", "0"], 1, "INVALID_PARTITIONS"),
        (["topic", "create", "a", "--config", "no.such=1"], 1, "no.such"),
        (["topic", "create", "a", "--config", "retention.ms"], 2, "KEY=VALUE"),
        (["topic", "describe", "nowhere"], 1, "does not exist: see 'headrace topic list'"),
        (["topic", "delete", "nowhere"], 1, "does not exist: see 'headrace topic list'"),
        (["topic", "alter", "nowhere"], 2, "Nothing to alter"),
        (["topic", "alter", "nowhere", "--config", "retention.ms=1"], 1, "does not exist"),
        (["topic", "frobnicate"], 2, "headrace topic --help"),
        (["topic", "create"], 2, "headrace topic create --help"),
        (["produce", "nowhere", "/dev/null"], 1, "headrace topic create nowhere"),
        (["produce", "nowhere", "--acks", "2"], 2, "--acks"),
        (["produce", "nowhere", "--key-separator", ""], 2, "--key-separator is empty"),
        (["consume", "nowhere"], 1, "does not exist"),
        (["topic", "list", "--bootstrap", "here:there"], 2, "HOST:PORT"),
        (["topic", "list", "--bootstrap", "127.0.0.1:1"], 1, "headrace up"),
        (["debug", "dump-log", "/nowhere"], 1, "/nowhere: No such file"),
        (["debug", "metadata", "/"], 2, "headrace up --data"),
        (["demo", "--rows", "0"], 2, "--rows"),
        (["--frob"], 2, "headrace --help"),
    ],
)
def test_a_failure_is_one_sentence_that_says_what_to_do(
    headrace: Headrace, arguments: list[str], code: int, said: str
) -> None:
    assert said in headrace.refused(*arguments, code=code)


def test_a_topic_or_partition_that_is_not_there(headrace: Headrace, tmp_path: Path) -> None:
    source = tmp_path / "x"
    source.write_text("x")
    headrace.ok("topic", "create", "one", "--partitions", 1)
    assert "partitions 0 to 0, not 4" in headrace.refused("produce", "one", source, "--partition", 4, code=2)
    assert "partitions 0 to 0, not 4" in headrace.refused("consume", "one", "--partition", 4, code=2)
    assert "offset 9 is not there" in headrace.refused("consume", "one", "--partition", 0, "--offset", 9)


def test_a_log_is_dumped_and_damage_is_found(
    headrace: Headrace, headrace_broker: RunningBroker, tmp_path: Path
) -> None:
    source = tmp_path / "lines"
    source.write_text("a\nb\nc\n")
    headrace.ok("topic", "create", "dumped", "--partitions", 1)
    headrace.ok("produce", "dumped", source)
    headrace.ok("produce", "dumped", source)
    directory = next(headrace_broker.data.glob("**/dumped-0"))
    batches = headrace.json("debug", "dump-log", directory, "--records")
    assert [(batch["base_offset"], batch["last_offset"]) for batch in batches] == [(0, 2), (3, 5)]
    assert [record["value"] for batch in batches for record in batch["records"]] == ["a", "b", "c"] * 2
    assert "base_offset 3" in headrace.ok("debug", "dump-log", directory)
    log = bytearray(next(directory.glob("*.log")).read_bytes())
    log[-1] ^= 1
    copy = tmp_path / "00000000000000000000.log"
    copy.write_bytes(log)
    code, out, err = headrace("debug", "dump-log", copy)
    assert code == 1
    assert b"base_offset 0" in out
    assert b"DAMAGED" in out
    assert "is damaged" in err


def test_metadata_is_dumped(headrace: Headrace, headrace_broker: RunningBroker) -> None:
    headrace.ok("topic", "create", "known", "--partitions", 2)
    (image,) = headrace.json("debug", "metadata", headrace_broker.data)
    assert [topic["name"] for topic in image["topics"]] == ["known"]
    events = headrace.json("debug", "metadata", headrace_broker.data, "--events")
    assert any("known" in json.dumps(entry) for entry in events)
