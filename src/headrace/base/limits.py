"""Every bound in Headrace, by name. A queue, cache, retry or array that is not bounded here is a bug (promise 10).

The unit is the last word of the name.
"""

from __future__ import annotations

from typing import Final

# wire
REQUEST_BYTES_MAX: Final = 100 * 1024 * 1024
"""Largest request frame (Kafka's socket.request.max.bytes)."""
ARRAY_ELEMENTS_MAX: Final = 1_000_000
"""Longest array in a request. Each element also needs at least one byte of the frame."""
STRING_BYTES_MAX: Final = 32_767
"""Longest string in a message, also where its length is a varint: Kafka's limit."""
REQUEST_ELEMENTS_MAX: Final = 50_000
"""Array elements of a whole request, over all its arrays: five for each of 10,000 partitions. Each may take about 10
microseconds of the event loop."""
REQUEST_ELEMENTS_AT_ONCE_MAX: Final = 4_000
"""Array elements up to which a request may be handled in the turn of the event loop that reads it: some 30 ms. Our own
client's largest has as many (`CLIENT_PRODUCE_PARTITIONS_MAX`, each of a topic of its own)."""
NAMES_PER_TURN_MAX: Final = 500
"""Names of a request whose rights are looked up, or that are answered, in one turn of the event loop: about 5 ms."""
MESSAGE_ELEMENTS_MAX: Final = 4_000_000
"""Array elements of a message that a broker, a disk or a peer sends."""
UNCOUNTED_MESSAGE_BYTES_MAX: Final = 32 * 1024
"""Messages up to this size can do no harm whatever they hold, so their elements are not counted."""
RESOURCES_PER_TURN_MAX: Final = 64
"""Resources whose configs are described in one turn of the event loop."""
CONFIG_TEXTS_KEPT_MAX: Final = 4_096
"""Parsed config texts that are cached, because many topics have equal ones."""
TAGGED_FIELDS_MAX: Final = 10_000
UUIDS_CACHED: Final = 16_384
"""Parsed topic ids that are cached, because requests name the same ones again and again."""
RECORD_HEADERS_MAX: Final = 100_000
DECOMPRESSED_BATCH_BYTES_MAX: Final = 256 * 1024 * 1024
"""Most that one batch may unpack to (decompression bombs)."""

# topics
TOPIC_NAME_CHARS_MAX: Final = 249
ALIKE_NAMES_TRIED_MAX: Final = 32
"""Names that differ from a new topic's only in `.` and `_`, and are looked up one by one. Beyond that, all topics are
searched."""
PARTITIONS_PER_REQUEST_MAX: Final = 10_000
"""Most partitions that one CreateTopics or CreatePartitions request may make (Kafka's KIP-599 in spirit)."""
DESCRIBED_PARTITIONS_MAX: Final = 2_000
"""Most partitions in one DescribeTopicPartitions answer (Kafka's max.request.partition.size.limit)."""

# connections
CONNECTIONS_MAX: Final = 20_000
REQUESTS_IN_FLIGHT_PER_CONNECTION_MAX: Final = 64
"""Requests of one connection that are being answered at a time; reading pauses beyond."""
RESPONSE_QUEUE_BYTES_MAX: Final = 256 * 1024
"""Unsent bytes of one connection at which it is not served any further until it has read most of them."""
ANSWER_BYTES_PER_TURN_MAX: Final = 1024 * 1024
"""Answers to one connection after which others have their turn of the event loop."""
SWEPT_PER_TURN_MAX: Final = 500
"""Connections that are checked for idleness and slowness in one turn of the event loop."""
QUEUED_REQUEST_BYTES_MAX: Final = 512 * 1024 * 1024
"""Received bytes over all connections that are not yet answered, unfinished frames included. The config
queued.max.bytes overrides it. One frame and WAITING_REQUEST_BYTES_MAX may come on top."""
WAITING_REQUEST_BYTES_MAX: Final = 128 * 1024 * 1024
"""First reads of frames that wait for room. A connection that sends more beyond this is closed."""
UNSENT_ANSWER_BYTES_MAX: Final = 256 * 1024 * 1024
"""Answers that are not sent yet, over all connections. Beyond this, the connection that has taken nothing for longest
is closed."""
UNSENT_SHARE_OF_ROOM: Final = 4
"""One fetch is given at most one part in this many of the room that is left for unsent answers."""
SLOW_READER_MS_MAX: Final = 5_000
"""Time without a byte taken after which a reader is closed, while unsent answers take half of their room."""
CONNECTION_IDLE_MS_MAX: Final = 600_000
"""Silence after which a connection is closed, unless connections.max.idle.ms says otherwise (Kafka's default)."""
CONNECTION_PATIENCE_MS: Final = 1_000
"""Time that connections wait for room before those that hold room without need are closed."""
FRAME_MS_MAX: Final = 30_000
"""Time that a frame may take from its first byte to its last, plus what FRAME_BYTES_PER_SECOND_MIN grants its size."""
FRAME_BYTES_PER_SECOND_MIN: Final = 64 * 1024
CONTESTED_FRAME_BYTES_PER_SECOND_MIN: Final = 8 * 1024 * 1024
"""Slowest rate of a frame while other connections wait for room."""
TLS_HANDSHAKES_MAX: Final = 256
"""TLS handshakes that are under way at a time, on all listeners. One more ends the oldest."""
TLS_HANDSHAKE_MS_MAX: Final = 10_000
ACCEPTED_PER_TURN_MAX: Final = 16
"""Connections with TLS that are accepted in one turn of the event loop."""
ACCEPT_PAUSE_MS: Final = 1_000
"""Pause of accepting where the process has no file descriptors left."""
TLS_GOODBYE_MS_MAX: Final = 2_000
"""Time that a client has to answer the end of its TLS session before its connection is closed anyway."""
TLS_REFRESH_MS: Final = 5_000
"""Time between two looks whether the files of certificates have changed."""
CONFIG_FILES_REFRESH_MS: Final = 5_000
"""Time between two looks whether the users of PLAIN have changed in the config files."""
CAUSED_LOG_LINES_BURST_MAX: Final = 100
"""Log lines about bad clients in one burst. After it, CAUSED_LOG_LINES_PER_SECOND_MAX holds and the rest are
counted."""
CAUSED_LOG_LINES_PER_SECOND_MAX: Final = 1

LOOP_HELD_MS_MAX: Final = 20
"""Time that anything may hold the event loop before the watchdog reports it."""
WATCHDOG_SUMMARY_S: Final = 60
"""Time for which the watchdog reports the holds of the event loop together, after it has reported one."""
LOOP_STACK_FRAMES_MAX: Final = 12
"""Innermost frames of the loop's stack that the watchdog reports."""

# fetch
FETCH_SESSIONS_MAX: Final = 1_000
FETCH_SESSION_PARTITIONS_MAX: Final = 1_000_000
"""Partitions that all fetch sessions remember together. A reader whose own do not fit goes without a session."""
FETCH_BYTES_MAX: Final = 55 * 1024 * 1024
"""Most bytes in one fetch response, whatever the client asks for (Kafka's fetch.max.bytes)."""

# unpacking of clients' batches (compression.type; keys for cleanup.policy=compact)
REPACKED_BATCH_BYTES_MAX: Final = 32 * 1024 * 1024
"""Largest size that a batch may unpack to where the broker unpacks it."""
UNPACKED_RECORDS_MAX: Final = 500_000
"""Records of a batch that the broker unpacks. Each takes about 3 microseconds and, if kept, about 120 bytes. A
compressed batch of 725 bytes may hold a million of them."""
WALKED_ON_LOOP_RECORDS_MAX: Final = 2_000
WALKED_ON_LOOP_BYTES_MAX: Final = 512 * 1024
WALKED_ON_LOOP_HEADERS_MAX: Final = 10_000
"""Batches of up to this many records, bytes and record headers are checked on the event loop, larger ones in a worker
thread."""
UNPACKED_ON_LOOP_BYTES_MAX: Final = 256 * 1024
"""Compressed batches that unpack to no more than this, and are themselves at most a quarter of it, are unpacked on the
event loop."""
RECORD_FAULTS_MAX: Final = 10_000
"""Records that one answer names as refused. The others are refused because their batch is."""
REPACK_WAITING_BYTES_MAX: Final = 128 * 1024 * 1024
"""Bytes of batches, over all partitions, that wait to be unpacked; further ones are refused."""
REPACKS_AT_ONCE_MAX: Final = 2
"""Batches that are unpacked at a time, each in a worker thread."""

# producers
PRODUCERS_PER_PARTITION_MAX: Final = 10_000
PRODUCER_BATCHES_CACHED: Final = 5
"""Batches per producer whose offsets are remembered to detect duplicates (Kafka's number)."""
PRODUCER_SNAPSHOT_INTERVAL_BYTES: Final = 64 * 1024 * 1024
"""Bytes appended to a partition between two snapshots of its producers: the most that recovery reads again."""
PRODUCER_SNAPSHOT_BYTES_MAX: Final = 4 * 1024 * 1024
"""Largest snapshot of one partition's producers that is sent to another broker."""
OPEN_TRANSACTIONS_PER_PARTITION_MAX: Final = PRODUCERS_PER_PARTITION_MAX // 2
"""Producers that have an open transaction in one partition. Another one waits until one of these has ended."""
ENDED_TRANSACTIONS_MAX: Final = 1_000
"""Ended transactions of one partition that are told apart until their markers are replicated."""
ABORTED_READ_AT_ONCE: Final = 64
"""Entries of aborted transactions that one read of a file brings."""
VERIFICATIONS_PER_PARTITION_MAX: Final = 10_000
"""Transactions of one partition that a coordinator was asked about, and whose first batch was not appended yet."""
PRODUCER_ID_BLOCK_SIZE: Final = 1_000
"""Producer ids that one ProducerIdsAllocated event hands to a broker (KIP-730)."""

# group commit
FLUSH_GATHER_MS_MAX: Final = 1
"""Longest that a sync waits for others to share it."""
FLUSH_GATHER_BACKOFF_MAX: Final = 10
"""After waits that gained nothing, up to 2 to the power of this many syncs begin at once before another wait is
tried."""

PLACES_REMEMBERED_MAX: Final = 16_384
"""Ways to name a partition in a request for which the partition itself is cached."""
PLAIN_FETCH_BYTES_MAX: Final = 32 * 1024
"""Largest fetch that is read without the general codec: about a thousand partitions. In larger requests the elements
are counted."""
DEADLINE_SIGNIFICANT_BITS: Final = 6
"""Significant bits of the time that a produce may wait; it is rounded up. This makes at most about 900 queues, for
times up to 2**31 ms."""
DEADLINES_SETTLED_MIN: Final = 1_024
"""Settled waiters of one queue that are kept behind one that still waits, before they are dropped."""
KERNEL_SYNCS_MAX: Final = 64
"""Syncs that the kernel has under way at a time; more run in worker threads."""

# journal
JOURNAL_FILE_BYTES: Final = 32 * 1024 * 1024
JOURNAL_FILES_MAX: Final = 6
"""Files of a journal in use at a time. From half of them on, the logs' own files are synced behind the journal."""
JOURNAL_AFTER_ROUNDS: Final = 64
"""Flushes that sync the logs' own files before a journal's first file is made, or before another file is tried."""
JOURNAL_LOG_BYTES_MAX: Final = 1024 * 1024
"""Most bytes that one log writes to the journal in one round; with more, its own file is synced."""
JOURNAL_PENDING_BYTES_MAX: Final = 16 * 1024 * 1024
"""Most bytes that all logs together keep for the next round."""

TURNED_AWAY_MAX: Final = 1_000
"""Producers of a partition whose first batch was refused, and which are remembered for that."""
TURNED_AWAY_MS_MAX: Final = 180_000
"""Time for which they are remembered. Clients retry a batch for two minutes (Java's delivery.timeout.ms)."""

# storage
DISK_LOOK_MS: Final = 1_000
"""Time between two checks of the free room on the logs' disk."""
DISK_RESERVE_BYTES_MAX: Final = 1024 * 1024 * 1024
"""Most that `log.disk.min.free.bytes=-1` keeps free. The journal takes 192 MiB and the data in memory for it 16 MiB. A
snapshot of a large cluster's metadata is written beside the previous one."""
DISK_RESERVE_FRACTION: Final = 20
"""On a small volume, `log.disk.min.free.bytes=-1` keeps one part in this many free."""
OPEN_SEGMENT_FILES_MAX: Final = 4_096
LOGS_FLUSHED_AT_ONCE_MAX: Final = 1_000
"""Logs in one round of the flusher. Each keeps its files open until the round is over; further logs wait for the
next."""
NEWEST_BYTES_MAX: Final = 16 * 1024 * 1024
"""Newest batches of all logs that are cached for readers that keep up with them."""
NEWEST_UNREAD_BYTES_MAX: Final = 256 * 1024
"""Bytes that are kept of one log before a reader comes back."""
NEWEST_BATCH_OVERHEAD_BYTES: Final = 400
"""Memory that one cached batch costs beside its own bytes."""
READ_AGAIN_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes read lately from all logs that are cached for other readers of the same data."""
READ_AGAIN_BYTES_MIN: Final = 16 * 1024
"""Reads of fewer bytes than this are not cached."""
READ_AGAIN_STARTS_MAX: Final = 64
"""Reads of a log that are compared: two of them that began at one offset show that several readers read it."""
READ_POSITIONS_REMEMBERED_MAX: Final = 16
"""Positions per log where readers stopped, so that the next read finds its bytes without an index."""
PRODUCER_SNAPSHOTS_KEPT: Final = 2
"""Producer snapshots per log: the newest, and one before it."""
COMPACTION_KEYS_MAX: Final = 250_000
"""Keys that one cleaning of a compacted log, or one pass over its history, remembers, at about 150 bytes each. Further
keys wait for the next cleaning."""
DAMAGES_PER_SEGMENT_MAX: Final = 1_000
"""Damaged ranges that are listed separately in one segment. From the last of them on, the whole rest counts as
damaged."""
LIKELY_BATCHES_MAX: Final = 200
"""Positions in a log's cut tail that look like a batch and are checked. One record may be full of such positions."""
EXAMINED_PER_STEP_BYTES: Final = 512 * 1024
EXAMINED_PER_STEP_BATCHES: Final = 200
"""Batches of a segment that a worker thread checks before it lets other threads have the interpreter."""
SUSPICIONS_MAX: Final = 1_000
"""Segments that wait to be examined; further ones are found by the next full scan."""
UNVOUCHED_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes above a log's recovery point that each start after a kill checks again. With more, the point is moved up."""
LOGS_OPENED_AT_ONCE_MAX: Final = 4
"""Logs that a start opens at a time, each in a worker thread; LOGS_CLOSED_AT_ONCE_MAX is alike."""
LOGS_TAKEN_UP_PER_TURN_MAX: Final = 50
"""Opened logs that are taken into service in one turn of the event loop."""
LOGS_CLOSED_AT_ONCE_MAX: Final = 4
"""Logs that a stop closes at a time, each in a worker thread: their syncs share the disk's journal commits."""
METADATA_REPORT_MS: Final = 30_000
"""Time between two dumps of the whole metadata image into the broker's log file, where that logs at DEBUG."""
BROKER_TEXT_CHARS_MAX: Final = 255
"""Longest host, listener or rack that a broker registers."""
METADATA_PROPOSALS_MAX: Final = 10_000
"""Decisions on their way to the commit log; further requests wait before they are decided."""
SNAPSHOT_PARTITIONS_PER_EVENT_MAX: Final = 200
"""Partitions in one event of a snapshot. Its JSON is made in one step, during which nothing else runs."""
METADATA_ENTRY_BYTES_MAX: Final = 16 * 1024 * 1024
"""Largest entry that one decision makes. It must fit a frame between members (PEER_FRAME_BYTES_MAX)."""
METADATA_EVENTS_PER_SNAPSHOT: Final = 10_000
"""Committed events after which the commit log is snapshotted and cut."""

# client
CLIENT_REQUESTS_IN_FLIGHT_MAX: Final = 64
"""Requests of one client connection that wait for their answer; further ones wait for a slot."""
CLIENT_ATTEMPTS_MAX: Final = 16
"""Times that a client tries one request, including the first, before it gives up."""
CLIENT_BACKOFF_MS: Final = 50
"""Pause before the second try; it doubles with each further one."""
CLIENT_BACKOFF_MS_MAX: Final = 1_000
CLIENT_BUFFER_BYTES_MAX: Final = 32 * 1024 * 1024
"""Records of one producer that are not yet acknowledged; `send` waits beyond (Kafka's buffer.memory)."""
CLIENT_PRODUCES_IN_FLIGHT_MAX: Final = 5
"""Produce requests to one leader that await their answer during a delivery, never two of one partition."""
CLIENT_PRODUCE_BYTES_MAX: Final = 4 * 1024 * 1024
"""Batches of one such request, over its partitions; a larger batch goes alone."""
CLIENT_PRODUCE_PARTITIONS_MAX: Final = 2_000
CLIENT_TRANSACTIONS_AT_ONCE_MAX: Final = 64
"""Transactional ids that one client begins or ends at the same time; further ones wait."""
STATES_AHEAD_BYTES_MAX: Final = 8 * 1024 * 1024
"""Bytes of one partition in which a consumer looks for the marker of one answer's transactions, behind that answer."""
STATES_AHEAD_MARKERS_MAX: Final = 20_000
"""Markers of one partition that it keeps from there on."""
CLIENT_CONNECT_TIMEOUT_MS: Final = 5_000
CLIENT_DETAIL_CHARS_MAX: Final = 200
"""Characters of what a broker says about a refused login that an error repeats."""
CLIENT_REQUEST_TIMEOUT_MS: Final = 30_000
"""Longest wait for one answer, after which the connection is given up."""
SCRAM_CLIENT_ITERATIONS_MAX: Final = 1_000_000
"""Hashes that a broker may ask of a client for one login: half a second of a processor."""
TLS_CONTEXTS_MAX: Final = 64
"""Different settings of TLS, or of tokens, that one process keeps for its connections."""
TLS_CLOSE_MS_MAX: Final = 1_000
"""Longest wait for the peer's goodbye when a TLS connection is closed."""
OAUTH_ANSWER_BYTES_MAX: Final = 64 * 1024
"""Largest answer of an identity provider, or file of a token, that a client reads."""
OAUTH_TIMEOUT_MS: Final = 10_000

# durable segments
OBJECT_KEY_CHARS_MAX: Final = 900
"""Longest object key (S3 allows 1,024 bytes, a store's own prefix included)."""
OBJECT_PART_BYTES: Final = 8 * 1024 * 1024
"""Size of the parts in which a large object is sent to a remote store; a failed part is sent again by itself."""
OBJECT_PARTS_AT_ONCE_MAX: Final = 4
OBJECT_SINGLE_BYTES_MAX: Final = 2 * OBJECT_PART_BYTES
"""Largest object that a remote store is sent as one request."""
STORE_CONNECT_MS_MAX: Final = 5_000
STORE_REQUEST_MS_MAX: Final = 30_000
"""Longest that one request to a remote store may take before it counts as failed. `OBJECT_SINGLE_BYTES_MAX` must
fit."""
STORE_RETRIES_MAX: Final = 2
"""Retries of one store request. The caller's own retries come on top and are further apart."""
STORE_RETRY_MS_MAX: Final = 1_000
OBJECT_DIRECTORIES_REMEMBERED_MAX: Final = 10_000
"""Directories of a store whose names are known to be durable."""
DURABLE_SEGMENT_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of record batches at which a durable segment is cut. One larger batch still makes a segment of its own."""
SEGMENT_FOOTER_BYTES_MAX: Final = 64 * 1024 * 1024
STORED_BLOCK_BYTES: Final = 256 * 1024
"""Most bytes of record batches in one compressed block of a store. One larger batch still makes a block of its own. Of
JSON, zstd packs 1 MiB 5% smaller, and 64 KiB 14% larger."""
STORED_BLOCK_BYTES_MAX: Final = REQUEST_BYTES_MAX
"""Most that one block may unpack to (decompression bombs)."""
PACKED_SEGMENT_BYTES_MAX: Final = DURABLE_SEGMENT_BYTES_MAX + REQUEST_BYTES_MAX
"""Most that the blocks of one durable segment may unpack to. A larger one is stored uncompressed."""
CATALOG_DOCUMENT_BYTES_MAX: Final = 16 * 1024 * 1024
"""Largest JSON document of a store's catalog that a reader accepts."""
CATALOG_RUN_ENTRIES: Final = 256
"""Catalog entries that are packed together in memory. Adding one more copies them."""
CATALOG_CHUNK_ENTRIES: Final = 500
"""Catalog entries in one document of the mirror, or in one event of a snapshot. Below this, each has its own
document."""
CATALOG_READS_AT_ONCE_MAX: Final = 16
"""Catalog documents of a store that a reader requests at a time."""

HISTORY_BLOCK_BYTES: Final = 4 * 1024 * 1024
"""Bytes of a durable segment that are read and checked at a time: at least this many, rounded up to an index entry."""
HISTORY_READS_AT_ONCE_MAX: Final = 4
"""Reads of a durable store that a broker runs at a time for its clients."""
HISTORY_READS_WAITING_MAX: Final = 256
"""Reads that wait for one of these slots; beyond, a fetch has to retry."""
HISTORY_READ_AHEAD_BLOCKS: Final = 2
"""Blocks after the current one that are read ahead."""
HISTORY_LOADS_PER_FETCH_MAX: Final = 8
"""Partitions of one fetch whose blocks are read at the same time."""
HISTORY_FAILURES_REMEMBERED_MAX: Final = 1_000
HISTORY_RETRY_MS: Final = 1_000
"""Pause before a failed read is tried again."""
RECORDS_FETCH_WAIT_MS: Final = 500
"""Longest that a client's fetch waits for records that its log has elsewhere, where it waits for no new ones."""
RECORDS_FETCH_RETRY_MS: Final = 20
"""Pause before a background reader asks again for records that its log has elsewhere, when too many fetches wait."""
HISTORY_EPOCH_MS_MAX: Final = 1_000
"""Longest that the answer with history's start offset waits for the epoch there; it can be sent without the epoch."""
FRONTIER_FOOTERS_READ_MAX: Final = 16
"""Footers, beside the last one, that are read before a log begins behind durable history."""
FRONTIER_BATCHES_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of durable batches that a leader reads to learn their producers, where no footer lists these."""
FRONTIER_SEGMENTS_READ_MAX: Final = 256
"""Durable segments whose batches are read for that."""
FRONTIER_READS_AT_ONCE_MAX: Final = 2
"""Partitions whose frontier this broker reads at a time, counted for copies and for leaders separately."""
FRONTIER_SILENCE_MS_MAX: Final = 10_000
"""A store that has answered nothing for this long is no longer waited for; it may take up to twice as long to
notice."""
FRONTIER_LEADER_RETRY_MS_MAX: Final = 8_000
"""Longest pause before a leader that waits for durable history reads it again."""
FRONTIER_PAGE_SEGMENTS: Final = 1_000
"""Objects in one page of a store's listing. A store may also return all pages at once."""
FRONTIER_PAGES_MAX: Final = 12
"""Most pages of a listing that are each waited for like one answer."""
FRONTIER_RETRY_MS: Final = 60_000
"""Pause before a copy that the frontier refused reads durable history again."""
HISTORY_DELETE_GRACE_MS: Final = 60_000
"""Time between the event that removes a segment from its catalog and the deletion of its object."""
HISTORY_DOOMED_MAX: Final = 100_000
"""Objects that wait to be deleted. Beyond this, objects stay in the store and nothing refers to them."""
HISTORY_STOP_MS_MAX: Final = 5_000
"""Longest that a stop waits for the deletion that is under way."""
DELETED_AT_ONCE_BYTES: Final = 8 * 1024 * 1024
"""Bytes of a removed log's file that are freed at once. Freeing a gigabyte at once would delay all syncs on the
disk."""
DELETED_FILE_BYTES_MIN: Final = 4096
"""Least number of bytes for which a removed file counts."""
DELETED_PAUSE_MS: Final = 10
"""Pause between two such parts."""
DELETED_RETRY_MS: Final = 60_000
"""Pause before a file that could not be removed is tried again, once the queue is empty."""
SEGMENTS_DELETED_AT_ONCE_MAX: Final = 1_000
"""Durable segments that one event removes from a catalog."""
SEGMENTS_REPLACED_AT_ONCE_MAX: Final = 1_000
"""Durable segments that one merged segment replaces."""
MIRROR_READ_TRIES_MAX: Final = 5
"""Times that a reader of the mirror starts over because the mirror was written meanwhile."""
CATALOG_LINKS_MAX: Final = 10_000
"""Deletions and replacements behind a catalog's last segment at which merging stops."""
MERGE_READ_BYTES_MAX: Final = 96 * 1024 * 1024
"""Total size of the objects that are merged into one, footers included."""
MERGE_PROBLEMS_TOLD_MAX: Final = 100
MIRROR_CHUNK_TRIES_MAX: Final = 3
"""Times that chunks of the mirror are written again where they are gone although its state names them."""

SWEEP_DELETES_PER_SECOND_MAX: Final = 100
"""Orphaned objects, those that nothing refers to, that a broker removes from the store in a second."""
SWEEP_REMEMBERED_MAX: Final = 100_000
"""Objects that are known to have left their catalogs a while ago; further ones are checked again later."""
SWEEP_TOLD_MAX: Final = 1_000
"""Objects that a sweep's answer names; the rest are counted."""
DURABLE_SUMMARIES_TOLD_MAX: Final = 1_000
"""Partitions in one answer about durable history; the requester asks for the next ones."""
DURABLE_ENTRIES_TOLD_MAX: Final = 500
"""Segments of one catalog in one answer."""
DURABLE_TIMEOUT_MS: Final = 5_000
"""Longest wait for such an answer."""
DURABLE_CATALOG_TRIES_MAX: Final = 5
"""Times that a catalog is requested again because it was cut meanwhile."""
SWEEP_ASK_EVERY_MS: Final = 200
SWEEP_UNFINISHED_MS_MIN: Final = 3_600_000
"""Age from which on an unfinished upload is taken to be abandoned."""
SWEEP_STOP_MS_MAX: Final = 5_000
"""Longest that a stop waits for the object that is being removed."""

# Spark
SPARK_GROUPS_ASKED_AT_ONCE_MAX: Final = 16
"""Consumer groups whose positions statistics request at a time."""
SPARK_FETCH_BYTES: Final = 4 * 1024 * 1024
"""Bytes of one answer that a task fetches from a broker. The next answer is fetched while this one is decoded."""
SPARK_FETCH_WAIT_MS: Final = 500
"""Longest that a broker delays its answer to such a fetch while there is nothing to return."""
SPARK_EMPTY_FETCHES_MAX: Final = 60
"""Answers in a row without any of the planned records, after which a task fails and says so."""
SPARK_CATALOG_TRIES_MAX: Final = 3
"""Times that a catalog is read again because a deletion changed it meanwhile."""
SPARK_CATALOGS_AT_ONCE_MAX: Final = 8
"""Partitions whose catalogs a plan reads at a time."""
SPARK_FOOTERS_PLANNED_MAX: Final = 1_000
"""Segments whose indexes a plan reads to cut them."""
SPARK_TASKS_MAX: Final = 100_000
"""Approximate limit of the tasks of one read, whatever the options minPartitions and maxBytesPerPartition say."""

SPARK_CHUNK_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes of keys, values and headers that a task gathers before it packs them into batches; one larger record goes
alone."""
SPARK_CHUNK_ROWS_MAX: Final = 128 * 1024
"""Rows of such a chunk. Each takes 107 bytes beside its own, about 115 more where it names its writer, and 90 for
tables. That is up to 40 MiB in all."""
SPARK_CHUNKS_AHEAD_MAX: Final = 2
"""Packed chunks that are not yet acknowledged. The task waits for the oldest before it packs a third one."""
SPARK_TARGETS_MAX: Final = 1_000
"""Topics that one task writes to."""
SPARK_PRODUCER_IDLE_S: Final = 300.0
"""How long a worker that writes nothing keeps its connections and its producer id."""
SPARK_LEDGER_TIMEOUT_MS: Final = 60_000
"""After this time the brokers abort the decision of a driver that died while it decided."""
SPARK_REPEATS_WINDOW_MAX: Final = 10_000_000
"""Largest `repeatWindow`. A task holds up to 128 bytes for each record in it that names its writer."""
SPARK_REPEATS_KEPT_MAX: Final = 4_000_000
"""Approximate number of such records that a worker keeps from one micro-batch to the next; each takes 24 bytes."""

# export
EXPORT_TICK_MS: Final = 250
"""Time between two looks for closed segments to export."""
EXPORT_READ_BYTES: Final = 1024 * 1024
"""Bytes of a log that an export reads on the event loop at a time."""
EXPORT_WITNESSES_MAX: Final = 8
"""Partitions whose objects are looked for before another partition's first object is put; finding one is enough."""
EXPORTED_PRODUCERS_BYTES_MAX: Final = 16 * 1024 * 1024
"""Producer states of the last footers that are cached for the next footers; others are read again from the store."""
STORE_CALLS_AT_ONCE_MAX: Final = 8
"""Store calls of exports, moves, merges, retention and the sweep together. These have threads of their own: one each,
and MOVE_SEALS_AT_ONCE_MAX for moves."""
EXPORT_STOP_MS_MAX: Final = 5_000
"""Longest that a stop waits for the segment that is being exported."""
EXPORT_RETRY_MS_MIN: Final = 1_000
EXPORT_RETRY_MS_MAX: Final = 15_000
"""Pause after a failed export; it doubles from the first to the second of these."""

# moves
MOVE_TAIL_BYTES: Final = 256 * 1024
"""An owner with at most this much left to export stops writing and seals."""
MOVE_TAIL_ROUNDS_MAX: Final = 20
"""Rounds in which an owner exports newly arrived data. After them it stops writing although more than that is left."""
MOVE_EXPORT_BYTES_MAX: Final = 16 * 1024 * 1024
"""Size of one durable segment that is exported for a move."""
MOVE_SEAL_MS_MAX: Final = 5_000
"""Longest that an owner stops writing to flush and export its tail. After that it resumes, and tries again later."""
MOVE_RETRY_MS_MIN: Final = 20
MOVE_RETRY_MS_MAX: Final = 2_000
"""Pause after a failed step of a move; it doubles from the first to the second of these."""
MOVE_SEALS_TRIED_MAX: Final = 20
"""Failed attempts to seal after which an owner gives the move up."""
MOVE_SEAL_PAUSES: Final = 10
"""After a failed attempt to seal, the owner writes for at least this many times as long as it had stopped."""
MOVE_SEAL_PAUSE_MS_MAX: Final = 60_000
"""It also writes for at least MOVE_RETRY_MS_MIN, doubled with each try up to this."""
MOVE_OPENINGS_TRIED_MAX: Final = 6
"""Attempts of a target to open its log, with that pause between, before another broker is to go on."""
MOVE_READS_MS_MAX: Final = 8_000
"""Longest that a broker tries to read the store when it is asked whether it can."""
MOVE_WAIT_TOLD_MS: Final = 10_000
"""Time that a move waits for one thing before the log says so."""
MOVE_SEALS_AT_ONCE_MAX: Final = 4
"""Partitions that one broker seals, or exports for moves, at a time."""
MOVES_REMEMBERED_MAX: Final = 1_000
"""Finished moves for which a broker reports how long they kept producers waiting."""
PARKED_BATCHES_MAX: Final = 1_000
"""Produced batches of one partition that wait for the end of a hand-over; further ones are refused."""
PARKED_BATCHES_BYTES_MAX: Final = 32 * 1024 * 1024
"""Bytes of these batches."""
CARRIED_BYTES_MAX: Final = 128 * 1024 * 1024
"""Bytes of all batches that a broker forwards to new owners, or keeps until its own logs are open."""
CARRIED_WAIT_MS_MAX: Final = 3_000
"""Longest that such a batch waits until the new owner is ready."""
CARRIED_MS_MAX: Final = 2_000
"""Time after that in which the old owner still forwards late batches. By its end clients know the new leader."""
CARRIED_QUIETLY_MS: Final = 500
"""First part of that time, in which only producers that have nothing else in flight are sent to the new leader."""
CARRIED_ANSWER_MS_MAX: Final = 1_500
"""Longest that the new owner may take to commit a forwarded batch."""
CARRIED_LATE_MS_MAX: Final = 500
"""Additional time that its answer may take."""
CARRIED_UNTIL_MS_MAX: Final = 10_000
"""Time after the end of a hand-over during which the new owner expects forwarded batches. It is more than all of the
above together."""

# groups
GROUPS_PER_SHARD_MAX: Final = 10_000
"""Groups that one partition of the offsets topic keeps; a further one is refused."""
GROUP_NAME_CHARS_MAX: Final = 8_000
"""Longest group id, protocol type or protocol name: four bytes a character still fit the record's int16 length."""
GROUP_CONFIGS_MAX: Final = 10_000
"""Groups that may have their own configs, not counting those that one request adds. Every broker's metadata holds
them."""
GROUP_SUBSCRIPTION_BYTES_MAX: Final = 1024 * 1024
"""Bytes of subscriptions that one member may join with, over all the protocols that it offers."""
GROUP_LARGE_SUBSCRIPTION_BYTES_MIN: Final = 16 * 1024
"""Size from which on a member's subscription is counted as large."""
GROUP_LARGE_SUBSCRIPTIONS_BYTES_MAX: Final = 128 * 1024 * 1024
"""Bytes of large subscriptions in all groups of a broker. A member beyond them is refused (GROUP_MAX_SIZE_REACHED)."""
GROUP_TOPIC_NAME_BYTES: Final = 100
"""Approximate size that each topic subscribed to by name counts there."""
GROUP_CLASSIC_TOPICS_MAX: Final = 10_000
"""Topics that one classic member of a consumer group may subscribe to by name. All are checked on the event loop."""
GROUP_UPGRADE_BYTES_MAX: Final = 1024 * 1024
"""Bytes of subscriptions, over all protocols, of a classic group's members up to which it may become a consumer group.
More would not fit the one batch that this takes (max.message.bytes)."""
GROUP_TOMBSTONES_BYTES_MAX: Final = 256 * 1024
"""Bytes of tombstones of one group's offsets in one batch; more go into several batches."""
GROUP_REASON_CHARS_MAX: Final = 255
"""Length of the reason that a client gives for joining or leaving (KIP-800), and of a log line about a rebalance."""
GROUP_PATTERN_CHARS_MAX: Final = 1_000
"""Longest regular expression that a member may subscribe with."""
GROUP_PATTERN_DEPTH_MAX: Final = 50
"""Depth to which the parentheses of such an expression may nest."""
GROUP_PATTERN_STATES_MAX: Final = 2_000
"""States of its automaton. At worst, matching a name takes this many steps for each character."""
GROUP_PATTERN_REMEMBERED_MAX: Final = 20_000
"""States in the cache of the automaton's transitions, while names are matched."""
GROUP_PATTERN_KEPT_MAX: Final = 1_000
"""States that stay in this cache until the expression is used again."""
GROUP_PATTERN_WORK_MAX: Final = 200_000
"""Automaton states that may be visited to match an expression, besides those for each name: about 100 ms. A costlier
one is refused. Common expressions visit a few hundred, whatever the names."""
GROUP_PATTERN_WORK_PER_NAME_MAX: Final = 20
"""Automaton states that may be visited in addition for each name."""
GROUP_PATTERN_WORK_PER_TURN: Final = 4_000
"""Automaton states that are visited before other tasks have their turn of the event loop: about 2 ms."""
GROUP_PATTERN_NAMES_PER_TURN: Final = 1_000
"""Names that an expression is matched with before other tasks have their turn of the event loop: about 4 ms."""
GROUP_PATTERNS_KEPT_MAX: Final = 500
"""Regular expressions whose matching topics a broker caches."""
GROUP_VIEWS_KEPT_MAX: Final = 2_000
"""Views that clients have of the topics that an expression matches, by their rights. A broker caches them."""
GROUP_PLACES_KEPT_MAX: Final = 1_000
"""Groups whose partition of the offsets topic a broker caches."""
GROUP_PLACE_CHARS_MAX: Final = 256
"""Length of the group names in that cache; a longer name is looked up each time."""
GROUP_TOPIC_SETS_KEPT_MAX: Final = 4
"""Sets of subscribed topics whose partitions are all cached, for a group that many members join one after the other."""
GROUP_LOADS_AT_ONCE: Final = 2
"""Partitions of the offsets topic that are loaded at a time. More would only keep the interpreter from the event
loop."""
GROUP_GATHERED_BYTES_MAX: Final = 64 * 1024
"""Bytes of offset commits that arrive together and are appended as one batch."""
GROUP_ANSWERS_PER_TURN_MAX: Final = 8
"""Waiting members of a group that are answered in one turn of the event loop, which then sends the answers."""
GROUP_LOAD_BYTES: Final = 256 * 1024
"""Bytes of the offsets topic that are decoded at a time while groups are loaded."""

GROUP_TICK_PUT_OFF_MS: Final = 500
"""Delay after which a consumer group with expired members is checked again, while their heartbeats are not accepted."""

ALARM_LATE_MS_MAX: Final = 1_000
"""An alarm of a group or a transaction that rings later than this shows that the broker itself stood still."""
ALARM_GRACE_MS_MAX: Final = 5_000
"""Longest that such an alarm then waits for what clients sent meanwhile, or send once they are back."""

GROUPS_READY_MS_MAX: Final = 1_000
"""Longest that a request which creates the offsets topic waits until groups can be kept; then clients ask again."""

SHARD_REFUSED_NAMES_MAX: Final = 1_000
"""Groups, or transactional ids, of one shard whose refused records are logged, before one of them is written."""
SHARD_NAMES_PER_SLICE: Final = 100
"""Groups, or transactional ids, that a sweep looks at before others get their turn."""

# transactions
TRANSACTIONAL_ID_CHARS_MAX: Final = 32_767 // 3
"""Characters of a transactional id: a record's name has at most 32,767 bytes."""
TRANSACTIONAL_IDS_PER_SHARD_MAX: Final = 1_000_000
"""Transactional ids of one partition of `__transaction_state`; a new one beyond them is refused."""
TRANSACTION_ANSWER_MS_MAX: Final = 30_000
"""How long a client of the transaction coordinator waits for a record; then it asks again."""
MARKER_LINKS_MAX: Final = 100
"""Connections of a transaction coordinator to leaders of partitions."""
MARKERS_PER_REQUEST_MAX: Final = 500
"""Markers that one request to another broker carries."""
TRANSACTION_GATE_ANSWER_MS_MAX: Final = 5_000
"""How long a coordinator's answer about a producer is waited for; then the client sends its batch again."""
TRANSACTION_GATE_LINKS_MAX: Final = 100
"""Connections of a partitions' leader to transaction coordinators."""
TRANSACTION_GATE_RETRY_MS: Final = 20
"""Kafka's `add.partitions.to.txn.retry.backoff.ms`: the pause before a coordinator that is busy is asked again."""
TRANSACTION_GATE_WAIT_MS_MAX: Final = 100
"""Kafka's `add.partitions.to.txn.retry.backoff.max.ms`: then the client asks again."""
MARKERS_WAIT_MS_MAX: Final = 30_000
"""How long an answer to such a request is waited for; then its markers are sent again."""
TRANSACTION_RETRY_MS: Final = 100
"""Delay after which a marker or a record of a transaction, which could not be written, is written again. A record that
is refused again waits twice as long."""
TRANSACTION_REFUSED_RETRY_MS: Final = 5_000
"""The longest delay of a record, and the delay of a marker that a partition refused for good, as far as it knows."""

# consensus
RAFT_APPEND_BYTES_MAX: Final = 1024 * 1024
"""Bytes of entries in one message to a member, unless a single entry is larger."""
RAFT_WINDOW_MESSAGES_MAX: Final = 64
"""Unanswered messages with entries to one member."""
RAFT_WINDOW_BYTES_MAX: Final = 8 * 1024 * 1024
"""Bytes of these messages; one message may go beyond."""
RAFT_UNCOMMITTED_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of entries that a leader has not yet committed; further proposals are refused."""
RAFT_READS_WAITING_MAX: Final = 10_000
"""Reads that wait to be confirmed by a quorum; further ones are refused."""
RAFT_ENTRIES_KEPT: Final = 1_000
"""Entries below a snapshot that a leader keeps, so that a member that is slightly behind needs no snapshot."""

SETTLED_PER_ENTRY_MAX: Final = 1_000
"""Partitions up to which a broker's arrival or departure is one entry. Deciding and applying it holds the event loop
for about 10 ms, on a slow machine for 25."""
SETTLED_PER_SLICE_MAX: Final = 250
"""Partitions in each of the entries for a broker that has more."""
SLICES_AT_ONCE_MAX: Final = 4
"""Such entries that are on their way to the quorum at a time."""
PARTITIONS_SEARCHED_PER_TURN_MAX: Final = 2_000
"""Partitions that a search over all of them checks in one turn of the loop: about 2 ms."""
SETTLED_ALONE_MAX: Final = 50_000
"""The bound of the two above for a broker that is alone in its cluster and starts: it serves nobody while the loop is
held."""

# the way to the controller
CONTROLLER_WAIT_MS_MAX: Final = 5_000
"""Longest that a broker waits for the controller's answer, or for a controller to exist, before it refuses a
request."""
CONTROLLER_ANSWER_MS_MIN: Final = 1_000
"""Time that has to be left for the controller's answer when a request is sent that must not be done twice. At most half
of all that it has."""
CONTROLLER_BACKOFF_MS: Final = 20
"""Pause before the controller is asked again, unless a new controller becomes known; it doubles with each further
one."""
CONTROLLER_BACKOFF_MS_MAX: Final = 250
CONTROLLER_LINKS_MAX: Final = 16
"""Brokers to which such connections are kept open."""
FORWARDED_BYTES_MAX: Final = 4 * 1024 * 1024
"""Largest request that is forwarded to the controller."""
ISR_PROPOSALS_PER_ASK_MAX: Final = 2_000
"""Partitions in one ISR proposal of a leader. They are decided in one step and make one entry."""
ELECTIONS_PER_ENTRY_MAX: Final = 10_000
"""Leaders that are elected in one step, on request or because a partition had none."""
LEADERS_MOVED_PER_ROUND_MAX: Final = 100
"""Leaders that return to their preferred replica at once. Each makes its clients look for it."""
ELECTOR_PAUSE_MS: Final = 1_000
"""Time between two such rounds, and before a failed one is tried again."""
REPLICAS_GROWN_AT_ONCE_MAX: Final = 50
"""Partitions that get additional replicas at a time, in the whole cluster, because brokers joined."""
TOPICS_TOLD_MAX: Final = 20
"""Topics that the log names when they lose their leaders at once; the rest are counted."""
PARTITIONS_TOLD_MAX: Final = 20
"""Partitions of each that the log names."""
CLOCK_ERROR_MAX: Final = 0.07
"""Fraction by which the speeds of two brokers' clocks may differ: one 3 % fast, the other 3 % slow, and a margin. Real
clocks differ by a thousandth of that."""
REPLACED_SESSION_PART_MAX: Final = 1 / 3
"""Largest fraction of its session for which a replaced controller is assumed to have been silent already."""
LEASE_WAIT_MS_MAX: Final = 250
"""Longest that a request waits for a lost lease to be renewed. It holds up the requests behind it on its connection."""
LEAVE_WAIT_MS_MAX: Final = 3_000
"""Longest that a stopping broker waits until others lead its partitions, while the metadata does not change."""
SUCCESSORS_WAIT_MS_MAX: Final = 5_000
"""Longest that it waits before that, until followers that could not lead yet are in sync."""
UNREADY_WAIT_MS_MAX: Final = 1_000
"""Longest that a client's request waits for a broker that is not ready yet; then its connection is closed."""
REGISTRATION_PATIENCE_MS: Final = 10_000
"""Longest that a broker waits until the quorum notices that another broker of its id, with another disk, is gone."""
REGISTRATION_LATE_MS_MAX: Final = 120_000
"""Longest that a request of a dead process is on its way: the kernel sends what it left for about as long."""
REGISTRATIONS_LATE_MAX: Final = 3
"""Such requests that a broker answers by another registration. After more, another process holds a copy of its data."""
REGISTRATION_TOLD_MS: Final = 5_000
"""Time after which a registered broker logs that it still waits to see its registration in the quorum's log."""
JOIN_TIMEOUT_MS: Final = 2_000
"""Longest that a broker which joins a cluster waits for one answer."""
DURABLE_WAIT_TOLD_S: Final = 10
"""How often a command says for which broker's work on durable history it waits."""
BROKER_DEATH_WAIT_S: Final = 60
"""Longest that `headrace broker remove` waits for the end of the session of a broker that does not answer."""
BROKER_DEATH_LOOK_S: Final = 0.2
"""How often it looks."""
BROKER_CONNECT_S: Final = 3
"""Longest that it waits for an answer of the broker: to a connection, to the first request, and to a login."""

WAIT_TOLD_AGAIN_S: Final = 30
"""Time after which a broker that still waits to join or to be registered logs so again."""
JOIN_BACKOFF_MS: Final = 50
"""Pause after nobody answered; it doubles with each further one."""
JOIN_BACKOFF_MS_MAX: Final = 1_000

# the quorum's driver and its network
RAFT_NUMBER_MAX: Final = 2**62
"""Highest term or offset that is accepted from another member. One more must still have a form on the disk."""
QUORUM_RECOVERY_EPOCHS: Final = 1_000_000
"""Added to a recovered quorum's term and to every partition's epochs. So none is below the last decision of a lost
voter. They have 31 bits, which leaves room for about two thousand recoveries."""
QUORUM_RECOVERY_INDEXES: Final = 2**32
"""Added to the commit log's index, and so to the broker epochs that come from it."""
QUORUM_RECOVERY_PRODUCER_IDS: Final = 2**40
"""Added to producer ids."""
QUORUM_PROBE_MS: Final = 2_000
"""Longest that `headrace quorum recover` waits for each other broker to answer that it is alive."""
DOUBTED_INDEXES: Final = 2**24
"""Added to the commit log's index where its store may have lost the last entries. More than that are never lost at
once."""
DOUBTED_EPOCHS: Final = 10_000
"""Added to every partition's epochs then. They have 31 bits, which leaves room for two hundred thousand doubts."""
DOUBTED_PRODUCER_IDS: Final = 2**34
"""Added to producer ids then: more than as many entries give out."""
RAFT_TICK_MS: Final = 50
RAFT_HEARTBEAT_TICKS: Final = 3
RAFT_ELECTION_TICKS: Final = 20
"""Silence of a leader after which an election is held: a random number of ticks from this to twice as much."""
RAFT_SNAPSHOT_CHUNK_BYTES: Final = 256 * 1024
"""Bytes of a snapshot in one message."""
RAFT_WRITTEN_ON_LOOP_BYTES_MAX: Final = 64 * 1024
"""Bytes of entries that are written on the event loop and synced beside it; more go to a worker thread."""
APPLIED_PER_TURN_BYTES_MAX: Final = 32 * 1024
"""Bytes of entries that are decoded and applied in one turn of the event loop; a larger entry is decoded in a worker
thread."""
RAFT_STOP_MS_MAX: Final = 1_000
"""Longest that a stop waits until others acknowledge the writes under way."""
SUCCESSION_STEP_MS: Final = 40
"""Delay between voters' candidacies when the leader's process is plainly dead. The voter with the smallest id stands at
once, each further one this much later. Each stands again after as many steps as there are voters,
SUCCESSION_ATTEMPTS_MAX times in all."""
SUCCESSION_ATTEMPTS_MAX: Final = 5
PEER_QUEUE_MESSAGES_MAX: Final = 1_024
PEER_QUEUE_BYTES_MAX: Final = 16 * 1024 * 1024
"""Messages to one member that wait to be written; the oldest are dropped beyond."""
PEER_FRAME_BYTES: Final = 1024 * 1024
"""Bytes of messages in one frame to a member, unless a single message is larger."""
PEER_FRAME_BYTES_MAX: Final = 32 * 1024 * 1024
"""Largest frame that is accepted from another member."""
PEER_FRAME_MESSAGES_MAX: Final = 4_096
PEER_ANSWER_BYTES_MAX: Final = 4_096
"""Bytes that a member may send over a connection that another member made to it."""
PEER_ADDRESSES_MAX: Final = 4
"""Addresses of one member that are remembered, the newest first."""
PEERS_MAX: Final = 1_000
"""Members whose addresses are remembered."""
PEER_CONNECT_MS_MAX: Final = 2_000
PEER_BACKOFF_MS_MIN: Final = 20
PEER_BACKOFF_MS_MAX: Final = 500
"""Pause after a connection to a member failed or broke soon; it doubles from the first to the second of these."""
PEER_UNACKNOWLEDGED_MS_MAX: Final = 5_000
"""Time after which a connection is given up because the peer acknowledges no bytes."""

# compaction
CLEANER_PAUSE_MS_MIN: Final = 10
"""Shortest time between two checks for logs that need cleaning, whatever log.cleaner.backoff.ms says."""

# replication
REPLICA_ANSWER_BYTES_MAX: Final = 4 * 1024 * 1024
"""Bytes of batches in one answer to a follower, which checks them on its event loop. One first batch may be larger."""
REPLICA_IDLE_MS: Final = 500
"""Longest that a follower's frame waits for an answer while there is nothing to copy (replica.fetch.wait.max.ms)."""
REPLICA_NEWS_MS_MAX: Final = 20
"""Delay after which an idle follower is sent a higher high watermark."""
REPLICA_SILENCE_MS_MAX: Final = 5_000
"""Silence of a leader after which the connection to it is given up."""
REPLICA_BULK_BYTES_MIN: Final = 256 * 1024
"""Size of an answer from which on a follower requests the next one before it has flushed this one."""
REPLICA_UNFLUSHED_BYTES_MAX: Final = 16 * 1024 * 1024
"""Unflushed bytes from one leader at which a follower stops to request more."""
REPLICA_FRAME_ROWS_MAX: Final = 10_000
"""Partitions that one frame to a leader names; more go with the next frame."""
REPLICA_BEGINNINGS_MAX: Final = 4
"""Copies of one follower that get a new start, with its producers, at a time; the next waits until it is accepted."""
REPLICA_TOLD_MAX: Final = 200_000
"""Refusals that wait for the follower's next frame. A follower that causes more is not served."""
REPLICA_BACKOFF_MS_MIN: Final = 20
REPLICA_BACKOFF_MS_MAX: Final = 1_000
"""Pause after a connection to a leader failed, or before a refused partition is requested again. It doubles from the
first to the second of these."""

THROTTLE_BURST_S: Final = 1.0
"""Seconds of a replication throttle's rate that may be used at once after an idle time of as long."""

ISR_BACKOFF_MS: Final = 100
"""Pause before an ISR that the controller has not decided on is proposed again."""

# acknowledgement before the flush
REQUEST_WAIT_MS_MIN: Final = 1_000
"""Shortest that a broker waits for its own disk and for the controller, even where a request has a shorter timeout. In
Kafka that timeout counts for other replicas alone. A final result is better than an unknown one."""
OWN_FLUSH_WAIT_MS_MAX: Final = 1_000
"""Longest that a request for the latest offset waits until this broker's own disk makes appended records visible."""

# copies that are replaced
RENEWALS_AT_ONCE_MAX: Final = 4
"""Damaged copies that one broker removes from the ISR at a time to copy them again. Copies that cannot go on are not
counted."""
RENEWAL_LOOK_MS: Final = 1_000
"""Time between two checks of damaged copies, while there are any."""
RENEWAL_ROOM_FACTOR: Final = 2
"""A copy is replaced only where the volume has this many times its size free, because the old one is kept until
then."""
REPLICA_DAMAGED_BACKOFF_MS_MAX: Final = 30_000
"""Longest pause before a leader whose own data is damaged is asked for it again; the pause doubles up to this."""
AILMENTS_TOLD_MAX: Final = 1_000
"""Damaged logs in one answer of a broker."""
MOVES_ASK_TIMEOUT_MS: Final = 15_000
"""Longest that a command waits for an answer about moves."""
COST_TOPICS_MEASURED_MAX: Final = 500
"""Topics of one plan whose bytes that are not exported yet are asked for; of the others they are unknown."""
COST_ASKS_AT_ONCE_MAX: Final = 8
"""Topics that are asked for at once, for the cost of a plan."""
AILMENTS_TIMEOUT_MS: Final = 2_000
"""Longest that a command waits for an answer about damage."""
STATE_LOOK_MS: Final = 5_000
"""Time between two checks of a broker's own state."""
STATE_PARTITIONS_NAMED_MAX: Final = 5
"""Partitions that one state names; the rest are counted."""
STATES_TOLD_MAX: Final = 16
"""States in one heartbeat, the worst first."""
DESCRIPTORS_USED_FRACTION_MAX: Final = 0.9
"""Fraction of its file descriptors from which on a broker reports their use."""
CLOCK_DIFFERENCE_MS_MAX: Final = 30_000
"""Difference of the clocks of a broker and the controller from which on it is reported. A heartbeat may be late by
seconds."""
DOCTOR_ASK_MS_MAX: Final = 3_000
"""Longest that `headrace doctor` waits for one answer of a broker that it has reached."""
DOCTOR_MS_MAX: Final = 8_000
"""Longest that `headrace doctor` checks in all; it has ten seconds to report."""
DOCTOR_TRANSACTION_MS: Final = 60_000
"""Transactions younger than that are no concern of `headrace doctor`, nor are those so little beyond their timeout."""
DOCTOR_TRANSACTIONS_MAX: Final = 20
"""Transactions of each kind that `headrace doctor` looks at and names."""
DOCTOR_LOOK_AGAIN_MS: Final = 1_000
"""Pause between its two looks at transactions that are decided and not marked."""
DOCTOR_TOPICS_PER_ASK_MAX: Final = 1_000
"""Topics whose configs `headrace doctor` asks for in one request."""

# quotas
QUOTA_ENTITIES_MAX: Final = 10_000
"""Entities that have quotas of their own."""
QUOTA_NAME_CHARACTERS_MAX: Final = 1_024
"""Length of a user name or a client id that has a quota."""
ACLS_MAX: Final = 100_000
"""ACLs of a cluster."""
ACL_TEXT_CHARACTERS_MAX: Final = 1_024
"""Length of a principal, a host or a name in an ACL."""
ACLS_PER_REQUEST_MAX: Final = 10_000
"""ACLs that one request creates, or deletes. As Kafka's controller writes so many records at once at most."""
ACLS_LOOKED_THROUGH_MAX: Final = 1_000_000
"""Patterns that the filters of one request look through, where they name none: about a second. The first filter looks
through all."""
SCRAM_USERS_MAX: Final = 100_000
"""Users with SCRAM credentials."""
SCRAM_SALT_BYTES_MAX: Final = 1_024
"""Length of the salt of a SCRAM credential."""
SCRAM_ALTERATIONS_PER_REQUEST_MAX: Final = 1_000
"""Credentials that one request sets and deletes. Each costs a few hashes."""
SCRAM_USERS_COUNTED_AT_ONCE_MAX: Final = 1_000
"""Users whose credentials are looked through on the event loop; more are in a worker thread."""
AUTHENTICATION_MS_MAX: Final = 30_000
"""Time from a client's connection to the end of its authentication."""
AUTHENTICATION_REQUESTS_MAX: Final = 16
"""Requests of a client before it is authenticated; SCRAM takes five."""
AUTHENTICATION_FAILURE_ADDRESSES_MAX: Final = 1_000
"""Addresses whose failed authentications are counted one by one."""
UNAUTHENTICATED_BYTES_MAX: Final = 16 * 1024 * 1024
"""Unfinished frames of all clients that are not authenticated. A client that exceeds it is closed."""
OAUTH_TOKEN_BYTES_MAX: Final = 32 * 1024
"""Longest token of OAUTHBEARER."""
OAUTH_KEYS_BYTES_MAX: Final = 1024 * 1024
"""Size of the document with an issuer's public keys."""
OAUTH_KEYS_MS_MAX: Final = 5_000
"""Longest that the issuer may be silent while its keys are read."""
OAUTH_KEYS_MAX: Final = 100
"""Public keys of an issuer that are used."""
REAUTHENTICATION_PAUSE_MS: Final = 1_000
"""Shortest time between two authentications on one connection (Kafka's)."""
SHOWN_NAME_CHARACTERS_MAX: Final = 100
"""Characters of a client's text, such as a user's name, that a log line shows."""
AUTHORIZATIONS_KEPT_MAX: Final = 20_000
"""Decisions of the authorizer that are remembered: some 10 MB."""
AUDIT_LINES_PER_SECOND_MAX: Final = 1_000
"""Lines of the audit log, beyond a burst of AUDIT_LINES_BURST_MAX. The rest are counted, as with each client's own."""
AUDIT_LINES_BURST_MAX: Final = 5_000
"""See AUDIT_LINES_PER_SECOND_MAX."""
AUDIT_LINES_OF_A_CLIENT_PER_SECOND_MAX: Final = 20
"""Lines about one principal at one address, beyond a burst of AUDIT_LINES_OF_A_CLIENT_BURST_MAX."""
AUDIT_LINES_OF_A_CLIENT_BURST_MAX: Final = 200
"""See AUDIT_LINES_OF_A_CLIENT_PER_SECOND_MAX."""
AUDITED_CLIENTS_MAX: Final = 10_000
"""Clients whose lines are counted for each alone. For one more, the client that was heard of the longest ago is
forgotten."""
AUDIT_QUEUE_LINES_MAX: Final = 10_000
"""Lines of the audit log that wait for their disk: at some 500 bytes each."""
QUOTA_CLIENTS_MAX: Final = 10_000
"""Client ids that are measured individually at a time. Further ones are measured together until some are idle."""
QUOTA_PERCENTAGE_MIN: Final = 0.001
"""Smallest request_percentage: 10 us of the event loop in a second. Less would shut the client out."""
QUOTA_THROTTLE_MS_MAX: Final = 30_000
"""Longest throttle time of a client beyond its quota, during which it is not read either, however long the window
is."""

# metrics
METRICS_PARTITIONS_PER_TURN_MAX: Final = 500
"""Partitions that a scrape reads before other tasks have their turn of the event loop: about 2 us each."""
TRACES_QUEUED_SPANS_MAX: Final = 2_048
"""Spans that wait to be sent. Further ones are dropped."""
TRACES_RECORDS_READ_MAX: Final = 32
"""First records of a produce request whose headers may say to which trace it belongs."""
TRACES_UNPACKED_BYTES_MAX: Final = 64 * 1024
"""Bytes of a batch that are unpacked for them. A compressed batch that is larger belongs to no trace."""
TRACES_EXPORT_S_MAX: Final = 5
"""Seconds that a collector may take for a batch of spans."""
METRICS_CONNECTIONS_MAX: Final = 16
"""Connections of scrapers at a time; others are closed."""
METRICS_REQUEST_BYTES_MAX: Final = 16 * 1024
"""Size of the head of a scrape request."""
METRICS_REQUEST_MS_MAX: Final = 30_000
"""Time from a scraper's connection to the end of its answer."""
LOOK_MS_MAX: Final = 2_000
"""Longest that `headrace top` waits for one answer. A broker that does not answer in time counts as paused."""
LOOK_PARTITIONS_PER_ASK_MAX: Final = 1_000
"""Partitions whose ends one request of `headrace top` or the console asks for: some 5 ms of the broker."""
CLIENT_PARTITIONS_PER_PAGE: Final = 1_000
"""Partitions in one page of a list of all topics: some 10 ms of the client, and 5 of the broker."""
LOOK_GROUPS_MAX: Final = 1_000
"""Groups that `headrace top` asks of each coordinator, the first by name."""
OVERTAKING_MS_MAX: Final = 5_000
"""Time after a broker begins to write to a partition in which it may take a producer's first batch for one that
overtook others."""

# pipelines on Spark
PIPELINE_COMMITS_READ_AT_ONCE_MAX: Final = 16
"""Commits of a table that are read at a time."""
PIPELINE_COMMITS_HELD_MAX: Final = 256
"""Commits that are read ahead of the replay."""
PIPELINE_BATCH_BYTES: Final = 1024 * 1024 * 1024
"""Approximate bytes of record batches in one commit, unless its pipeline says otherwise."""
PIPELINE_FILE_BYTES: Final = 128 * 1024 * 1024
"""Approximate size of one file of a table, unless its pipeline says otherwise."""
PIPELINE_NICE: Final = 10
"""Niceness of a local session, unless its pipeline says otherwise."""
PIPELINE_NICE_MAX: Final = 19
PROCESSORS_SPARED_MAX: Final = 1_024
"""Processors that a pipeline leaves to brokers; one stays with the pipeline in any case."""
PIPELINE_TASKS_A_CORE: Final = 2
"""Tasks per core into which a commit is cut where that makes large files. The second evens out tasks that take
longer."""
PIPELINE_CORES: Final = 16
"""Cores that are assumed where a session does not say how many it has (Spark Connect)."""
PIPELINE_TASK_BYTES_MAX: Final = 256 * 1024 * 1024
"""Bytes of unfinished files that a task holds; beyond, it finishes the largest."""
PIPELINE_OPEN_FILES_MAX: Final = 64
"""Unfinished files of one task. Beyond this many values of the partition columns, it finishes the largest."""
PIPELINE_ROW_GROUP_ROWS: Final = 128 * 1024
PIPELINE_ROW_GROUP_BYTES: Final = 32 * 1024 * 1024
"""Bytes of rows that are gathered before they are compressed."""
PIPELINE_PATH_CHARS_MAX: Final = 100
"""Length of a topic's name, or a column's value, in the name of a file or directory."""
PIPELINE_COMPACT_FILES_MIN: Final = 8
"""Small files that belong together before they are merged. It is also the base of the powers that group files by
size."""
PIPELINE_COMPACT_GROUP_MAX: Final = 1_000
"""Small files that one task merges into one."""
PIPELINE_COMPACT_FILES_MAX: Final = 10_000
"""Files that one commit merges. Its lines stay far below the largest object that a store puts at once."""
PIPELINE_COMPACT_EVERY: Final = 32
"""Commits of a continuous pipeline between two checks for small files."""
PIPELINE_PUBLISH_TRIES_MAX: Final = 5
"""Attempts to put a commit into a Delta or Iceberg table that others change meanwhile."""
REPLAY_BATCH_BYTES: Final = 64 * 1024 * 1024
"""Approximate bytes of record batches that a replay takes at a time, unless its pipeline says otherwise."""
REPLAY_OFFSETS_MAX: Final = 1_000_000
"""Offsets that a replay takes at a time."""
REPLAY_ROWS_MAX: Final = 1_000_000
"""Rows that a replay makes of one record. With the limit above, this is what the digits of a row's number hold."""
AUDIT_PROBLEMS_MAX: Final = 1_000
"""Problems that an audit lists for one task; it counts all."""
STATISTICS_TOP_MAX: Final = 10_000
"""Keys of each topic that statistics name."""
AUDIT_MIRROR_TRIES_MAX: Final = 11
AUDIT_MIRROR_LOOK_MS: Final = 500
"""Number of further checks for a catalog that should be in a store and is not, and the pause before each."""
AUDIT_TASK_BYTES: Final = 256 * 1024 * 1024
"""Approximate bytes of objects that one task of an audit reads."""

# Redis
REDIS_COMMANDS_IN_FLIGHT_MAX: Final = 10_000
"""Commands on one connection to Redis that are not answered yet; further ones are refused and not sent."""
REDIS_CALLS_AHEAD_MAX: Final = 4
"""Calls of one log that leave ahead of its round, which may have to send each of them again."""
REDIS_IN_FLIGHT_AHEAD_MAX: Final = 2_000
"""Commands on one connection behind which no append leaves ahead: the next round needs room."""
REDIS_BYTES_IN_FLIGHT_MAX: Final = 64 * 1024 * 1024
"""Bytes of these commands."""
REDIS_UNSENT_BYTES_HIGH: Final = 1024 * 1024
"""Bytes that the event loop holds for a socket at which a connection to Redis writes no more for now."""
REDIS_REQUEST_MS_MAX: Final = 5_000
"""Silence of Redis after which a connection is given up, and the outcome of its commands is unknown."""
REDIS_CONNECT_MS_MAX: Final = 2_000
REDIS_OPEN_MS_MAX: Final = 5_000
"""Longest that a start waits for the first connection to each server of Redis."""
REDIS_LOOK_MS: Final = 500
"""Shortest time between two looks at Redis's servers while a replica is missed."""
REDIS_SENTINEL_LOOK_MS: Final = 2_000
"""How often Sentinels are asked for the master while the one that they named serves."""
REDIS_LEASE_MS: Final = 6_000
"""How long the controller's lease in Redis lasts; its holder renews it after a third of that."""
REDIS_LEASE_POLL_MS: Final = 500
"""Pause between two tries to get the lease from another broker."""
REDIS_OUSTED_AGAIN_MS: Final = 60_000
"""For so long a controller that was taken for dead is not taken for dead again: its lease ends by itself."""
REDIS_METADATA_BLOCK_MS: Final = 1_000
"""How long one read of the commit log in Redis waits for an entry. Then it is checked that the log is the same."""
REDIS_METADATA_READ_ENTRIES: Final = 500
"""Entries that one read of it takes."""
REDIS_METADATA_TRIES_MAX: Final = 50
"""Tries to read all of it while it changes. After them it counts as damaged."""
REDIS_METADATA_PART_BYTES: Final = 512 * 1024
"""Bytes of one part of its snapshot."""
REDIS_METADATA_KEPT_ENTRIES: Final = 10_000
"""Entries that stay below a snapshot, for brokers that are a little behind."""
REDIS_METADATA_UNCOMMITTED_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of entries that the controller has sent or is about to send, and that are not committed."""
REDIS_METADATA_SENT_AT_ONCE: Final = 500
"""Entries of them that go in one round trip."""
REDIS_METADATA_INLINE_BYTES: Final = 32 * 1024
"""Bytes of them that are decoded on the event loop before they are sent; more are in a worker thread."""
REDIS_METADATA_AHEAD_MS: Final = 10_000
"""For so long a broker that has read more than the commit log in Redis holds waits until a controller goes on. Then it
takes what is there."""
REDIS_BACKOFF_MS_MIN: Final = 20
REDIS_BACKOFF_MS_MAX: Final = 1_000
"""Pause after a connection to Redis failed; it doubles from the first to the second of these."""
REDIS_TAIL_BYTES_MAX: Final = 64 * 1024 * 1024
"""Newest batches of all partitions that a broker keeps in memory for readers, where Redis has the logs."""
REDIS_UNFLUSHED_BYTES_MAX: Final = 32 * 1024 * 1024
"""Bytes of batches that Redis has not acknowledged yet; further ones are refused, retriably."""
REDIS_APPEND_BYTES_MAX: Final = 4 * 1024 * 1024
"""Bytes of batches in one call of a function; a single batch may be larger."""
REDIS_RANGE_BYTES: Final = 8 * 1024 * 1024
"""Bytes behind which the time index gets an entry, so that a look-up by time reads no more than these."""
REDIS_CARRIED_AT_ONCE: Final = 500
"""Entries that one call moves to a compacted Stream; it holds the server for about as many microseconds."""
REDIS_FETCH_BYTES: Final = 2 * 1024 * 1024
"""Bytes that one read of older records brings into memory, more or less."""
REDIS_FETCH_ENTRIES_MAX: Final = 5_000
"""Entries that one such read asks for."""
REDIS_FETCHES_MAX: Final = 64
"""Reads of older records under way in one broker; readers wait for their turn beyond that."""
REDIS_LOGS_LOOKED_AT_ONCE: Final = 1_000
"""Logs that are compared with Redis together, after a failover."""
REDIS_NOTE_MS: Final = 10_000
"""Time in which a failure of Redis is logged once, of each kind."""
REDIS_STOP_MS_MAX: Final = 3_000
"""Longest that a broker that stops waits for a Redis that does not answer. It acknowledges nothing that waits then."""
REDIS_RELEASE_MS_MAX: Final = 1_000
"""Longest that a controller that stops waits until its lease is given back."""
REDIS_WAIT_MS: Final = 3_000
"""Longest that one WAIT or WAITAOF waits in the server; shorter than REDIS_REQUEST_MS_MAX."""
REDIS_REDIRECTS_MAX: Final = 5
"""Times that one command follows MOVED or ASK to another server of a Redis Cluster."""
REDIS_CLUSTER_NODES_MAX: Final = 1_000
"""Servers of a Redis Cluster to which connections are kept."""
REDIS_CLUSTER_LOOK_MS: Final = 1_000
"""Longest that a server of a Redis Cluster may take to tell the slots, before another is asked."""
TAIL_RECORDS_MAX: Final = 100_000
"""Records that `headrace consume --tail` keeps of each partition."""

# console
CONSOLE_LOOK_MS: Final = 2_000
"""Time between two looks at the cluster while somebody views a page."""
CONSOLE_IDLE_LOOK_MS: Final = 15_000
"""Time between two looks while nobody does. The charts go on."""
CONSOLE_LOOK_SHARE: Final = 20
"""A look that took some time is followed by a pause of that many times as long: brokers' time is the users'."""
CONSOLE_PAUSE_MS_MAX: Final = 15_000
"""Longest of these pauses: a page is not older than that by them."""
CONSOLE_FORGET_MS: Final = 120_000
"""A value that nobody views, and that is asked for then alone, is forgotten after so long."""
CONSOLE_CHECK_MS: Final = 10_000
"""Time between two diagnoses while somebody views them."""
CONSOLE_FLOWS_MS: Final = 5_000
"""Time between two looks at the bytes that brokers receive and send."""
CONSOLE_METRICS_BROKERS_MAX: Final = 50
"""Brokers whose metrics are looked at for that."""
CONSOLE_SIZES_MS: Final = 30_000
"""Time between two looks at the sizes of all partitions."""
CONSOLE_MOVES_MS: Final = 1_000
"""Time between two looks at moves under way."""
CONSOLE_FIRST_MS: Final = 4_000
"""Longest that a page waits for the first answer of the cluster; then it says that there is none yet."""
CONSOLE_MORE_MS: Final = 500
"""Longest that it waits for what it can be shown without."""
CONSOLE_CHART_POINTS_MAX: Final = 1_800
"""Points of one chart: an hour, at one look in two seconds."""
CONSOLE_CHART_GROUPS_MAX: Final = 500
"""Groups whose lag is kept for charts."""
CONSOLE_PAST_POINTS: Final = 360
"""Steps of a chart whose points come from Prometheus."""
CONSOLE_PAST_BYTES_MAX: Final = 256 * 1024
"""Bytes of one answer of Prometheus."""
CONSOLE_PAST_MS_MAX: Final = 5_000
"""Longest that a chart waits for Prometheus."""
CONSOLE_PAST_KEPT_MS: Final = 30_000
"""Time for which all viewers are shown one answer of Prometheus."""
CONSOLE_CONNECTIONS_MAX: Final = 512
"""Connections of browsers that are served at once."""
CONSOLE_STREAMS_MAX: Final = 200
"""Pages that are kept up to date at once; others are served as they are."""
CONSOLE_STREAMS_OF_A_SESSION_MAX: Final = 12
"""Pages of one session among them. A browser keeps six connections to one address."""
CONSOLE_STREAMS_OF_AN_ADDRESS_MAX: Final = 100
"""Pages of one address among them, where nobody logs in: a proxy has one for all of its viewers."""
CONSOLE_FULL_RETRY_MS: Final = 30_000
"""A page that found no place among them asks again after this time."""
CONSOLE_READERS_MAX: Final = 16
"""Pages that read records of the cluster at once."""
CONSOLE_TAILS_OF_A_SESSION_MAX: Final = 4
"""Pages of one session among them that show new records as they come."""
CONSOLE_TAILS_OF_AN_ADDRESS_MAX: Final = 8
"""Pages of one address among them that do so, where nobody logs in."""
CONSOLE_ROWS: Final = 100
"""Rows of one page of a list."""
CONSOLE_SORTED_ROWS_MAX: Final = 5_000
"""Rows of a list that are sorted in one step; a longer list is sorted in pieces of as many, which are merged."""
CONSOLE_RECORDS: Final = 50
"""Records on one page."""
CONSOLE_RECORDS_MAX: Final = 500
CONSOLE_SCAN_RECORDS_MAX: Final = 200_000
"""Records that one search by key looks at."""
CONSOLE_KEPT_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of records that it keeps meanwhile; it stops where the records that it was asked for have more."""
CONSOLE_BROWSE_MS_MAX: Final = 10_000
"""Longest that one page reads records."""
CONSOLE_VALUE_BYTES_MAX: Final = 64 * 1024
"""Bytes of one key, value or header that a page shows."""
CONSOLE_FORM_BYTES_MAX: Final = 64 * 1024
CONSOLE_SENT_FORMS_MAX: Final = 1_000
"""Forms that changed something, and whose answers are remembered."""
CONSOLE_EXPORT_RECORDS_MAX: Final = 10_000
"""Records in one file that a viewer takes along."""
CONSOLE_EXPORT_MS_MAX: Final = 60_000
"""Longest that records of such a file are looked for."""
CONSOLE_FILTER_CHARS_MAX: Final = 500
"""Characters of a text that records are searched by."""
CONSOLE_PRODUCED_BYTES_MAX: Final = 32 * 1024
"""Bytes of key, value and headers of a record that is written by hand."""
CONSOLE_VERIFICATIONS_MAX: Final = 2
"""Histories that are proven at once; others wait."""
CONSOLE_PROOFS_MAX: Final = 100
"""Proofs of histories that a viewer's console remembers."""
CONSOLE_PIPELINES_MS: Final = 5_000
"""Interval between looks at the files and tables of pipelines while somebody views them."""
CONSOLE_REPORTS_KEPT_MAX: Final = 4
"""Pipelines whose commits and pictures a console of one user keeps, with at most 32 MB for a report."""
CONSOLE_PIPELINE_COMMITS_MAX: Final = 20
"""Newest commits of a pipeline's table that are read for its page."""
CONSOLE_REPORT_BYTES_MAX: Final = 32 * 1024 * 1024
"""Bytes of a pipeline's report that its pictures are taken from."""
CONSOLE_SESSIONS_MAX: Final = 64
"""Viewers who are logged in at once."""
CONSOLE_SESSIONS_OF_A_USER_MAX: Final = 8
"""Sessions of one user; one more ends the one that was unused for longest."""
CONSOLE_IDLE_MS: Final = 30 * 60_000
"""A session ends where its viewer has asked for no page for so long."""
CONSOLE_SESSION_MS_MAX: Final = 12 * 3_600_000
"""Longest that a session lasts, however much it is used."""
CONSOLE_SWEEP_MS: Final = 5_000
"""Time between two looks for sessions that are over."""
CONSOLE_LOGINS_MAX: Final = 8
"""Logins that are tried at once; others wait."""
CONSOLE_OIDC_LOGIN_MS_MAX: Final = 10 * 60_000
"""Longest that a viewer is at the identity provider."""
CONSOLE_OIDC_NEXT_CHARS_MAX: Final = 1_000
"""Characters of the address that a login comes back to; a longer one is forgotten."""
CONSOLE_OIDC_DOCUMENT_MS: Final = 3_600_000
"""Time after which an identity provider's addresses and keys are read again."""
CONSOLE_OIDC_KEYS_MS_MIN: Final = 10_000
"""Shortest time between two readings that tokens with an unknown key cause."""
CONSOLE_OIDC_SKEW_S: Final = 60
"""Seconds by which the provider's clock may differ."""
CONSOLE_FAILED_LOGINS_MAX: Final = 100
"""Failed logins at once of all addresses; the room comes back over a minute."""
CONSOLE_FAILED_LOGINS_OF_AN_ADDRESS_MAX: Final = 20
"""Likewise of one address."""
CONSOLE_FAILED_LOGINS_OF_A_NAME_MAX: Final = 5
"""Likewise of one address with one user's name."""
CONSOLE_FAILING_ADDRESSES_MAX: Final = 10_000
"""Addresses and names whose failed logins are counted."""
EXPRESSION_CHARS_MAX: Final = 1_000
"""Characters of an expression that records are chosen by."""
EXPRESSION_DEPTH_MAX: Final = 64
"""Levels of its tree: `a.b` has two, and so has `a || b`."""
EXPRESSION_STEPS_MAX: Final = 250_000
"""Steps that it takes on one record; a record that takes more is left out."""
EXPRESSION_JSON_CHARS_MAX: Final = 1024 * 1024
"""Characters of a key or value that it sees as JSON; a larger one is a text."""
MASKED_JSON_BYTES_MAX: Final = 1024 * 1024
"""Bytes of JSON that a mask looks into; of more all is masked."""
SCHEMAS_MAX: Final = 1_000
"""Schemas of records that are kept, and likewise ids that no registry knows."""
SCHEMAS_BYTES_MAX: Final = 32 * 1024 * 1024
"""Bytes of the texts of these schemas."""
SCHEMA_BYTES_MAX: Final = 1024 * 1024
"""Bytes of one schema, with those that it refers to."""
SCHEMA_REFERENCES_MAX: Final = 100
"""Schemas that one refers to, directly or not."""
SCHEMA_REFERENCES_DEPTH_MAX: Final = 10
"""Longest chain of such references."""
SCHEMA_NAME_CHARS_MAX: Final = 200
"""Characters of a schema's name, or of what is wrong with it, on a page."""
SCHEMA_ASKS_AT_ONCE_MAX: Final = 8
"""Schemas that one page asks a registry for at the same time."""
SCHEMA_ASKS_MAX: Final = 32
"""Schemas that one page asks for altogether: any bytes may look like an id."""
SCHEMA_REGISTRY_MS_MAX: Final = 3_000
"""Longest that one page waits for a registry altogether."""
SCHEMA_REGISTRY_AGAIN_MS: Final = 10_000
"""Time for which a registry that did not answer is asked nothing."""
SCHEMA_UNKNOWN_MS: Final = 60_000
"""Time after which an id that the registry does not know is asked for again."""
DECODED_BYTES_MAX: Final = 1024 * 1024
"""Bytes of a key or value that is decoded by a schema, and of the JSON that it becomes."""
DECODING_CPU_MS_MAX: Final = 1_000
"""Longest that a processor decodes one value."""
DECODING_MS_MAX: Final = 5_000
"""Longest that one value is waited for, however busy the machine is."""
DECODING_MEMORY_BYTES_MAX: Final = 512 * 1024 * 1024
"""Address space of the process that decodes."""
DECODING_START_MS_MAX: Final = 20_000
"""Longest that this process is waited for when it starts."""
DECODING_FAILURES_MAX: Final = 3
"""Values of one page that may each cost such a process; the page decodes nothing after them."""
DECODING_SCHEMAS_MAX: Final = 200
"""Schemas that one such process is given; another process takes its place then."""
CONSOLE_STOP_MS_MAX: Final = 3_000
"""Longest that open pages are waited for when the console stops."""
PIPELINES_SHOWN_MAX: Final = 100
"""Pipelines whose state the console and the tools for agents tell."""
PIPELINE_COMMITS_SHOWN_MAX: Final = 1_000
"""Commits of a table that are looked at for that, the newest."""
PIPELINE_FILE_BYTES_SHOWN_MAX: Final = 16 * 1024 * 1024
"""Bytes of a pipeline's file, or of its report."""

# tools for agents
MCP_CALLS_MAX: Final = 16
"""Calls of tools that are served at once; another one is refused."""
MCP_CALL_MS_MAX: Final = 30_000
"""Longest that a call takes."""
MCP_PROOF_S_MAX: Final = 25
"""Seconds that one call proves durable history for."""
MCP_RATE_S_MAX: Final = 10
"""Seconds between the two looks that a rate is taken from."""
MCP_ROWS: Final = 50
"""Rows of an answer, unless more are asked for."""
MCP_ROWS_MAX: Final = 200
MCP_FINDINGS_MAX: Final = 50
MCP_RECORDS: Final = 10
MCP_RECORDS_MAX: Final = 100
MCP_SCAN_RECORDS_MAX: Final = 50_000
"""Records that one search by key looks at."""
MCP_READ_MS_MAX: Final = 8_000
"""Longest that one call reads records."""
MCP_VALUE_BYTES: Final = 1_024
"""Bytes of one key, value or header that are shown, unless more are asked for."""
MCP_VALUE_BYTES_MAX: Final = 16 * 1024
MCP_HEADERS_MAX: Final = 20
"""Headers of one record that are shown."""
MCP_RECORDS_BYTES_MAX: Final = 48 * 1024
"""Bytes of all records of an answer, as they are shown."""
MCP_ANSWER_BYTES_MAX: Final = 128 * 1024
"""Bytes of an answer as JSON. A larger one is refused, and nothing of it is sent."""
MCP_NAME_CHARS_MAX: Final = 250
"""Characters of a name or a text of others that an answer has."""
MCP_REASON_CHARS_MAX: Final = 1_000
"""Characters of the sentence that says why a call failed."""
MCP_ARGUMENT_CHARS_MAX: Final = 200
"""Characters of one argument in the log."""
MCP_PRODUCED_BYTES_MAX: Final = 16 * 1024
"""Bytes of key, value and headers of a record that an agent writes."""
MCP_PLANS_MAX: Final = 100
"""Plans that wait for an approval; the oldest go."""
MCP_PLAN_MS_MAX: Final = 15 * 60_000
"""Longest that a plan waits for one."""
MCP_METRICS_BYTES_MAX: Final = 4 * 1024 * 1024
"""Bytes of a broker's metrics that are read."""
MCP_METRICS_MS_MAX: Final = 5_000
MCP_REQUEST_BYTES_MAX: Final = 256 * 1024
"""Bytes of one request over HTTP."""
MCP_CONNECTIONS_MAX: Final = 128
MCP_STOP_MS_MAX: Final = 3_000
"""Longest that open requests are waited for when it stops."""
MCP_TOKEN_CHARS_MIN: Final = 32
"""Characters of a token that lets clients in."""
MCP_TOKEN_BYTES_MAX: Final = 4_096
