"""Pipelines on Spark: history as tables, complete and exact, and proof of it. Also ``headrace pipeline run FILE.toml``.

    from headrace.spark.pipelines import materialise, spec, table

    materialise(lambda: spark, spec.load("orders.toml"))
    table(spark, "/lake/orders").createOrReplaceTempView("orders")

`spec` reads the file, `ranges` says what is next, `shaping` and `writing` make files of it in the workers, `progress`
is the table's log, `materialising` the run, `compacting` and `evolving` what a table goes through, `tables` reads it.
`auditing` proves durable history, `surveying` counts topics. `replaying` writes topics into another one: `replay_log`
is its checkpoint, `forwarding` and `recalling` what its workers do, `pacing` its rate. `merging` has brokers compact
history.
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
