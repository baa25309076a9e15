"""The records in Redis, as everybody may read them there (docs/REDIS.md): by redis-py and kafka-python."""

from __future__ import annotations

from typing import Any

import redis
from kafka.record import MemoryRecords

from tests.promises.support.load import PartitionLogs


def check_streams(url: str, topic: str, logs: PartitionLogs) -> None:
    """Check that each Stream has exactly these records, and that its ids are the offsets behind its batches."""
    with redis.Redis.from_url(url) as client:
        for partition, wanted in logs.items():
            entries: Any = client.xrange(f"headrace:{topic}:{partition}")
            found: dict[int, bytes] = {}
            end = 0
            for entry, fields in entries:
                records = MemoryRecords(fields[b"batch"])
                while (batch := records.next_batch()) is not None:
                    for record in batch:
                        assert record.offset == end, f"{topic}-{partition}: {record.offset} came after {end - 1}"
                        found[record.offset] = record.value
                        end = record.offset + 1
                assert entry == b"%d-0" % end, f"{topic}-{partition}: the entry {entry!r} ends at {end}"
            assert found == wanted, f"{topic}-{partition}: {len(found)} in Redis, {len(wanted)} read by clients"
