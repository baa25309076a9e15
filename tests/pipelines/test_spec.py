"""A pipeline's file: what is in it, and one sentence for what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.base.errors import UsageError
from headrace.base.limits import PIPELINE_BATCH_BYTES, PIPELINE_NICE, REPLAY_BATCH_BYTES
from headrace.spark.options import EARLIEST, LATEST, Bound, parse_options
from headrace.spark.pipelines.spec import Audit, Materialise, Replay, load, parse
from headrace.spark.pipelines.tables.evolving import ddl, evolved
from headrace.spark.pipelines.tables.progress import Column

GOOD = """
pipeline = "materialise"
name = "orders"
[source]
store = "/history"
topic = "orders"
includeHeaders = true
maxRecordsPerTrigger = 500
[decode]
key = "string"
value = "json"
schema = "id bigint"
[columns]
day = "to_date(timestamp)"
[table]
path = "/lake/orders"
partition_by = ["day"]
[run]
continuous = true
[spark]
master = "local[2]"
nice = 0
spare_processors = 1
settings = { "spark.sql.shuffle.partitions" = 4 }
"""


def test_a_file_says_what_is_to_be_done(tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text(GOOD)
    spec = load(str(tmp_path / "p.toml"))
    assert isinstance(spec, Materialise)
    assert (spec.name, spec.path, spec.partition_by, spec.continuous) == ("orders", "/lake/orders", ("day",), True)
    assert spec.source.store == "/history"
    assert "headers" in spec.source.columns
    assert (spec.source.trigger_records_max, spec.source.trigger_bytes_max) == (500, None)
    assert spec.columns == {"day": "to_date(timestamp)"}
    assert spec.spark.settings == {"spark.sql.shuffle.partitions": "4"}
    plain = parse(minimal())
    assert isinstance(plain, Materialise)
    assert (spec.spark.nice, plain.spark.nice) == (0, PIPELINE_NICE)
    assert (spec.spark.spare_processors, plain.spark.spare_processors) == (1, 0)
    assert plain.source.starting.rest == -2, "from the beginning"
    assert plain.source.trigger_bytes_max == PIPELINE_BATCH_BYTES
    audit = parse({"pipeline": "audit", "name": "a", "source": {"store": "/x", "topicPattern": ".*"}})
    assert isinstance(audit, Audit)


@pytest.mark.parametrize("kind", ["materialise", "replay"])
def test_what_the_starting_offsets_do_not_name_is_read_from_the_beginning(kind: str) -> None:
    """As where they are left out; a stream of one's own begins there at its end."""
    offsets = '{"t": {"0": 23}}'
    source = {"store": "/s", "topic": "t", "startingOffsets": offsets}
    spec = parse(replayed(source=source) if kind == "replay" else minimal(source=source))
    assert isinstance(spec, Materialise | Replay)
    assert spec.source.starting == Bound(EARLIEST, {"t": {0: 23}}, None)
    assert parse_options(source, streaming=True).starting.rest == LATEST
    late = parse(minimal(source={**source, "startingOffsets": "latest"}))
    assert isinstance(late, Materialise)
    assert late.source.starting.rest == LATEST


def minimal(**more: Any) -> dict[str, Any]:
    made = {"pipeline": "materialise", "name": "p", "source": {"store": "/s", "topic": "t"}, "table": {"path": "/t"}}
    return {name: value for name, value in {**made, **more}.items() if value is not None}


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (
            {"pipeline": "copy"},
            "Key pipeline must be one of materialise, audit, statistics, replay, compact, not 'copy'",
        ),
        ({"name": "a/b"}, "Key name must be"),
        ({"name": "a "}, "Key name must be"),
        ({"sauce": {}}, "There is no section 'sauce'; there are: source, decode, columns, table, run, spark."),
        ({"table": {"path": "/t", "pth": 1}}, r"Section \[table\] has no key 'pth'; it has: path, format, catalog"),
        ({"table": None}, r"Key path of section \[table\] is missing"),
        ({"table": 3}, r"Key table must be a section: \[table\]"),
        ({"table": {"path": "/t", "partition_by": "day"}}, "must be a list of columns"),
        ({"table": {"path": "/t", "partition_by": ["a", "a"]}}, "names each column once"),
        ({"table": {"path": "/t", "file_bytes": 0}}, "must be a number from 1 to"),
        ({"table": {"path": "/t", "compression": "zip"}}, "one of none, snappy, gzip, lz4, zstd, not 'zip'"),
        ({"run": {"continuous": "yes"}}, r"Key continuous of section \[run\] must be true or false"),
        ({"run": {"poll_seconds": True}}, "a number of seconds"),
        ({"source": {"store": "/s", "topic": "t", "pushFilters": True}}, "has no key 'pushFilters'"),
        ({"source": {"store": "/s", "topic": ["t"]}}, "must be a text, a number or true or false"),
        ({"source": {"store": "/s"}}, "Option topic is missing"),
        ({"decode": {"value": "json"}}, "need each other"),
        ({"decode": {"schema": "a int"}}, "need each other"),
        ({"decode": {"value": "avro"}}, "one of binary, string, json, not 'avro'"),
        ({"decode": {"function": "os"}}, "module:name"),
        ({"columns": {"day": 3}}, "must be a text"),
        ({"spark": {"settings": 1}}, "Key settings of section .* must be a table of names"),
        ({"spark": {"master": 1}}, "must be a text"),
        (
            {"spark": {"spare_processors": -1}},
            r"Key spare_processors of section \[spark\] must be a number from 0 to 1024",
        ),
        ({"spark": {"nice": -1}}, r"Key nice of section \[spark\] must be a number from 0 to 19"),
    ],
)
def test_what_is_wrong_is_told_in_one_sentence(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parse(minimal(**wrong))


def replayed(**more: Any) -> dict[str, Any]:
    made = {
        "pipeline": "replay",
        "name": "r",
        "source": {"store": "/s", "topic": "t"},
        "target": {"bootstrap": "b:1", "topic": "u"},
        "run": {"checkpoint": "/c"},
    }
    return {**made, **more}


def test_a_replay_says_from_where_into_what_and_how_fast() -> None:
    target = {"bootstrap": "b:1", "topic": "u", "partition": "keep", "compression": "zstd", "batchBytes": 9}
    run = {"checkpoint": "/c", "records_per_second": 5, "mb_per_second": 0.5, "continuous": True}
    spec = parse(replayed(target=target, run=run, transform={"function": "shop:clean"}))
    assert isinstance(spec, Replay)
    assert (spec.checkpoint, spec.keeps_partitions, spec.function) == ("/c", True, "shop:clean")
    assert (spec.records_per_second, spec.bytes_per_second, spec.continuous) == (5.0, 500_000.0, True)
    assert (spec.target.topic, spec.target.compression.name, spec.target.batch_bytes) == ("u", "ZSTD", 9)
    assert spec.target.include_identity
    assert "headers" in spec.source.columns
    assert (spec.source.starting.rest, spec.source.trigger_bytes_max) == (-2, REPLAY_BATCH_BYTES)
    plain = parse(replayed(target={"bootstrap": "b:1", "topic": "u", "identity": False}))
    assert isinstance(plain, Replay)
    assert not plain.target.include_identity
    assert not plain.keeps_partitions
    assert plain.records_per_second is plain.bytes_per_second is None


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"run": {}}, r"Key checkpoint of section \[run\] is missing"),
        ({"target": {"bootstrap": "b:1"}}, r"Key topic of section \[target\] is missing"),
        ({"target": {"topic": "u"}}, "Option bootstrap is missing"),
        ({"target": {"bootstrap": "b:1", "topic": "u", "partition": 3}}, "must be one of key, keep, not 3"),
        ({"target": {"bootstrap": "b:1", "topic": "u", "identity": "yes"}}, "must be true or false, not 'yes'"),
        ({"target": {"bootstrap": "b:1", "topic": "u", "compression": "zip"}}, "Option compression must be one of"),
        ({"run": {"checkpoint": "/c", "records_per_second": 0}}, "must be a number above 0, not 0"),
        ({"run": {"checkpoint": "/c", "mb_per_second": True}}, "must be a number above 0, not True"),
        ({"transform": {"function": "clean"}}, r"Key function of section \[transform\] must be module:name"),
        ({"source": {"store": "/s", "topic": "t", "includeHeaders": True}}, "has no key 'includeHeaders'"),
    ],
)
def test_what_is_wrong_of_a_replay_is_told(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parse(replayed(**wrong))


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"p\.toml cannot be read: No such file"):
        load(str(tmp_path / "p.toml"))
    (tmp_path / "p.toml").write_text("pipeline = ")
    with pytest.raises(UsageError, match="is no TOML"):
        load(str(tmp_path / "p.toml"))
    (tmp_path / "p.toml").write_text("pipeline = 'x'")
    with pytest.raises(UsageError, match=r"p\.toml: Key pipeline must be"):
        load(str(tmp_path / "p.toml"))


def test_columns_are_added_and_widened_and_nothing_else() -> None:
    table = (Column("offset", "bigint"), Column("amount", "int"), Column("name", "string"))
    new = (Column("offset", "bigint"), Column("amount", "bigint"), Column("place", "string"))
    after = evolved(table, new)
    assert after == (Column("offset", "bigint"), Column("amount", "bigint"), Column("name", "string"), new[2])
    assert evolved(after, table) == after, "an older run's rows still fit"
    with pytest.raises(UsageError, match="Column 'amount' is int in the table, and would be string"):
        evolved(table, (Column("amount", "string"),))
    with pytest.raises(UsageError, match="is called 'name' in the table"):
        evolved(table, (Column("Name", "string"),))


OLD = "struct<a b:bigint,n-1:array<map<string,struct<1x:decimal(10,2),plain:int>>>>"
NEW = "struct<`a b`:bigint,`n-1`:array<map<string,struct<1x:decimal(10,2),plain:int>>>>"


@pytest.mark.parametrize("table", [OLD, NEW])
def test_types_are_the_same_however_the_names_in_them_are_quoted(table: str) -> None:
    """Earlier versions quoted none."""
    known, rows = (Column("a`b", table),), (Column("a`b", NEW),)
    assert evolved(known, rows) == rows
    quoted = "struct<`a b`:bigint,`n-1`:array<map<string,struct<`1x`:decimal(10,2),`plain`:int>>>>"
    assert ddl(known) == ddl(rows) == f"`a``b` {quoted}"
    with pytest.raises(UsageError, match="Column 'a`b' is struct"):
        evolved(known, (Column("a`b", NEW.replace("plain", "`pl-n`")),))


@pytest.mark.parametrize("kind", ["bigint", "decimal(10,2)", "interval day to second", "array<int>", "map<int,int>"])
def test_a_type_without_names_is_as_it_was(kind: str) -> None:
    assert ddl([Column("a", kind), Column("b", kind)]) == f"`a` {kind}, `b` {kind}"


def test_names_in_a_type_may_hold_what_types_are_written_with() -> None:
    kind = "struct<`a``,b:<>`:struct<` `:int>,`)`:map<string,int>>"
    assert ddl([Column("a", kind)]) == f"`a` {kind}"
