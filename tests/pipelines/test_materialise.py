"""Topics into a table, on Spark: each record once, whatever the columns; a late run stops; what is old is caught up."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from headrace.base.errors import CorruptData, UsageError
from headrace.spark import options as reading
from headrace.spark.pipelines import materialise, planned, state_of, table, vacuum
from headrace.spark.pipelines.__main__ import main
from headrace.spark.pipelines.meter import Meter
from headrace.spark.pipelines.spec import Materialise, parse
from headrace.spark.pipelines.tables.materialising import _Run
from headrace.spark.pipelines.tables.progress import (
    APPEND,
    BEGIN,
    COMPACT,
    Claim,
    Column,
    Commit,
    ConcurrentRun,
    File,
    ProgressLog,
    State,
)
from headrace.spark.pipelines.tables.reading import _through_objects
from headrace.spark.pipelines.tables.shaping import Shape
from headrace.spark.read.follow import Follower
from headrace.spark.read.plan import Task
from headrace.storage.objects import open_objects
from headrace.wire.batches import encode_batch
from headrace.wire.records import Record
from tests.pipelines.oracle import consumer_rows, differences, listed, rows
from tests.spark.world import World, consumed, random_batch, world
from tests.threads import joined
from tools.servers.s3_server import S3Server

ROOT = Path(__file__).resolve().parents[2]
WHOSE: Any = {"pipeline": "p", "run": "r", "time_ms": 1}
pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("world")) as running:
        yield running


def spec_of(made: World, path: Path, topic: str, source: dict[str, Any] | None = None, **sections: Any) -> Materialise:
    given = {"store": made.store, "bootstrap": made.bootstrap, "includeHeaders": True, **(source or {})}
    given |= {} if "topicPattern" in given else {"topic": topic}
    table = {"path": str(path), **sections.pop("table", {})}
    spec = parse({"pipeline": "materialise", "name": topic, "source": given, "table": table, **sections})
    assert isinstance(spec, Materialise)
    return spec


def fill(made: World, topic: str, count: int, seed: int, partitions: int = 2) -> None:
    random = Random(seed)
    made.produce(topic, [(at % partitions, random_batch(random)) for at in range(count)])


def json_batch(*values: Any) -> bytes:
    texts = [value if isinstance(value, bytes | None) else json.dumps(value).encode() for value in values]
    return encode_batch([Record(at, 1_767_225_600_000, b"k%d" % at, text) for at, text in enumerate(texts)])


def test_every_record_is_in_the_table_once_run_after_run(made: World, spark: Any, tmp_path: Path) -> None:
    made.create("t", 2, segment_bytes="8192")
    path = tmp_path / "table"
    spec = spec_of(made, path, "t", {"maxRecordsPerTrigger": 150})
    for seed in range(2):
        fill(made, "t", 60, seed)
        outcome = materialise(lambda: spark, spec)
        wanted = consumed(made.bootstrap, ["t"])
        assert differences(consumer_rows(path), wanted) == []
        assert outcome.commits >= 2
    assert state_of(str(path)).records == len(wanted)
    nothing = materialise(lambda: pytest.fail("no session for nothing new"), spec)
    assert nothing.commits == 0
    frame = table(spark, str(path))
    assert sorted(map(tuple, frame.select("partition", "offset").collect())) == [row[1:3] for row in wanted]
    frame.createOrReplaceTempView("orders")
    assert spark.sql("select count(*) from orders where partition = 1").head()[0] == sum(row[1] for row in wanted)


@pytest.mark.parametrize(("most", "tasks"), [(1 << 20, range(4, 5)), (3_000, range(5, 40))])
def test_where_there_is_much_files_are_large(
    made: World, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, tasks: range
) -> None:
    monkeypatch.setattr(reading, "PARTITION_BYTES", 1_000)
    topic = f"much-{most}"
    made.create(topic, 2, segment_bytes="8192")
    fill(made, topic, 120, 0)
    spec, told = spec_of(made, tmp_path / "table", topic, table={"file_bytes": most}), list[int]()
    write = Shape.write

    def counted(shape: Shape, tasks: Sequence[Task]) -> list[File]:
        told.append(len(tasks))
        return write(shape, tasks)

    monkeypatch.setattr(Shape, "write", counted)
    materialise(lambda: spark, spec)
    size = sum(each.bytes for each in planned(spec_of(made, tmp_path / "other", topic)))
    assert size > 20_000
    assert len(told) == 1
    assert told[0] in tasks
    assert differences(consumer_rows(tmp_path / "table"), consumed(made.bootstrap, [topic])) == []


def documented(path: Path) -> list[str]:
    """The statements of docs/PIPELINES.md, for this table."""
    text = (ROOT / "docs" / "PIPELINES.md").read_text().split("```sql\n")[1].split("```")[0]
    lines = [line.partition("--")[0] for line in text.replace("/lake/orders", str(path)).splitlines()]
    return [each.strip() for each in " ".join(lines).split(";") if each.strip()]


def test_the_documented_sql_says_what_a_table_holds(made: World, spark: Any, tmp_path: Path) -> None:
    """The view is made when there is only the beginning. Then files are merged, and a topic was created again."""
    path, log = tmp_path / "table", ProgressLog(open_objects(str(tmp_path / "table")))
    begin = Commit(version=0, action=BEGIN, pipeline="p", run="r", time_ms=1, columns=(Column("offset", "bigint"),))
    state = log.commit(State(), begin)
    view, files, progress = documented(path)
    spark.sql(view)
    try:
        assert spark.sql(files).collect() == spark.sql(progress).collect() == []
        a, b, c = (File(f"data/{name}", 1, 1, {}) for name in "abc")
        for change in (
            Commit(version=1, action=APPEND, added=(a,), claims=(Claim("t", "i", 0, 5, 100),), **WHOSE),
            Commit(version=2, action=APPEND, added=(b,), claims=(Claim("t", "i", 0, 110, 120),), **WHOSE),
            Commit(version=3, action=COMPACT, added=(c,), removed=("data/a",), **WHOSE),
            Commit(version=4, action=APPEND, claims=(Claim("t", "j", 0, 0, 7),), **WHOSE),
        ):
            state = log.commit(state, change)
        assert sorted(row.path for row in spark.sql(files).collect()) == sorted(state.files) == ["data/b", "data/c"]
        found = {tuple(row) for row in spark.sql(progress).collect()}
        assert found == {("t", "i", 0, 5, 120, 105), ("t", "j", 0, 0, 7, 7)}
    finally:
        spark.sql("drop view progress")


def test_a_topic_in_which_nothing_is_yet_ends_no_run_later(made: World, spark: Any, tmp_path: Path) -> None:
    """Nor does a name that Spark would take for a hidden file hide rows."""
    made.create("_e-1", 1)
    fill(made, "_e-1", 3, 1, 1)
    path, stop = tmp_path / "table", threading.Event()
    spec = spec_of(made, path, "e", {"topicPattern": "_?e-.*"})
    materialise(lambda: spark, spec)
    assert table(spark, str(path)).count() == len(consumed(made.bootstrap, ["_e-1"]))
    made.create("e-2", 1)

    class Stopping(Meter):
        commits = 0

        def done(self, records: int, size: float, **facts: Any) -> None:
            self.commits += 1
            if self.commits == 3:
                stop.set()

    assert materialise(lambda: spark, spec, meter=Stopping(), stop=stop).commits == 1
    assert materialise(lambda: pytest.fail("no session for nothing new"), spec).commits == 0


def test_a_table_on_an_object_store(
    made: World, spark: Any, s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commits by conditional puts; read through our own road, with no jar for the store."""
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
        monkeypatch.setitem(spark.sparkContext.environment, name, value)  # the workers'
    made.create("o", 2)
    fill(made, "o", 20, 5)
    url = s3.url("table")
    spec = spec_of(made, tmp_path, "o", {"maxRecordsPerTrigger": 60}, table={"path": url})
    outcome = materialise(lambda: spark, spec)
    assert outcome.commits > 1
    wanted = consumed(made.bootstrap, ["o"])
    objects = open_objects(url)
    for meta in objects.list(""):
        open_objects(str(tmp_path / "copy")).put(meta.key, objects.get(meta.key))
    assert differences(consumer_rows(tmp_path / "copy"), wanted) == []
    found = table(spark, url).select("partition", "offset").collect()
    assert sorted(map(tuple, found)) == [row[1:3] for row in wanted]


def test_a_run_that_is_too_late_adds_nothing(made: World, spark: Any, tmp_path: Path) -> None:
    made.create("two", 1)
    fill(made, "two", 10, 1, 1)
    path = tmp_path / "table"
    spec = spec_of(made, path, "two")
    late = _Run(spec, Follower(spec.source), lambda: spark, Meter(), threading.Event())
    materialise(lambda: spark, spec)
    wanted = consumed(made.bootstrap, ["two"])
    with pytest.raises(ConcurrentRun):
        late.begin()
    fill(made, "two", 10, 2, 1)
    late = _Run(spec, Follower(spec.source), lambda: spark, Meter(), threading.Event())
    materialise(lambda: spark, spec)
    wanted = consumed(made.bootstrap, ["two"])
    with pytest.raises(ConcurrentRun):
        late.forward()
    assert differences(consumer_rows(path), wanted) == []
    left = {str(file.relative_to(path)) for file in (path / "data").iterdir()} - set(listed(path))
    assert vacuum(str(path), older_than_hours=0) == len(left)
    assert differences(consumer_rows(path), wanted) == []


def test_a_table_that_began_late_is_filled_backwards(made: World, spark: Any, tmp_path: Path) -> None:
    made.create("old", 2, segment_bytes="4096")
    fill(made, "old", 40, 1)
    path = tmp_path / "table"
    spec = spec_of(made, path, "old", {"startingOffsets": "latest", "maxRecordsPerTrigger": 60})
    materialise(lambda: spark, spec)
    assert listed(path) == []
    fill(made, "old", 10, 2)
    materialise(lambda: spark, spec)
    wanted = consumed(made.bootstrap, ["old"])
    found = consumer_rows(path)
    assert 0 < len(found) < len(wanted)
    plan = planned(spec, backfill=True)
    assert {each.start for each in plan} == {0}
    assert sum(each.end - each.start for each in plan) == len(wanted) - len(found)
    assert all(each.bytes > 0 for each in plan)
    before = state_of(str(path)).version
    materialise(lambda: spark, spec, backfill=True)
    assert differences(consumer_rows(path), wanted) == []
    assert state_of(str(path)).version - before > 2, "in portions"
    assert planned(spec, backfill=True) == []


def test_json_becomes_columns_and_the_schema_may_grow(made: World, spark: Any, tmp_path: Path) -> None:
    made.create("j", 1)
    made.produce("j", [(0, json_batch({"id": 1, "city": "Köln"}, b"{", None, {"id": 2**40, "new": 1.5}))])
    path = tmp_path / "table"
    decode = {"value": "json", "key": "string", "schema": "id bigint, city string"}
    sections: dict[str, Any] = {
        "source": {"includeHeaders": False},
        "columns": {"day": "to_date(timestamp)"},
        "table": {"partition_by": ["day", "city"]},
    }
    materialise(lambda: spark, spec_of(made, path, "j", decode=decode, **sections))
    made.produce("j", [(0, json_batch({"id": 3, "city": "a/b=c", "new": 2.5}))])
    wider = {**decode, "schema": "id bigint, city string, new double"}
    materialise(lambda: spark, spec_of(made, path, "j", decode=wider, **sections))
    found = table(spark, str(path)).orderBy("offset").select("offset", "key", "id", "city", "new", "value", "day")
    told = [(*row[:5], row[5] and bytes(row[5]), str(row[6])) for row in found.collect()]
    assert told == [
        (0, "k0", 1, "Köln", None, None, "2026-01-01"),
        (1, "k1", None, None, None, b"{", "2026-01-01"),
        (2, "k2", None, None, None, None, "2026-01-01"),
        (3, "k3", 2**40, None, None, None, "2026-01-01"),
        (4, "k0", 3, "a/b=c", 2.5, None, "2026-01-01"),
    ]
    assert all("new" in row or row["offset"] < 4 for row in rows(path))
    narrow = {**decode, "schema": "id string, city string"}
    made.produce("j", [(0, json_batch({}))])
    with pytest.raises(UsageError, match="Column 'id' is bigint in the table, and would be string"):
        materialise(lambda: spark, spec_of(made, path, "j", decode=narrow, **sections))
    with pytest.raises(UsageError, match=r"is partitioned by \[day, city\], not \[\]"):
        planned(spec_of(made, path, "j", decode=decode, columns={"day": "to_date(timestamp)"}))


WHOLE = (b'{"id":1}', b' \t{"id":1}\r\n ', b'{"id":1, "other": [1, {"x": "]}"}]}', b'{"city":"a}{]","id":1}')
NONE = (
    *(
        b'{"id":1}\n{"id":2}',
        b'{"id":1}{"id":2}',
        b'{"id":1},{"id":2}',
        b'{"id":1} trailing',
        b'{"id":1}\0',
        b'{"id":1}}',
    ),
    *(
        b'{"id":1}] x',
        b'{"id":1}],"x":[2',
        b'{"id":1},"x":2',
        b'{"id":1},',
        b',{"id":1}',
        b'],"v":[{"id":1}',
        b'{"id":1}\xff',
    ),
    *(b" ", b"", b"\n", b"null", b"1", b'[{"id":1}]', b'{"id":1', b'{"id":1,"city":"x'),
)


def test_a_value_that_is_more_or_less_than_one_json_stays(made: World, spark: Any, tmp_path: Path) -> None:
    """The value stays whatever follows the first JSON, and where there is none. A JSON value of another type gives the
    fields that are there."""
    made.create("more", 1)
    path = tmp_path / "table"
    decode = {"value": "json", "schema": "id bigint, city string"}
    mixed = b'{"id":"x","city":"K"}'
    made.produce("more", [(0, json_batch(*WHOLE, *NONE, mixed, None))])
    materialise(lambda: spark, spec_of(made, path, "more", {"includeHeaders": False}, decode=decode))
    found = table(spark, str(path)).orderBy("offset").select("id", "city", "value").collect()
    told = [(row.id, row.city, None if row.value is None else bytes(row.value)) for row in found]
    assert told[: len(WHOLE)] == [*[(1, None, None)] * 3, (1, "a}{]", None)]
    assert told[len(WHOLE) : -2] == [(None, None, value) for value in NONE]
    assert told[-2:] == [(None, "K", mixed), (None, None, None)]


NAMES = ("a b", "n-1", "größe", "x`y", "1", "a:b,<c>", "select")


def test_fields_in_a_column_may_have_any_name(made: World, spark: Any, tmp_path: Path) -> None:
    """In structs, and in these in arrays and maps; read by Spark's own readers and by ours."""
    made.create("named", 1)
    path = tmp_path / "table"
    quoted = [f"`{name.replace('`', '``')}`" for name in NAMES]
    inner = f"struct<{', '.join(f'{name}: bigint' for name in quoted)}>"
    decode = {"value": "json", "schema": f"s {inner}, m map<string, array<{inner}>>"}
    spec = spec_of(made, path, "named", {"includeHeaders": False}, decode=decode)
    value = dict(zip(NAMES, range(len(NAMES)), strict=True))
    wanted = ({"s": value, "m": {"k": [value, None]}}, {"s": None, "m": None})
    for count in (1, 2):
        made.produce("named", [(0, json_batch(*wanted))])
        materialise(lambda: spark, spec)
        found = table(spark, str(path)).orderBy("offset").select("s", "m").collect()
        assert [row.asDict(recursive=True) for row in found] == [*wanted] * count
    root, files = str(path), [*state_of(str(path)).files.values()]
    through = _through_objects(spark, root, files, state_of(root)).orderBy("offset").select("s", "m").collect()
    assert through == found


def test_a_table_whose_types_an_earlier_version_wrote_is_read(made: World, spark: Any, tmp_path: Path) -> None:
    """It quoted no name in them, so that it could not open the table itself."""
    made.create("unquoted", 1)
    path = tmp_path / "table"
    decode = {"value": "json", "schema": "s struct<`a b`: bigint, c: int>"}
    spec = spec_of(made, path, "unquoted", {"includeHeaders": False}, decode=decode)
    made.produce("unquoted", [(0, json_batch({"s": {"a b": 5, "c": 6}}))])
    materialise(lambda: spark, spec)
    commit = path / "_headrace_progress" / f"{1:020d}.json"
    text = commit.read_text()
    assert "struct<`a b`:bigint,c:int>" in text
    commit.write_text(text.replace("`a b`", "a b"))
    assert [tuple(row.s) for row in table(spark, str(path)).collect()] == [(5, 6)]
    made.produce("unquoted", [(0, json_batch({"s": {"a b": 7}}))])
    materialise(lambda: spark, spec)
    assert [tuple(row.s) for row in table(spark, str(path)).orderBy("offset").collect()] == [(5, 6), (7, None)]


def shout(frame: Any) -> Any:
    return frame.selectExpr("topic", "partition", "offset", "upper(cast(key as string)) as loud").repartition(2)


def forget(frame: Any) -> Any:
    return frame.select("key")


def test_a_users_function_makes_the_rows(made: World, spark: Any, tmp_path: Path) -> None:
    made.create("f", 1)
    made.produce("f", [(0, json_batch(1, 2, 3))])
    path = tmp_path / "table"
    materialise(lambda: spark, spec_of(made, path, "f", decode={"function": f"{__name__}:shout"}))
    assert sorted((row["offset"], row["loud"]) for row in rows(path)) == [(0, "K0"), (1, "K1"), (2, "K2")]
    made.produce("f", [(0, json_batch(4))])
    for function, words in (
        (f"{__name__}:forget", "have no column 'topic'"),
        (f"{__name__}:nowhere", "cannot be imported"),
    ):
        with pytest.raises(UsageError, match=words):
            materialise(lambda: spark, spec_of(made, path, "f", decode={"function": function}))


def test_small_files_are_merged_and_readers_keep_theirs(made: World, spark: Any, tmp_path: Path) -> None:
    made.create("s", 1)
    path = tmp_path / "table"
    spec = spec_of(made, path, "s", {"maxRecordsPerTrigger": 10})
    fill(made, "s", 40, 3, 1)
    small = spec_of(made, path, "s", {"maxRecordsPerTrigger": 10}, table={"compact": False})
    materialise(lambda: spark, small)
    before = table(spark, str(path))
    many = len(listed(path))
    assert many > 8
    fill(made, "s", 1, 4, 1)
    materialise(lambda: spark, spec)
    wanted = consumed(made.bootstrap, ["s"])
    assert len(listed(path)) < many / 4
    assert differences(consumer_rows(path), wanted) == []
    assert before.count() <= len(wanted), "its files are still there"


def test_a_continuous_run_takes_what_comes_until_it_is_stopped(made: World, spark: Any, tmp_path: Path) -> None:
    made.create("c", 1)
    path, stop, grown = tmp_path / "table", threading.Event(), threading.Event()

    class Watching(Meter):
        def done(self, records: int, size: float, **facts: Any) -> None:
            grown.set()

    spec = spec_of(made, path, "c", run={"continuous": True, "poll_seconds": 0.05})
    more = {"meter": Watching(), "stop": stop}
    work = threading.Thread(target=materialise, args=(lambda: spark, spec), kwargs=more, daemon=True)
    work.start()
    try:
        for seed in range(2):
            fill(made, "c", 5, seed, 1)
            while len(consumer_rows(path) if (path / "_headrace_progress").exists() else []) < len(
                consumed(made.bootstrap, ["c"])
            ):
                assert work.is_alive()
                assert grown.wait(60)
                grown.clear()
    finally:
        stop.set()
        joined(work)
    assert differences(consumer_rows(path), consumed(made.bootstrap, ["c"])) == []


def test_a_topic_made_anew_is_told(made: World, spark: Any, tmp_path: Path) -> None:
    made.create("n", 1)
    fill(made, "n", 3, 1, 1)
    spec = spec_of(made, tmp_path / "table", "n")
    materialise(lambda: spark, spec)
    made.delete("n")
    made.create("n", 1)
    fill(made, "n", 3, 2, 1)
    with pytest.raises(UsageError, match="the topic was made anew"):
        materialise(lambda: spark, spec)


def test_a_table_that_is_another_pipelines_is_refused(made: World, tmp_path: Path) -> None:
    made.create("p", 1)
    path = tmp_path / "table"
    run = _Run(spec_of(made, path, "p"), Follower(spec_of(made, path, "p").source))
    run.begin()
    with pytest.raises(UsageError, match="belongs to pipeline 'p', not 'q'"):
        planned(spec_of(made, path, "q", {"topicPattern": "p"}))
    with pytest.raises(UsageError, match="is of format parquet, not delta, which cannot be changed"):
        planned(spec_of(made, path, "p", table={"format": "delta"}))
    (path / "_headrace_progress" / f"{0:020d}.json").write_text("{}")
    with pytest.raises(CorruptData):
        state_of(str(path))
    with pytest.raises(UsageError, match="There is no table at"):
        state_of(str(tmp_path / "nothing"))


def test_a_dry_run_tells_bytes_and_writes_nothing(
    made: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made.create("d", 1)
    fill(made, "d", 5, 1, 1)
    file = tmp_path / "d.toml"
    file.write_text(
        f'pipeline = "materialise"\nname = "d"\n[source]\nbootstrap = "{made.bootstrap}"\ntopic = "d"\n'
        f'[table]\npath = "{tmp_path / "table"}"\n'
    )
    assert main([str(file), "--dry-run", "--json"]) == 0
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    ends = max(row[2] for row in consumed(made.bootstrap, ["d"])) + 1
    assert [(each["topic"], each["start"], each["end"]) for each in told if each["event"] == "plan"] == [("d", 0, ends)]
    assert told[-1]["bytes"] > 0
    assert not (tmp_path / "table").exists()
    file.write_text("x = 1")
    assert main([str(file)]) == 2
    assert capsys.readouterr().err.startswith("headrace: ")
