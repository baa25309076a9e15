"""The partitions of this broker: each opens a log, leads or follows, and takes and serves batches."""
