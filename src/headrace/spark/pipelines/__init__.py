"""Pipelines on Spark: history as tables, complete and exact, and proof of it. Also ``headrace pipeline run FILE.toml``.

    from headrace.spark.pipelines import materialise, spec, table

    materialise(lambda: spark, spec.load("orders.toml"))
    table(spark, "/lake/orders").createOrReplaceTempView("orders")

`spec` reads the file. In `tables`, `ranges` finds the next offsets, `shaping` and `writing` make files of them in the
workers, and `progress` is the table's log. `materialising` is the run, `compacting` and `evolving` change a table, and
`reading` reads it.

In `audit`, `auditing` proves durable history. In `statistics`, `surveying` counts topics. In `replays`, `replaying`
writes topics into another one: `log` is its checkpoint, `forwarding` and `recalling` are its workers' code, and
`pacing` its rate. `merging` has brokers compact history.
"""

from headrace.spark.pipelines.merging import compact
from headrace.spark.pipelines.replays.replaying import planned_replay, replay
from headrace.spark.pipelines.tables.materialising import Outcome, Planned, materialise, planned
from headrace.spark.pipelines.tables.reading import state_of, table, vacuum

__all__ = [
    "Outcome",
    "Planned",
    "compact",
    "materialise",
    "planned",
    "planned_replay",
    "replay",
    "state_of",
    "table",
    "vacuum",
]
