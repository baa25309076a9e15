"""Rows a second into Apache Kafka, by our writer and by Spark's own sink: each into a broker of its own, one session.

The rows lie in Spark's memory, made once: keys of 8 digits, values of letters and digits. Both wait for `acks=all`.
Tuned, Kafka's sink has batches as large as ours, and a linger that fills them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from benchmarks.load.cases import About, Better, Entrant, Figures, Target, delete_topics, make_topic
from benchmarks.load.raw.raw_links import Link, log_ends
from benchmarks.load.rivals import KAFKA, Durability
from benchmarks.spark.data import PARTITIONS, Data
from benchmarks.spark.queries import Session
from headrace.wire.compression import Compression

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WRITER: Final = "headrace-writer"
"""An Apache Kafka broker that our writer writes to."""
SHAPES: Final = {"100b": (2_000_000, 100), "1k": (500_000, 1024)}
TASKS: Final = 4
KAFKA_TUNED: Final = {"kafka.batch.size": str(512 * 1024), "kafka.linger.ms": "20", "kafka.buffer.memory": "134217728"}
COMMON: Final[Mapping[str, Any]] = {
    "who": WRITER,
    "against": KAFKA,
    "ours": Durability.PAGE_CACHE,
    "theirs": Durability.PAGE_CACHE,
    "cost_targets": {},
    "unit": "rows/s",
    "target": Target(1.0, Better.HIGHER),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """One batch write of all rows into a new topic; the rate is rows per second, from `write` to the end."""

    about: About
    session: Session
    data: Data
    tuned: bool
    _frames: dict[str, DataFrame] = field(default_factory=dict)
    _topics: list[str] = field(default_factory=list)

    def run(self, entrant: Entrant) -> Figures:
        frame, topic = self._frame(), f"spark-{self.data.name}-{len(self._topics)}"
        self._topics.append(topic)
        make_topic(entrant, topic, PARTITIONS, {"retention.ms": "-1"})
        kind, options = self._options(entrant, topic)
        begun = time.perf_counter()
        frame.write.format(kind).options(**options).mode("append").save()
        seconds = time.perf_counter() - begun
        link = Link(entrant.rival.bootstrap)
        written = sum(log_ends(link, topic, range(PARTITIONS)).values())
        link.close()
        assert written == self.data.records, f"{written} rows were written instead of {self.data.records}"
        delete_topics(entrant.rival, f"spark-{self.data.name}")
        return Figures(rate=written / seconds, others={"seconds": seconds, "mb_per_s": self.data.megabytes / seconds})

    def _frame(self) -> DataFrame:
        """In memory."""
        if not self._frames:
            value = f"lpad(string(id), {self.data.record_bytes - 8}, sha2(string(id), 512))"
            rows = self.session.spark.range(0, self.data.records, 1, TASKS)
            made = rows.selectExpr("lpad(string(id), 8, '0') as key", f"{value} as value").cache()
            made.count()
            self._frames["rows"] = made
        return self._frames["rows"]

    def _options(self, entrant: Entrant, topic: str) -> tuple[str, Mapping[str, str]]:
        codec, bootstrap = self.data.compression.name.lower(), entrant.rival.bootstrap
        if entrant.rival.name == WRITER:
            return "headrace", {"bootstrap": bootstrap, "topic": topic, "compression": codec}
        chosen = {"kafka.bootstrap.servers": bootstrap, "topic": topic, "kafka.compression.type": codec}
        return "kafka", chosen | {"kafka.acks": "all"} | (KAFKA_TUNED if self.tuned else {})


def writes(session: Session, *, records: int | None = None) -> list[Write]:
    """All. With `records`, at most so many rows."""
    found = []
    for shape, (count, size) in SHAPES.items():
        for codec in (Compression.NONE, Compression.LZ4):
            name, rows = f"write-{shape}-{codec.name.lower()}", min(count, records or count)
            data = Data(name=name, records=rows, record_bytes=size, compression=codec)
            for tuned in (False, True):
                about = About(
                    name=f"spark-{name}{'-tuned' if tuned else ''}",
                    title=f"{rows:,} rows of {size} B, {codec.name.lower()}, into Apache Kafka; "
                    f"{'tuned' if tuned else 'default options'}",
                    **COMMON,
                )
                found.append(Write(about=about, session=session, data=data, tuned=tuned))
    return found
