"""The cases of `make bench-spark`, and what is to be reached beside Spark's own source for Kafka."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from benchmarks.load.cases import About, Better, Target
from benchmarks.load.rivals import KAFKA, Durability
from benchmarks.spark.cases import AvailableNow, BesideProducer, MicroBatch, Read, SparkCase
from benchmarks.spark.data import STORED, Data
from benchmarks.spark.queries import Action, Count, Session, ToParquet
from benchmarks.spark.tables import Table
from headrace.base.limits import PIPELINE_NICE_MAX
from headrace.wire.compression import Compression

CODECS: Final = (Compression.NONE, Compression.LZ4, Compression.ZSTD)
SHAPES: Final = {"100b": (5_000_000, 100), "1k": (1_000_000, 1024)}
BIG_GB: Final = (1, 4, 16)
GIGABYTE: Final = 1024**3
DEFAULTS_RATIO: Final = 2.0
TUNED_RATIO: Final = 0.9
TUNED_RATIO_UNPACKED: Final = 0.7
BROKER_CPU_S_MAX: Final = 0.1
P99_FACTOR_MAX: Final = 1.1
MICRO_BATCH_MS_MAX: Final = 600.0


TITLES: Final = {"count": "count and sum of lengths", "parquet": "to Parquet"}
OF_ONE: Final = "100b-lz4"
"""The data of cases that do not run for each shape and codec."""
COMMON: Final[Mapping[str, Any]] = {
    "against": KAFKA,
    "ours": Durability.PAGE_CACHE,
    "theirs": Durability.PAGE_CACHE,
    "cost_targets": {},
}


def cases(session: Session, *, records: int | None = None) -> Sequence[SparkCase]:
    """All, those of the same data together. With `records`, each topic has at most so many."""
    found: list[SparkCase] = []
    for shape, (count, size) in SHAPES.items():
        for codec in CODECS:
            name = f"{shape}-{codec.name.lower()}"
            data = Data(name=name, records=min(count, records or count), record_bytes=size, compression=codec)
            for action, asked in (("count", Count()), ("parquet", ToParquet())):
                found += [_read(session, data, action, asked, tuned=tuned) for tuned in (False, True)]
            found += [_table(session, data, tuned=tuned) for tuned in (False, True)]
            if name == OF_ONE:
                found += _others(session, data)
    return found


def beside(session: Session, *, records: int | None = None) -> Sequence[BesideProducer]:
    """The effect of scans on a broker's producers. The scans run in an ordinary session, and in one that leaves
    producers a processor, with and without being kept to that. A last session has the lowest priority, on all
    processors and on the rest."""
    shape, codec = OF_ONE.split("-")
    count, size = SHAPES[shape]
    least, packed = min(count, records or count), Compression[codec.upper()]
    data = Data(name=f"{OF_ONE}-scanned", records=least, record_bytes=size, compression=packed)
    p99, found = Target(1.0, Better.LOWER, most=P99_FACTOR_MAX), []
    for name, how, nice, apart, kept in (
        ("", "", 0, False, False),
        ("-apart", " on the other processor", 0, True, False),
        ("-kept", " on the other processor, broker and producer kept to theirs", 0, True, True),
        ("-nice", f" with nice {PIPELINE_NICE_MAX}", PIPELINE_NICE_MAX, False, False),
        ("-both", f" on the other processor, with nice {PIPELINE_NICE_MAX}", PIPELINE_NICE_MAX, True, False),
    ):
        about = About(
            name=f"spark-beside-producer{name}",
            title=f"{_described(data)}: p99 of a producer during scans{how} by its p99 alone",
            unit="times",
            who=STORED,
            target=p99,
            **COMMON,
        )
        found.append(
            BesideProducer(about=about, session=session, data=data, tuned=True, nice=nice, apart=apart, kept=kept)
        )
    return found


def linear(session: Session, *, records: int | None = None) -> Sequence[Read]:
    """One kind of read of 1, 4 and 16 GB."""
    found = []
    for gigabytes in BIG_GB:
        count = gigabytes * GIGABYTE // 1024
        size = min(count, records or count)
        data = Data(name=f"{gigabytes}gb", records=size, record_bytes=1024, compression=Compression.NONE)
        found.append(_read(session, data, "count", Count(), tuned=True))
    return found


def _read(session: Session, data: Data, action: str, asked: Action, *, tuned: bool, hot: bool = False) -> Read:
    ratio = DEFAULTS_RATIO
    if tuned:
        ratio = TUNED_RATIO_UNPACKED if data.compression is Compression.NONE else TUNED_RATIO
    kind, how = ("hot-" if hot else ""), ("tuned" if tuned else "default options")
    cpu = Target(0.0, Better.LOWER, most=BROKER_CPU_S_MAX)
    about = About(
        name=f"spark-{kind}{data.name}-{action}{'-tuned' if tuned else ''}",
        title=f"{_described(data)}: {TITLES[action]}{', from the broker' if hot else ''}; {how}",
        unit="rows/s",
        who=STORED,
        target=Target(ratio, Better.HIGHER),
        more_targets={} if hot else {"broker_cpu_above_idle_s": cpu},
        **COMMON,
    )
    return Read(about=about, session=session, data=data, action=asked, tuned=tuned, hot=hot)


def _table(session: Session, data: Data, *, tuned: bool) -> Table:
    like = _read(session, data, "parquet", ToParquet(), tuned=tuned).about
    how = "tuned" if tuned else "default options"
    name = f"spark-{data.name}-table{'-tuned' if tuned else ''}"
    title = f"{_described(data)}: to a table of Parquet files, ours by `materialise`; {how}"
    about = replace(like, name=name, title=title, more_targets={})
    return Table(about=about, session=session, data=data, tuned=tuned)


def _others(session: Session, data: Data) -> list[SparkCase]:
    """Of the tail that only brokers have, streams, and what a broker's producers see of a scan."""

    def about(name: str, what: str, unit: str, target: Target) -> About:
        return About(name=f"spark-{name}", title=what, unit=unit, who=STORED, target=target, **COMMON)

    now = about(
        "available-now",
        f"{_described(data)}: a stream, available now; tuned",
        "rows/s",
        Target(TUNED_RATIO, Better.HIGHER),
    )
    micro = about(
        "micro-batch", "a stream's micro-batch of 300 records", "ms", Target(1.0, Better.LOWER, most=MICRO_BATCH_MS_MAX)
    )
    return [
        _read(session, data, "count", Count(), tuned=False, hot=True),
        _read(session, data, "count", Count(), tuned=True, hot=True),
        AvailableNow(about=now, session=session, data=data, tuned=True),
        MicroBatch(about=micro, session=session, data=data, tuned=True),
    ]


def _described(data: Data) -> str:
    size = "1 KB" if data.record_bytes == 1024 else f"{data.record_bytes} B"
    return f"{data.records:,} records of {size}, {data.compression.name.lower()}"
