"""The local engine: Kafka's files on a `Disk`.

A partition is a directory `<topic>-<partition>` of segments: `<base offset, 20 digits>.log` holds batches verbatim,
`.index` and `.timeindex` are Kafka's sparse indexes, `leader-epoch-checkpoint` is Kafka's, `<offset>.snapshot` holds
producers. Two files are ours: `stamp.json` (whose data this is) and `checkpoint.json` (the recovery point and the log's
start). All but the `.log` files are written whole: temporary file, fsync, rename, fsync of the directory.

What is durable, and how recovery knows: see `headrace.storage.log.flush` and `headrace.storage.log.recovery.opening`.
"""
