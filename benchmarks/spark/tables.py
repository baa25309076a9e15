"""History to a table of Parquet files, as its users make one.

Our pipeline `materialise` does not pass rows through Java. The rival is Spark's own source for Kafka and its Parquet
writer. Both write all columns with their default compression: zstd, and Spark's snappy. Ours commits ranges and files
as one, and then merges small files. The time begins with the plan, and ends with the last of that. Sizes are in
megabytes.

Only Kafka's source is tuned. Our tasks are as large as the table's files by default. Smaller ones write small files,
which are merged and so written twice.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from benchmarks.load.cases import About, Entrant, Figures
from benchmarks.spark.cases import cpu_s, directory
from benchmarks.spark.data import Data, HeadraceWithStore
from benchmarks.spark.queries import Session, ToParquet, frame, options, rows_in
from headrace.spark.pipelines import materialise, state_of
from headrace.spark.pipelines.spec import Materialise, parse


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """All records of a topic, once; the rate is records per second."""

    about: About
    session: Session
    data: Data
    tuned: bool

    def run(self, entrant: Entrant) -> Figures:
        rival, action = entrant.rival, ToParquet()
        self.data.fill(entrant)
        spark = self.session.spark  # started before the time runs
        with directory() as out:
            before, begun = cpu_s(rival), time.perf_counter()
            if isinstance(rival, HeadraceWithStore):
                materialise(lambda: spark, self._spec(rival, f"file://{out}"))
            else:
                action.run(frame(self.session, rival, self.data, action, tuned=self.tuned), out)
            seconds = time.perf_counter() - begun
            used = cpu_s(rival) - before
            if isinstance(rival, HeadraceWithStore):
                files = state_of(f"file://{out}").files.values()
                rows, written = sum(file.records for file in files), sum(file.bytes for file in files)
            else:
                rows, written = rows_in(out), sum(file.stat().st_size for file in out.rglob("*.parquet"))
        assert rows == self.data.records, f"{rows} rows were written instead of {self.data.records}"
        figures = {
            "seconds": seconds,
            "mb_per_s": self.data.megabytes / seconds,
            "broker_cpu_s": used,
            "written_mb": written / 1e6,
        }
        return Figures(rate=rows / seconds, others=figures)

    def _spec(self, rival: HeadraceWithStore, url: str) -> Materialise:
        _, chosen = options(rival, self.data, tuned=False)
        wanted = {"pipeline": "materialise", "name": "bench", "source": dict(chosen)}
        spec = parse(wanted | {"table": {"path": url}})
        assert isinstance(spec, Materialise)
        return spec
