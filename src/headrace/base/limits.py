"""Every bound in Headrace, by name. A queue, cache, retry or array that is not bounded here is a bug (promise 10).

The unit is the last word of the name.
"""

from __future__ import annotations

from typing import Final

# wire
REQUEST_BYTES_MAX: Final = 100 * 1024 * 1024
"""Largest request frame (Kafka's socket.request.max.bytes)."""
ARRAY_ELEMENTS_MAX: Final = 1_000_000
"""Longest array in a request; each element also needs at least one byte of the frame."""
TAGGED_FIELDS_MAX: Final = 10_000
RECORD_HEADERS_MAX: Final = 100_000
DECOMPRESSED_BATCH_BYTES_MAX: Final = 256 * 1024 * 1024
"""Most that one batch may unpack to (decompression bombs)."""

# topics
TOPIC_NAME_CHARS_MAX: Final = 249
PARTITIONS_PER_REQUEST_MAX: Final = 10_000
"""Most partitions that one CreateTopics or CreatePartitions request may make (Kafka's KIP-599 in spirit)."""

# connections
CONNECTIONS_MAX: Final = 20_000
REQUESTS_IN_FLIGHT_PER_CONNECTION_MAX: Final = 64
"""Requests of one connection being answered at a time; reading pauses beyond."""
RESPONSE_QUEUE_BYTES_MAX: Final = 16 * 1024 * 1024
"""Unsent bytes of one connection at which its reading, and so its requests, pauses."""
QUEUED_REQUEST_BYTES_MAX: Final = 512 * 1024 * 1024
"""Received bytes over all connections that are not yet answered (Kafka's queued.max.request.bytes)."""

# fetch
FETCH_SESSIONS_MAX: Final = 1_000
FETCH_BYTES_MAX: Final = 55 * 1024 * 1024
"""Most bytes in one fetch response, whatever the client asks for (Kafka's fetch.max.bytes)."""

# producers
PRODUCERS_PER_PARTITION_MAX: Final = 10_000
PRODUCER_BATCHES_CACHED: Final = 5
"""Batches per producer whose offsets are remembered for duplicates (Kafka's)."""
PRODUCER_ID_BLOCK_SIZE: Final = 1_000
"""Producer ids that one ProducerIdsAllocated event hands to a broker (KIP-730)."""

# storage
OPEN_SEGMENT_FILES_MAX: Final = 4_096
METADATA_EVENTS_PER_SNAPSHOT: Final = 10_000
"""Committed events after which the commit log is snapshotted and cut."""
