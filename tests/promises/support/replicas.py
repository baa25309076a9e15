"""The data on the disks of all replicas once their brokers are gone, read by kafka-python's parser.

Each has the same bytes, which hold the records that clients read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from kafka.record import MemoryRecords

from tests.promises.support.load import PartitionLogs
from tools.servers.broker_cluster import BrokerCluster

HEAD: Final = struct.Struct(">qi")
"""Start of a batch: its base offset, and the length of the rest."""


def check_replicas(cluster: BrokerCluster, topic: str, found: PartitionLogs, *, replicas: int) -> None:
    """Below the end of what was found by clients, every replica has the same, and that. No broker runs."""
    for partition, log in found.items():
        name = f"{topic}-{partition}"
        copies = {
            broker: b"".join(_batches(node.data / "logs" / name, len(log)))
            for broker, node in cluster.nodes.items()
            if (node.data / "logs" / name).is_dir()
        }
        assert len(copies) == replicas, f"{name} lies on brokers {sorted(copies)}"
        first = next(iter(copies.values()))
        differing = [broker for broker, copy in copies.items() if copy != first]
        assert not differing, f"{name}: brokers {differing} hold other bytes than broker {next(iter(copies))}"
        batches = list(MemoryRecords(first))
        assert all(batch.validate_crc() for batch in batches)
        assert {record.offset: record.value for batch in batches for record in batch} == log


def _batches(directory: Path, end: int) -> Iterator[bytes]:
    """Each that begins below `end`."""
    for path in sorted(directory.glob("*.log")):
        data, position = path.read_bytes(), 0
        while position < len(data):
            base, length = HEAD.unpack_from(data, position)
            if base >= end:
                return
            yield data[position : position + HEAD.size + length]
            position += HEAD.size + length
