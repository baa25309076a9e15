"""What the benchmark sends both brokers: exactly so many records of so many bytes, the same each time."""

from __future__ import annotations

import pytest

from benchmarks.spark.data import BATCH_BYTES, PARTITIONS, Batches, Data
from headrace.wire.batches import decode_records
from headrace.wire.compression import Compression


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.LZ4, Compression.ZSTD])
def test_partitions_hold_all_records_and_the_same_for_every_rival(codec: Compression) -> None:
    data = Data(name="law", records=7_003, record_bytes=100, compression=codec)
    sent = [list(Batches(data).of(partition)) for partition in range(PARTITIONS)]
    batches = [batch for partition in sent for batch in partition]
    records = [record for batch in batches for record in decode_records(batch)]
    assert len(records) == data.records
    assert {len(record.value or b"") for record in records} == {100}
    assert max(map(len, batches)) < 1.2 * BATCH_BYTES
    assert [list(Batches(data).of(partition)) for partition in range(PARTITIONS)] == sent
