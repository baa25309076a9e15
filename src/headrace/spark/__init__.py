"""The PySpark data source ``format("headrace")``: durable history, and the newer records on the brokers.

Spark sees `source` and `streaming`. For a read, `options` are parsed, `extent` makes one offset range of each
partition, and `plan` makes tasks of these. `reading` carries a task out: from the store, from `brokers`, and around
damage (`salvage`, `quarantine`). `follow` handles a stream's offsets, and `filters` the offsets that a query's filters
leave. `decode` turns batches into Arrow; `kernel` is its hot loop and `plain` its slow twin. `repeats` leaves out
records that tasks wrote again.

For a write, Spark sees `writers`, and `sink` parses its options. `writing` carries a task out: `rows` come out of Arrow
and are packed by `packing` (`packkernel`, and the slow twin `plainpacking`).

`java`, `home` and `session` start Spark where only pip is available, and `daemon` its workers. Never touches a deciding
core.
"""
