"""The records that were written or read, as counts and checksums per partition and per key. Two ledgers can be
compared.

A partition's checksum does not depend on the order of records, so that Spark can compute it in parallel. A key's
checksum does, so that it proves the order. It is plain arithmetic: no client library is trusted with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

MODULUS = 1 << 32


@dataclass(slots=True)
class PartitionSum:
    """One partition's records so far."""

    records: int = 0
    next_offset: int = 0
    checksum: int = 0
    """Sum over the records of crc32(offset, 8 bytes; key length, 4 bytes; key; value), modulo 2^32."""
    misplaced: int = 0
    """Records whose offset did not follow the record before."""


@dataclass(slots=True)
class KeySum:
    """One key's records so far. `digest` depends on their order, their values and their timestamps."""

    records: int = 0
    digest: int = 0


@dataclass(slots=True)
class Ledger:
    """The sums of all added records: one side's account of the topic."""

    partitions: dict[int, PartitionSum] = field(default_factory=dict)
    keys: dict[bytes, KeySum] = field(default_factory=dict)
    records: int = 0

    def add(self, partition: int, offset: int, key: bytes, value: bytes, timestamp_ms: int) -> None:
        """Count one record, in the order of its partition."""
        sums = self.partitions.get(partition)
        if sums is None:
            sums = self.partitions[partition] = PartitionSum()
        if offset != sums.next_offset:
            sums.misplaced += 1
        sums.records += 1
        sums.next_offset = offset + 1
        placed = offset.to_bytes(8, "big") + len(key).to_bytes(4, "big") + key
        sums.checksum = (sums.checksum + crc32(value, crc32(placed))) % MODULUS
        of_key = self.keys.get(key)
        if of_key is None:
            of_key = self.keys[key] = KeySum()
        of_key.records += 1
        of_key.digest = crc32(value, crc32(timestamp_ms.to_bytes(8, "big"), of_key.digest))
        self.records += 1

    def expectation(self) -> dict[str, Any]:
        """The expected result for Spark: per partition its records, offsets (end exclusive) and checksum, as JSON."""
        return {
            "partitions": {
                str(index): {
                    "records": sums.records,
                    "start": 0,
                    "end": sums.next_offset,
                    "checksum": f"{sums.checksum:08x}",
                }
                for index, sums in sorted(self.partitions.items())
            }
        }


def differences(written: Ledger, read: Ledger) -> dict[str, list[str]]:
    """The differences of the read records, by check. An empty list is a check that holds."""
    count = [] if written.records == read.records else [f"{written.records:,} were written, {read.records:,} read"]
    checksums, offsets = [], []
    for index in sorted(written.partitions.keys() | read.partitions.keys()):
        ours, theirs = written.partitions.get(index, PartitionSum()), read.partitions.get(index, PartitionSum())
        if ours.checksum != theirs.checksum:
            checksums.append(f"partition {index}: {ours.checksum:08x} was written, {theirs.checksum:08x} read")
        if ours.misplaced or theirs.misplaced or ours.next_offset != theirs.next_offset:
            offsets.append(f"partition {index}: offsets are not 0 to {ours.next_offset - 1} without a gap")
    order = [
        f"key {key.decode(errors='replace')}: other records, or in another order"
        for key in sorted(written.keys.keys() | read.keys.keys())
        if written.keys.get(key) != read.keys.get(key)
    ]
    return {
        "count": count,
        "offsets contiguous per partition": offsets,
        "order per key": order,
        "checksum per partition": checksums,
    }
