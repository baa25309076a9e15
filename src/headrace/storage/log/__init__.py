"""The local engine: Kafka's files on a `Disk`.

A partition is a directory `<topic>-<partition>` of segments: `<base offset, 20 digits>.log` holds batches verbatim,
`.index` and `.timeindex` are Kafka's sparse indexes, `leader-epoch-checkpoint` is Kafka's, `<offset>.snapshot` holds
producers. Two files are Headrace's own: `stamp.json` (the log's identity) and `checkpoint.json` (the recovery point and
the log's start). All but the `.log` files are written whole: temporary file, fsync, rename, fsync of the directory.

`headrace.storage.log.flush` defines what is durable, and `headrace.storage.log.recovery.opening` how recovery knows.
"""
