"""Plans of a record that is written by hand."""

from __future__ import annotations

import json
import time
from functools import partial
from typing import Any, NamedTuple

from headrace.base.errors import UsageError
from headrace.net.client.cluster import Cluster
from headrace.net.client.producer import Producer
from headrace.operations.changes.plan import Plan


class NewRecord(NamedTuple):
    """A record that would be written."""

    topic: str
    partition: int | None
    """None: the key chooses."""
    key: str | None
    """None: it has none."""
    value: str | None
    """None: a tombstone."""
    headers: tuple[tuple[str, str], ...]

    @property
    def line(self) -> str:
        """The line that `headrace produce --format json` takes."""
        fields: dict[str, Any] = {"key": self.key, "value": self.value}
        if self.headers:
            fields["headers"] = [{"name": name, "value": value} for name, value in self.headers]
        return json.dumps(fields, ensure_ascii=False)


async def producing(cluster: Cluster, record: NewRecord) -> Plan:
    """One record, of the time at which it is written. Raises UsageError, ClientError."""
    view = await cluster.existing_topic(record.topic, may_be_made=True)
    if view.internal:
        raise UsageError(f"Topic '{record.topic}' is the brokers' own: nobody else writes to it.")
    if record.partition is not None and record.partition >= len(view.partitions):
        raise UsageError(f"Topic '{record.topic}' has partitions 0 to {len(view.partitions) - 1}.")
    chosen = [] if record.partition is None else ["--partition", str(record.partition)]
    words = ["produce", record.topic, "--format", "json", *chosen]
    return Plan(words, [record], partial(_write, cluster, record), input=record.line)


async def _write(cluster: Cluster, record: NewRecord) -> None:
    async with Producer(cluster) as producer:
        written = await producer.send(
            record.topic,
            value=None if record.value is None else record.value.encode(),
            key=None if record.key is None else record.key.encode(),
            headers=[(name, value.encode()) for name, value in record.headers],
            partition=record.partition,
            timestamp_ms=time.time_ns() // 1_000_000,
        )
        await written
