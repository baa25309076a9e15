"""The records in Redis, as everybody may read them there (docs/REDIS.md): by redis-py and kafka-python."""

from __future__ import annotations

from typing import Any, cast

import redis
from kafka.record import MemoryRecords
from redis.cluster import ClusterNode
from redis.sentinel import Sentinel

from headrace.storage.redis.links.address import Topology, parse_redis_address
from tests.promises.support.load import PartitionLogs


def check_streams(url: str, topic: str, logs: PartitionLogs) -> None:
    """Check that each Stream has exactly these records, and that its ids are the offsets behind its batches."""
    with reader(url) as client:
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


def reader(url: str) -> Any:
    """A client of redis-py."""
    address = parse_redis_address(url)
    sentinel, node = cast("Any", Sentinel), cast("Any", ClusterNode)  # they have no types
    match address.topology:
        case Topology.SENTINEL:
            return sentinel(list(address.hosts)).master_for(address.service)
        case Topology.CLUSTER:
            return redis.RedisCluster(startup_nodes=[node(host, port) for host, port in address.hosts])
        case Topology.SERVER:
            return redis.Redis.from_url(url)
