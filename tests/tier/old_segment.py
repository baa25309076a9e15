"""A durable segment of format version 1, as brokers wrote it before blocks. It may never change."""

from __future__ import annotations

from base64 import b64decode
from typing import Any, Final

DESCRIPTOR: Final[dict[str, Any]] = {
    "key": "clusters/test-cluster/topics/00000000-0000-0000-0000-000000000abc/0/"
    "00000000000000000000-00000000000000000008-0000000009-24c01c5e99eb6b95.segment",
    "start_offset": 0,
    "end_offset": 8,
    "leader_epoch": 9,
    "first_timestamp_ms": 1000,
    "last_timestamp_ms": 1008,
    "records": 9,
    "batch_bytes": 422,
    "object_bytes": 882,
    "crc32c": 505879366,
    "sha256": "24c01c5e99eb6b955d20ac25a4b22668651eef0a67d08b7fc18774cee858427d",
    "last_epoch": 6,
}
HEAD: Final = "5f96300b217c03d3b88447a082de6ceb3294f1efbbded88b1a155d8f3a8805d1"
"""Head of the catalog that holds it alone."""
BODY: Final = b64decode("""
AAAAAAAAAAAAAACVAAAABQImtGmpAAAAAAABAAAAAAAAA+gAAAAAAAAD6f//////////////////AAAAAmIAAAACa1R2YWx1ZSAw
dmFsdWUgMHZhbHVlIDB2YWx1ZSAwdmFsdWUgMHZhbHVlIDAAYgACAgJrVHZhbHVlIDF2YWx1ZSAxdmFsdWUgMXZhbHVlIDF2YWx1
ZSAxdmFsdWUgMQAAAAAAAAAAAgAAAHgAAAAFAmul9O4AAwAAAAIAAAAAAAAD6gAAAAAAAAPs//////////////////8AAAADBCJN
GGBAgjgAAADvYgAAAAJrVHZhbHVlIDAHABBVAGIAAgIyABIxMgAPBwAKVQBiAAQEMgASMjIADwcABlB1ZSAyAAAAAAAAAAAAAAAA
BQAAAHUAAAAGAiIMEDIABAAAAAMAAAAAAAAD7QAAAAAAAAPw//////////////////8AAAAEKLUv/SDI3QEAFAJiAAAAAmtUdmFs
dWUgMABiAAICMQBiAAQEMgBiAAYGMwAKAOACwLeqQsENgG9VhYIbAN+qCo3IogR7ImFib3J0ZWRfdHJhbnNhY3Rpb25zIjpbWzQs
MCwxLDJdXSwiYmF0Y2hfYnl0ZXMiOjQyMiwiY2hlY2tzdW1zIjpbNTA1ODc5MzY2XSwiY2x1c3Rlcl9pZCI6InRlc3QtY2x1c3Rl
ciIsImNyYzMyYyI6NTA1ODc5MzY2LCJlbmRfb2Zmc2V0Ijo4LCJmaXJzdF90aW1lc3RhbXBfbXMiOjEwMDAsImZvcm1hdCI6Imhl
YWRyYWNlIGR1cmFibGUgc2VnbWVudCIsImluZGV4IjpbWzAsMCwxMDAxXV0sImxhc3RfdGltZXN0YW1wX21zIjoxMDA4LCJsZWFk
ZXJfZXBvY2giOjksImxlYWRlcl9lcG9jaHMiOltbNSwwXSxbNiw1XV0sInBhcnRpdGlvbiI6MCwicHJvZHVjZXJzIjoiQUFBPSIs
InJlY29yZHMiOjksInN0YXJ0X29mZnNldCI6MCwidG9waWMiOiJvcmRlcnMiLCJ0b3BpY19pZCI6IjAwMDAwMDAwLTAwMDAtMDAw
MC0wMDAwLTAwMDAwMDAwMGFiYyIsInZlcnNpb24iOjF9AAABtJpdERcAAAABAAAAAEhFQURSQUNF
""")
