"""The PySpark door: history and what lies above it as a data source, ``format("headrace")``, and the demo's job.

`source` and `streaming` are what Spark sees. `options` are parsed, `extent` makes one offset range of each partition,
`plan` makes tasks of these, and `reading` carries a task out: from the store, from `brokers`, and around damage
(`salvage`, `quarantine`). `follow` is a stream's offsets, `filters` what a query's filters leave to be read. `decode`
turns batches into Arrow, `kernel` is its hot loop and `plain` its slow twin; `java`, `home` and `session` start Spark
where pip is all there is, `daemon` its workers. `writers` are what Spark sees of a write, `sink` its options; `writing`
carries a task out: `rows` out of Arrow, packed by `packing` (`packkernel`, and the slow twin `plainpacking`). `repeats`
leaves out what tasks wrote again.
Never touches a deciding core.
"""
