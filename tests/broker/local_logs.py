"""A look behind the port: the local engine's log of a partition, with its files."""

from __future__ import annotations

from headrace.storage.engine.logs import PartitionLog
from headrace.storage.log.partition import LocalLog


def local(partition_log: PartitionLog) -> LocalLog:
    """Return the log as the local engine keeps it."""
    assert isinstance(partition_log, LocalLog)
    return partition_log
