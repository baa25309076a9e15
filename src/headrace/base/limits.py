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
REQUEST_ELEMENTS_MAX: Final = 50_000
"""Array elements of a whole request, over all its arrays: five for each of 10,000 partitions. Each may cost some 10
microseconds of the event loop."""
MESSAGE_ELEMENTS_MAX: Final = 4_000_000
"""The same for what a broker, a disk or another's message tells us."""
UNCOUNTED_MESSAGE_BYTES_MAX: Final = 32 * 1024
"""Messages up to this size can do no harm whatever they hold: their elements are not counted."""
RESOURCES_PER_TURN_MAX: Final = 64
"""Resources whose configs are described in one turn of the event loop."""
CONFIG_TEXTS_KEPT_MAX: Final = 4_096
"""Texts of configs that are kept read, for topics have the same ones again and again."""
TAGGED_FIELDS_MAX: Final = 10_000
UUIDS_CACHED: Final = 16_384
"""Topic ids that are kept parsed, for requests name the same ones again and again."""
RECORD_HEADERS_MAX: Final = 100_000
DECOMPRESSED_BATCH_BYTES_MAX: Final = 256 * 1024 * 1024
"""Most that one batch may unpack to (decompression bombs)."""

# topics
TOPIC_NAME_CHARS_MAX: Final = 249
ALIKE_NAMES_TRIED_MAX: Final = 32
"""Names that differ from a new topic's in `.` and `_`, and are looked up one by one; beyond, all topics are gone
through."""
PARTITIONS_PER_REQUEST_MAX: Final = 10_000
"""Most partitions that one CreateTopics or CreatePartitions request may make (Kafka's KIP-599 in spirit)."""
DESCRIBED_PARTITIONS_MAX: Final = 2_000
"""Most partitions in one DescribeTopicPartitions answer (Kafka's max.request.partition.size.limit)."""

# connections
CONNECTIONS_MAX: Final = 20_000
REQUESTS_IN_FLIGHT_PER_CONNECTION_MAX: Final = 64
"""Requests of one connection being answered at a time; reading pauses beyond."""
RESPONSE_QUEUE_BYTES_MAX: Final = 256 * 1024
"""Unsent bytes of one connection at which it is served no further until it has read most of them."""
ANSWER_BYTES_PER_TURN_MAX: Final = 1024 * 1024
"""Answers to one connection after which others have their turn of the event loop."""
SWEPT_PER_TURN_MAX: Final = 500
"""Connections that are looked at in one turn of the event loop, for idle and slow ones."""
QUEUED_REQUEST_BYTES_MAX: Final = 512 * 1024 * 1024
"""Received bytes over all connections that are not yet answered, unfinished frames included, where the config
queued.max.bytes says nothing else. One frame and WAITING_REQUEST_BYTES_MAX may come on top."""
WAITING_REQUEST_BYTES_MAX: Final = 128 * 1024 * 1024
"""First reads of frames that wait for room; who sends more then is closed."""
UNSENT_ANSWER_BYTES_MAX: Final = 256 * 1024 * 1024
"""Answers that are not sent yet, over all connections: the one that has taken nothing for longest is closed then."""
UNSENT_SHARE_OF_ROOM: Final = 4
"""Of the room that is left for unsent answers, one fetch is given one part in so many at most."""
SLOW_READER_MS_MAX: Final = 5_000
"""Time without a byte taken after which a reader is closed while unsent answers take half of their room."""
CONNECTION_IDLE_MS_MAX: Final = 600_000
"""Silence after which a connection is closed, where connections.max.idle.ms says nothing else (Kafka's default)."""
CONNECTION_PATIENCE_MS: Final = 1_000
"""Time that some wait for room before those who hold it without need are closed."""
FRAME_MS_MAX: Final = 30_000
"""Time that a frame may take from its first byte to its last, plus what FRAME_BYTES_PER_SECOND_MIN grants its size."""
FRAME_BYTES_PER_SECOND_MIN: Final = 64 * 1024
CONTESTED_FRAME_BYTES_PER_SECOND_MIN: Final = 8 * 1024 * 1024
"""The same while others wait for room."""
CAUSED_LOG_LINES_BURST_MAX: Final = 100
"""Log lines about bad clients in one go; after those CAUSED_LOG_LINES_PER_SECOND_MAX, and the rest are counted."""
CAUSED_LOG_LINES_PER_SECOND_MAX: Final = 1

LOOP_HELD_MS_MAX: Final = 20
"""Time that anything may hold the event loop before the watchdog says so."""
LOOP_STACK_FRAMES_MAX: Final = 12
"""Innermost frames of the loop's stack that it then tells."""

# fetch
FETCH_SESSIONS_MAX: Final = 1_000
FETCH_SESSION_PARTITIONS_MAX: Final = 1_000_000
"""Partitions that all fetch sessions remember together; a reader whose own do not fit goes without a session."""
FETCH_BYTES_MAX: Final = 55 * 1024 * 1024
"""Most bytes in one fetch response, whatever the client asks for (Kafka's fetch.max.bytes)."""

# unpacking what clients send (compression.type; keys for cleanup.policy=compact)
REPACKED_BATCH_BYTES_MAX: Final = 32 * 1024 * 1024
"""Most that a batch may unpack to where the broker unpacks it."""
UNPACKED_RECORDS_MAX: Final = 500_000
"""Records of a batch that the broker unpacks; each takes some 3 microseconds and, kept, some 120 bytes. A compressed
batch of 725 bytes may hold a million of them."""
WALKED_ON_LOOP_RECORDS_MAX: Final = 2_000
WALKED_ON_LOOP_BYTES_MAX: Final = 512 * 1024
"""Batches of up to so many records, and of so many bytes, are checked on the event loop, others in a worker thread."""
UNPACKED_ON_LOOP_BYTES_MAX: Final = 256 * 1024
"""Compressed batches that unpack to no more, and are a quarter of that at most, are unpacked on the event loop."""
RECORD_FAULTS_MAX: Final = 10_000
"""Records of one batch that an answer names as refused; the others count as refused for their batch's sake."""
REPACK_WAITING_BYTES_MAX: Final = 128 * 1024 * 1024
"""Batches of all partitions, in bytes, that wait for their turn to be unpacked; further ones are refused."""
REPACKS_AT_ONCE_MAX: Final = 2
"""Batches that are unpacked at a time, each in a worker thread."""

# producers
PRODUCERS_PER_PARTITION_MAX: Final = 10_000
PRODUCER_BATCHES_CACHED: Final = 5
"""Batches per producer whose offsets are remembered for duplicates (Kafka's)."""
PRODUCER_SNAPSHOT_INTERVAL_BYTES: Final = 64 * 1024 * 1024
"""Bytes appended to a partition between two snapshots of its producers: the most that recovery reads again."""
PRODUCER_SNAPSHOT_BYTES_MAX: Final = 4 * 1024 * 1024
"""Of what one partition knows of its producers, where another broker is told of it."""
PRODUCER_ID_BLOCK_SIZE: Final = 1_000
"""Producer ids that one ProducerIdsAllocated event hands to a broker (KIP-730)."""

# group commit
FLUSH_GATHER_MS_MAX: Final = 1
"""Longest that a sync waits for others to share it."""
FLUSH_GATHER_BACKOFF_MAX: Final = 10
"""After waits in vain, up to two to the power of this many syncs begin at once before another wait is tried."""

PLACES_REMEMBERED_MAX: Final = 16_384
"""Ways of naming a partition in a request whose partition is remembered."""
PLAIN_FETCH_BYTES_MAX: Final = 32 * 1024
"""Of a fetch that is read without the general codec: about a thousand partitions. Elements of larger requests are
counted."""
DEADLINE_SIGNIFICANT_BITS: Final = 6
"""Of the time that a produce may wait, rounded up: at most some 900 queues, for times up to 2**31 ms."""
DEADLINES_SETTLED_MIN: Final = 1_024
"""Of one queue, those that are kept before the settled ones behind one that still waits are let go."""
KERNEL_SYNCS_MAX: Final = 64
"""Syncs that the kernel has under way at a time; more go to worker threads."""

# journal
JOURNAL_FILE_BYTES: Final = 32 * 1024 * 1024
JOURNAL_FILES_MAX: Final = 6
"""Files of a journal in use at a time. From half of them on, the logs' own files are synced behind it."""
JOURNAL_AFTER_ROUNDS: Final = 64
"""Flushes that sync the logs' own files before a first file of the journal is made, or another one is tried."""
JOURNAL_LOG_BYTES_MAX: Final = 1024 * 1024
"""Most that one log gives to one round; with more, its own file is synced."""
JOURNAL_PENDING_BYTES_MAX: Final = 16 * 1024 * 1024
"""Most that all logs keep for the next round together."""

TURNED_AWAY_MAX: Final = 1_000
"""Producers of a partition, not known yet, of whom it is remembered that their first batch was refused."""
TURNED_AWAY_MS_MAX: Final = 180_000
"""How long; clients try a batch again for two minutes (Java's delivery.timeout.ms)."""

# storage
DISK_LOOK_MS: Final = 1_000
"""Between two looks at the room that the logs' disk has."""
DISK_RESERVE_BYTES_MAX: Final = 1024 * 1024 * 1024
"""Most that `log.disk.min.free.bytes=-1` keeps free: the journal takes 192 MiB, what is held in memory for it 16, and a
snapshot of a large cluster's metadata is written beside the one before it."""
DISK_RESERVE_FRACTION: Final = 20
"""Of a small volume it keeps one part in so many."""
OPEN_SEGMENT_FILES_MAX: Final = 4_096
LOGS_FLUSHED_AT_ONCE_MAX: Final = 1_000
"""Logs in one round of the flusher, each of which keeps its files open until that is over; further ones are for the
next."""
NEWEST_BYTES_MAX: Final = 16 * 1024 * 1024
"""Of the newest batches of all logs, kept for readers that keep up with them."""
NEWEST_UNREAD_BYTES_MAX: Final = 256 * 1024
"""Bytes that are kept of one log before a reader comes back."""
NEWEST_BATCH_OVERHEAD_BYTES: Final = 400
"""What it costs to keep one, beside its bytes."""
READ_AGAIN_BYTES_MAX: Final = 16 * 1024 * 1024
"""Of what was read of all logs lately, kept for others that read the same."""
READ_AGAIN_BYTES_MIN: Final = 16 * 1024
"""What is less is read once more."""
READ_AGAIN_STARTS_MAX: Final = 64
"""Reads of a log among which two that began at one place show that several read it."""
READ_POSITIONS_REMEMBERED_MAX: Final = 16
"""Places per log where readers stopped, so that the next read finds its bytes without an index."""
PRODUCER_SNAPSHOTS_KEPT: Final = 2
"""Producer snapshots per log: the newest, and one before it."""
COMPACTION_KEYS_MAX: Final = 250_000
"""Keys that one cleaning of a compacted log, or one pass over its history, remembers, some 150 bytes each; what holds
more is for the next one."""
DAMAGES_PER_SEGMENT_MAX: Final = 1_000
"""Damaged ranges that are told apart in one segment; from the last of them on, all of it counts as damaged."""
LIKELY_BATCHES_MAX: Final = 200
"""Places in a log's cut tail that look like a batch and are checked for one: a record may be full of such places."""
EXAMINED_PER_STEP_BYTES: Final = 512 * 1024
EXAMINED_PER_STEP_BATCHES: Final = 200
"""Most of a segment that a worker thread checks before it lets others have the interpreter."""
SUSPICIONS_MAX: Final = 1_000
"""Segments that wait to be examined; further ones are found by the next look at all of them."""
UNVOUCHED_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes above a log's recovery point that each start after a kill checks again; with more, the point is moved up."""
LOGS_OPENED_AT_ONCE_MAX: Final = 4
"""Logs that a start opens at a time, each in a worker thread: as with those that are closed."""
LOGS_TAKEN_UP_PER_TURN_MAX: Final = 50
"""Logs that were opened and are taken up in one turn of the event loop."""
LOGS_CLOSED_AT_ONCE_MAX: Final = 4
"""Logs that a stop closes at a time, each in a worker thread: their syncs share the disk's journal commits."""
METADATA_REPORT_MS: Final = 30_000
"""Time between two reports of the whole image to the log, where that is kept at DEBUG."""
BROKER_TEXT_CHARS_MAX: Final = 255
"""Longest host, listener or rack that a broker registers."""
METADATA_PROPOSALS_MAX: Final = 10_000
"""Decisions on their way to the commit log; more wait before they are decided."""
SNAPSHOT_PARTITIONS_PER_EVENT_MAX: Final = 200
"""Partitions in one event of a snapshot: its JSON is made in one step, in which nothing else runs."""
METADATA_ENTRY_BYTES_MAX: Final = 16 * 1024 * 1024
"""What one decision may hold: it has to fit a frame between members (PEER_FRAME_BYTES_MAX)."""
METADATA_EVENTS_PER_SNAPSHOT: Final = 10_000
"""Committed events after which the commit log is snapshotted and cut."""

# client
CLIENT_REQUESTS_IN_FLIGHT_MAX: Final = 64
"""Requests of one client connection that wait for their answer; further ones wait their turn."""
CLIENT_ATTEMPTS_MAX: Final = 16
"""Times that a client tries one request, the first included, before it gives up."""
CLIENT_BACKOFF_MS: Final = 50
"""Pause before the second try; it doubles with each further one."""
CLIENT_BACKOFF_MS_MAX: Final = 1_000
CLIENT_BUFFER_BYTES_MAX: Final = 32 * 1024 * 1024
"""Records of one producer that are not yet acknowledged; `send` waits beyond (Kafka's buffer.memory)."""
CLIENT_PRODUCES_IN_FLIGHT_MAX: Final = 5
"""Produce requests to one leader of a delivery that wait for their answer, never two of one partition."""
CLIENT_PRODUCE_BYTES_MAX: Final = 4 * 1024 * 1024
"""Batches of one such request, of as many partitions; a larger one goes alone."""
CLIENT_PRODUCE_PARTITIONS_MAX: Final = 2_000
CLIENT_CONNECT_TIMEOUT_MS: Final = 5_000
CLIENT_REQUEST_TIMEOUT_MS: Final = 30_000
"""Longest wait for one answer, after which the connection is given up."""

# durable segments
OBJECT_KEY_CHARS_MAX: Final = 900
"""Longest object key (S3 allows 1,024 bytes, a store's own prefix included)."""
OBJECT_PART_BYTES: Final = 8 * 1024 * 1024
"""Of a large object that a remote store is sent in parts; one that fails is sent again by itself."""
OBJECT_PARTS_AT_ONCE_MAX: Final = 4
OBJECT_SINGLE_BYTES_MAX: Final = 2 * OBJECT_PART_BYTES
"""Largest object that a remote store is sent as one request."""
STORE_CONNECT_MS_MAX: Final = 5_000
STORE_REQUEST_MS_MAX: Final = 30_000
"""Of one request to a remote store, after which it has failed: `OBJECT_SINGLE_BYTES_MAX` have to fit."""
STORE_RETRIES_MAX: Final = 2
"""Of one request, beneath those of whoever asked for it, which are further apart."""
STORE_RETRY_MS_MAX: Final = 1_000
OBJECT_DIRECTORIES_REMEMBERED_MAX: Final = 10_000
"""Directories of a store whose names are known to be durable."""
DURABLE_SEGMENT_BYTES_MAX: Final = 64 * 1024 * 1024
"""Record batches in one durable segment at which it is cut; one larger batch still makes a segment of its own."""
SEGMENT_FOOTER_BYTES_MAX: Final = 64 * 1024 * 1024
CATALOG_DOCUMENT_BYTES_MAX: Final = 16 * 1024 * 1024
"""Largest JSON document of a store's catalog that a reader accepts."""
CATALOG_RUN_ENTRIES: Final = 256
"""Entries of a catalog that are packed together in memory: one more copies them."""
CATALOG_CHUNK_ENTRIES: Final = 500
"""Entries of a catalog in one document of its mirror, or one event of a snapshot. Fewer have a document each."""
CATALOG_READS_AT_ONCE_MAX: Final = 16
"""Catalog documents of a store that a reader has under way at a time."""

HISTORY_BLOCK_BYTES: Final = 4 * 1024 * 1024
"""Of a durable segment, read and proven at a time: at least so many bytes, and up to an index entry."""
HISTORY_READS_AT_ONCE_MAX: Final = 4
"""Reads of a durable store that a broker has under way for its clients."""
HISTORY_READS_WAITING_MAX: Final = 256
"""Reads that wait for one of these; beyond, a fetch comes again."""
HISTORY_READ_AHEAD_BLOCKS: Final = 2
"""Blocks behind the one that is given out which are read before anybody asks."""
HISTORY_LOADS_PER_FETCH_MAX: Final = 8
"""Partitions of one fetch whose blocks are read at the same time."""
HISTORY_FAILURES_REMEMBERED_MAX: Final = 1_000
HISTORY_RETRY_MS: Final = 1_000
"""Before what could not be read is read again."""
HISTORY_EPOCH_MS_MAX: Final = 1_000
"""Longest that the answer to where history begins waits for the epoch there, which it may do without."""
FRONTIER_FOOTERS_READ_MAX: Final = 16
"""Footers, beside the last one's, that are read before a log begins behind durable history."""
FRONTIER_BATCHES_BYTES_MAX: Final = 64 * 1024 * 1024
"""Of batches in durable history that a leader reads for their producers, where no footer tells these."""
FRONTIER_SEGMENTS_READ_MAX: Final = 256
"""Durable segments of which they are read."""
FRONTIER_READS_AT_ONCE_MAX: Final = 2
"""Partitions for which that is done at a time, on this broker: of copies, and as many of leaders."""
FRONTIER_SILENCE_MS_MAX: Final = 10_000
"""A store that has answered nothing for so long, or for up to twice that, is not waited for."""
FRONTIER_LEADER_RETRY_MS_MAX: Final = 8_000
"""Longest pause before a leader that waits for durable history reads it again."""
FRONTIER_PAGE_SEGMENTS: Final = 1_000
"""Objects in one page of a store's listing, which may come only with all others."""
FRONTIER_PAGES_MAX: Final = 12
"""Of those, for how many one is waited for as if each were an answer."""
FRONTIER_RETRY_MS: Final = 60_000
"""Before a copy that was refused it looks at durable history again."""
HISTORY_DELETE_GRACE_MS: Final = 60_000
"""Between the event that takes a segment from its catalog and the deletion of its object."""
HISTORY_DOOMED_MAX: Final = 100_000
"""Objects that wait to be deleted; beyond, they stay and nothing refers to them."""
HISTORY_STOP_MS_MAX: Final = 5_000
"""Longest that a stop waits for the deletion that is under way."""
DELETED_AT_ONCE_BYTES: Final = 8 * 1024 * 1024
"""Of a file of a log that is gone: a filesystem that frees a gigabyte at once keeps all syncs waiting meanwhile."""
DELETED_FILE_BYTES_MIN: Final = 4096
"""For which each such file counts at least."""
DELETED_PAUSE_MS: Final = 10
"""Between one such part and the next."""
DELETED_RETRY_MS: Final = 60_000
"""Before what could not be removed is tried again, once there is nothing else."""
SEGMENTS_DELETED_AT_ONCE_MAX: Final = 1_000
"""Durable segments that one event takes from a catalog."""
SEGMENTS_REPLACED_AT_ONCE_MAX: Final = 1_000
MIRROR_READ_TRIES_MAX: Final = 5
"""A reader of the mirror begins anew so often where it is written meanwhile."""
CATALOG_LINKS_MAX: Final = 10_000
"""Deletions and replacements behind a catalog's last segment, from which on no more are merged."""
MERGE_READ_BYTES_MAX: Final = 96 * 1024 * 1024
"""Objects that become one, footers included."""
MERGE_PROBLEMS_TOLD_MAX: Final = 100
MIRROR_CHUNK_TRIES_MAX: Final = 3
"""Chunks of the mirror that are gone once its state names them are written so often again."""
"""Durable segments in whose place one comes."""

SWEEP_DELETES_PER_SECOND_MAX: Final = 100
"""Objects that nothing refers to which a broker removes from the store."""
SWEEP_REMEMBERED_MAX: Final = 100_000
"""Objects that have left their catalogs and are seen to have for a while; beyond, they are looked at again later."""
SWEEP_TOLD_MAX: Final = 1_000
"""Objects that are named to whoever asks for a sweep; the rest are counted."""
DURABLE_SUMMARIES_TOLD_MAX: Final = 1_000
"""Partitions behind which an answer about durable history is sent, and the next one asked for."""
DURABLE_ENTRIES_TOLD_MAX: Final = 500
"""Segments of one catalog in one answer."""
DURABLE_TIMEOUT_MS: Final = 5_000
"""Longest that such an answer is waited for."""
DURABLE_CATALOG_TRIES_MAX: Final = 5
"""Times that a catalog is asked for anew because it was cut meanwhile."""
SWEEP_ASK_EVERY_MS: Final = 200
SWEEP_UNFINISHED_MS_MIN: Final = 3_600_000
"""Age from which on what was never stored whole is nobody's any more."""
SWEEP_STOP_MS_MAX: Final = 5_000
"""Longest that a stop waits for the object that is being removed."""

# Spark
SPARK_GROUPS_ASKED_AT_ONCE_MAX: Final = 16
"""Consumer groups whose positions statistics ask for."""
SPARK_FETCH_BYTES: Final = 4 * 1024 * 1024
"""Of one answer that a task fetches from a broker; the next one is fetched while it is decoded."""
SPARK_FETCH_WAIT_MS: Final = 500
"""Longest that a broker waits with an answer to it where there is nothing."""
SPARK_EMPTY_FETCHES_MAX: Final = 60
"""Answers in a row that hold nothing of what was planned, after which a task says so."""
SPARK_CATALOG_TRIES_MAX: Final = 3
"""Times that a catalog is read which a deletion changes meanwhile."""
SPARK_CATALOGS_AT_ONCE_MAX: Final = 8
"""Partitions whose catalogs a plan reads at a time."""
SPARK_FOOTERS_PLANNED_MAX: Final = 1_000
"""Segments whose indexes a plan reads to cut them."""
SPARK_TASKS_MAX: Final = 100_000
"""Tasks that a read may be cut into, about, whatever options minPartitions and maxBytesPerPartition say."""

SPARK_CHUNK_BYTES_MAX: Final = 16 * 1024 * 1024
"""Keys, values and headers that a task gathers before they are packed into batches; one larger record goes alone."""
SPARK_CHUNK_ROWS_MAX: Final = 128 * 1024
"""Rows of these. Room of 107 bytes is set aside for each beside its own, about 115 more where it says who wrote it, and
90 of tables: up to 40 MiB in all."""
SPARK_CHUNKS_AHEAD_MAX: Final = 2
"""Of these, packed and not yet acknowledged; the task waits for the oldest before it packs a third one."""
SPARK_TARGETS_MAX: Final = 1_000
"""Topics that one task writes to."""
SPARK_PRODUCER_IDLE_S: Final = 300.0
"""How long a worker that writes nothing keeps its connections and its producer id."""
SPARK_REPEATS_WINDOW_MAX: Final = 10_000_000
"""Largest `repeatWindow`; a task holds up to 128 bytes for each record in it that says who wrote it."""
SPARK_REPEATS_KEPT_MAX: Final = 4_000_000
"""Such records, about, that a worker keeps from one micro-batch to the next; each takes 24 bytes."""

# export
EXPORT_TICK_MS: Final = 250
"""Time between two looks for closed segments to export."""
EXPORT_READ_BYTES: Final = 1024 * 1024
"""Bytes of a log read on the event loop at a time, for an export."""
EXPORT_WITNESSES_MAX: Final = 8
"""Partitions whose objects are looked for before the first one of another is put: one that is there will do."""
EXPORTED_PRODUCERS_BYTES_MAX: Final = 16 * 1024 * 1024
"""Of what the last footers say of producers, kept for the next ones; others are read of the store again."""
STORE_CALLS_AT_ONCE_MAX: Final = 8
"""Of exports, moves, merges, retention and the sweep together; they have so many threads, which nobody else waits
for: one each, and MOVE_SEALS_AT_ONCE_MAX for moves."""
EXPORT_STOP_MS_MAX: Final = 5_000
"""Longest that a stop waits for the segment that is being exported."""
EXPORT_RETRY_MS_MIN: Final = 1_000
EXPORT_RETRY_MS_MAX: Final = 15_000
"""Pause after a failed export: doubles from the first to the last of these."""

# moves
MOVE_TAIL_BYTES: Final = 256 * 1024
"""An owner that has no more than this to export stops writing, and seals."""
MOVE_TAIL_ROUNDS_MAX: Final = 20
"""So often what came meanwhile is exported before an owner stops writing though more than that is left."""
MOVE_EXPORT_BYTES_MAX: Final = 16 * 1024 * 1024
"""Of one durable segment that is exported for a move."""
MOVE_SEAL_MS_MAX: Final = 5_000
"""Longest that an owner stops writing to flush and export its tail; then it goes on, and tries again later."""
MOVE_RETRY_MS_MIN: Final = 20
MOVE_RETRY_MS_MAX: Final = 2_000
"""Pause after a step of a move that failed: doubles from the first to the last of these."""
MOVE_SEALS_TRIED_MAX: Final = 20
"""So often an owner stops writing to seal, in vain, before it gives the move up."""
MOVE_SEAL_PAUSES: Final = 10
"""After that it writes for at least so many times as long as it had stopped."""
MOVE_SEAL_PAUSE_MS_MAX: Final = 60_000
"""And for at least MOVE_RETRY_MS_MIN, doubled with each try up to this."""
MOVE_OPENINGS_TRIED_MAX: Final = 6
"""So often a target tries to open its log, with that pause between, before another is to go on."""
MOVE_SEALS_AT_ONCE_MAX: Final = 4
"""Partitions that one broker seals, or exports for moves, at a time."""
MOVES_REMEMBERED_MAX: Final = 1_000
"""Finished moves of which a broker tells how long they kept producers waiting."""
PARKED_BATCHES_MAX: Final = 1_000
"""Produced batches of one partition that wait for a hand-over to be over; further ones are refused."""
PARKED_BATCHES_BYTES_MAX: Final = 32 * 1024 * 1024
"""The same in bytes."""
CARRIED_BYTES_MAX: Final = 128 * 1024 * 1024
"""Of batches that a broker is to carry to new owners, or keeps until its own logs are open, in all."""
CARRIED_WAIT_MS_MAX: Final = 3_000
"""Longest that such a batch waits for the new owner to be there."""
CARRIED_MS_MAX: Final = 2_000
"""For so long after that the old owner carries on what still comes to it: clients know by then where to go."""
CARRIED_QUIETLY_MS: Final = 500
"""For so long of that only producers that have nothing else in flight are told to go."""
CARRIED_ANSWER_MS_MAX: Final = 1_500
"""Longest that the new owner may take to commit what was carried to it."""
CARRIED_LATE_MS_MAX: Final = 500
"""How much later its answer may come."""
CARRIED_UNTIL_MS_MAX: Final = 10_000
"""For so long after the end of a hand-over the new owner reckons with batches that are carried to it: more than all of
the above together."""

# groups
GROUPS_PER_SHARD_MAX: Final = 10_000
"""Groups that one partition of the offsets topic keeps; a further one is refused."""
GROUP_NAME_CHARS_MAX: Final = 8_000
"""Longest group id, protocol type or protocol name: four bytes a character still fit the record's int16 length."""
GROUP_CONFIGS_MAX: Final = 10_000
"""Groups that may have configs of their own, but for what one request adds: every broker's metadata has them."""
GROUP_SUBSCRIPTION_BYTES_MAX: Final = 1024 * 1024
"""Bytes of subscriptions that one member may join with, over all the protocols that it offers."""
GROUP_LARGE_SUBSCRIPTION_BYTES_MIN: Final = 16 * 1024
"""Of a member, from which on its subscription is counted."""
GROUP_LARGE_SUBSCRIPTIONS_BYTES_MAX: Final = 128 * 1024 * 1024
"""Bytes of these in all groups of a broker; a member for which there is no room is refused (GROUP_MAX_SIZE_REACHED)."""
GROUP_TOPIC_NAME_BYTES: Final = 100
"""What a topic that is subscribed to by name counts there, nearly."""
GROUP_CLASSIC_TOPICS_MAX: Final = 10_000
"""Topics that one classic member of a consumer group may subscribe to by name: all are looked at on the event loop."""
GROUP_UPGRADE_BYTES_MAX: Final = 1024 * 1024
"""Bytes of subscriptions, over all protocols, of the members of a classic group that may become a consumer group: more
would not fit the one batch that it takes (max.message.bytes)."""
GROUP_TOMBSTONES_BYTES_MAX: Final = 256 * 1024
"""Bytes of tombstones of one group's offsets that go into one batch; more go into several."""
GROUP_REASON_CHARS_MAX: Final = 255
"""Of the reason that a client gives for joining or leaving (KIP-800), and of a line of the log about a rebalance."""
GROUP_PATTERN_CHARS_MAX: Final = 1_000
"""Longest regular expression that a member may subscribe with."""
GROUP_PATTERN_DEPTH_MAX: Final = 50
"""Parentheses within parentheses of such an expression."""
GROUP_PATTERN_STATES_MAX: Final = 2_000
"""Of its automaton: a name costs as many steps for each character, at worst."""
GROUP_PATTERN_REMEMBERED_MAX: Final = 20_000
"""States in what is remembered of how it moves, while names are matched."""
GROUP_PATTERN_KEPT_MAX: Final = 1_000
"""The same until it is asked again."""
GROUP_PATTERN_WORK_MAX: Final = 200_000
"""States that may be looked at to find what it stands for, besides those for each name: some 100 ms. One that costs
more is refused; common ones look at some hundreds, whatever the names."""
GROUP_PATTERN_WORK_PER_NAME_MAX: Final = 20
"""The same for each name."""
GROUP_PATTERN_WORK_PER_TURN: Final = 4_000
"""States that are looked at before others have their turn of the event loop: some 2 ms."""
GROUP_PATTERN_NAMES_PER_TURN: Final = 1_000
"""Names that an expression is matched with before others have their turn: some 4 ms."""
GROUP_PATTERNS_KEPT_MAX: Final = 500
"""Regular expressions of which a broker remembers what they stand for."""
GROUP_PLACES_KEPT_MAX: Final = 1_000
"""Groups of which a broker remembers which partition keeps them."""
GROUP_PLACE_CHARS_MAX: Final = 256
"""Of the names of these; a longer one is looked up each time."""
GROUP_TOPIC_SETS_KEPT_MAX: Final = 4
"""Sets of subscribed topics of which all partitions are remembered, for a group that many join one after the other."""
GROUP_LOADS_AT_ONCE: Final = 2
"""Partitions of the offsets topic that are read at a time: more would only take the interpreter from the event loop."""
GROUP_GATHERED_BYTES_MAX: Final = 64 * 1024
"""Of offset commits that come together and are appended as one batch."""
GROUP_ANSWERS_PER_TURN_MAX: Final = 8
"""Of members that waited for each other, those who are told in one turn of the event loop, which then sends it."""
GROUP_LOAD_BYTES: Final = 256 * 1024
"""Bytes of the offsets topic that are decoded at a time while groups are loaded."""

GROUP_TICK_PUT_OFF_MS: Final = 500
"""After which a consumer group whose members' time is up is looked at again while their heartbeats are not taken."""

GROUPS_READY_MS_MAX: Final = 1_000
"""Longest that whoever has the offsets topic made waits until groups can be kept; then clients ask again."""

# consensus
RAFT_APPEND_BYTES_MAX: Final = 1024 * 1024
"""Entries in one message to a member, unless a single one is larger."""
RAFT_WINDOW_MESSAGES_MAX: Final = 64
"""Messages with entries to one member that are not answered yet."""
RAFT_WINDOW_BYTES_MAX: Final = 8 * 1024 * 1024
"""The same in bytes; one message may go beyond."""
RAFT_UNCOMMITTED_BYTES_MAX: Final = 64 * 1024 * 1024
"""Data of entries that a leader has not yet committed; further proposals are refused."""
RAFT_READS_WAITING_MAX: Final = 10_000
"""Reads that wait to be confirmed by a quorum; further ones are refused."""
RAFT_ENTRIES_KEPT: Final = 1_000
"""Entries below a snapshot that a leader keeps, so that who is a little behind needs no snapshot."""

SETTLED_PER_ENTRY_MAX: Final = 1_000
"""Partitions of which a broker's coming or going is one entry: deciding and applying it holds the event loop for some
10 ms, on a slow machine for 25."""
SETTLED_PER_SLICE_MAX: Final = 250
"""Partitions in each of the entries of a broker that has more."""
SLICES_AT_ONCE_MAX: Final = 4
"""Of those, that are on their way to the quorum at a time."""
PARTITIONS_SEARCHED_PER_TURN_MAX: Final = 2_000
"""Partitions looked at in one turn of the loop, where all are: some 2 ms."""
SETTLED_ALONE_MAX: Final = 50_000
"""As much, of a broker that is alone in its cluster and starts: nobody is served while the loop is held."""

# the way to the controller
CONTROLLER_WAIT_MS_MAX: Final = 5_000
"""Longest that a broker waits for the controller's answer, or for there to be one, before it refuses."""
CONTROLLER_BACKOFF_MS: Final = 20
"""Pause before the controller is asked again, unless another one is heard of; it doubles with each further one."""
CONTROLLER_BACKOFF_MS_MAX: Final = 250
CONTROLLER_LINKS_MAX: Final = 16
"""Brokers to which such connections are kept."""
FORWARDED_BYTES_MAX: Final = 4 * 1024 * 1024
"""Largest request that is carried to the controller."""
ISR_PROPOSALS_PER_ASK_MAX: Final = 2_000
"""Partitions whose ISR a leader may ask to be changed at once: they are decided in one step, and are one entry."""
ELECTIONS_PER_ENTRY_MAX: Final = 10_000
"""Leaders that are elected in one step because somebody asked for it, or where nobody led."""
LEADERS_MOVED_PER_ROUND_MAX: Final = 100
"""Leaders that go back to where they were placed at once: each has its clients look for it."""
ELECTOR_PAUSE_MS: Final = 1_000
"""Time between two such rounds, and before another try where one failed."""
REPLICAS_GROWN_AT_ONCE_MAX: Final = 50
"""Partitions that are given more replicas at a time, in the whole cluster, for brokers that came."""
TOPICS_TOLD_MAX: Final = 20
"""Topics that the log names of those that lost their leaders at once; the rest are counted."""
PARTITIONS_TOLD_MAX: Final = 20
"""The same of the partitions of each."""
CLOCK_ERROR_MAX: Final = 0.07
"""The part by which two brokers' clocks may go at different speeds: one 3 % fast, the other 3 % slow, and a little.
Real ones differ by a thousandth of that."""
REPLACED_SESSION_PART_MAX: Final = 1 / 3
"""The part of its session that a controller which is replaced is taken to have been silent for already, at most."""
LEASE_WAIT_MS_MAX: Final = 250
"""Longest that a request waits for a lost lease to be renewed, and holds up what follows on its connection."""
LEAVE_WAIT_MS_MAX: Final = 3_000
"""Longest that a broker that stops waits for others to lead what it led."""
SUCCESSORS_WAIT_MS_MAX: Final = 5_000
"""Longest that it waits before, for followers that could not lead yet to be in sync."""
UNREADY_WAIT_MS_MAX: Final = 1_000
"""Longest that a client's request waits for a broker that is not ready yet; then its connection is closed."""
REGISTRATION_PATIENCE_MS: Final = 10_000
"""Longest that a broker waits for another one of its id, with another disk, to be missed."""
REGISTRATION_TOLD_MS: Final = 5_000
"""After which a broker that is registered, but has not heard so of the quorum's log, says that it still waits."""
JOIN_TIMEOUT_MS: Final = 2_000
"""Longest that a broker that comes to a cluster waits for one answer."""
JOIN_BACKOFF_MS: Final = 50
"""Pause after nobody answered; it doubles with each further one."""
JOIN_BACKOFF_MS_MAX: Final = 1_000

# the quorum's driver and its network
RAFT_NUMBER_MAX: Final = 2**62
"""Highest term or offset that is taken from another member: one more must still have a form on the disk."""
QUORUM_RECOVERY_EPOCHS: Final = 1_000_000
"""What a recovered quorum adds to its term and to every partition's epochs, so that none is below what a lost voter may
have decided last. They have 31 bits: room for some two thousand recoveries."""
QUORUM_RECOVERY_INDEXES: Final = 2**32
"""The same for the commit log's index, and the broker epochs that come of it."""
QUORUM_RECOVERY_PRODUCER_IDS: Final = 2**40
"""The same for producer ids."""
QUORUM_PROBE_MS: Final = 2_000
"""How long `headrace quorum recover` waits for each other broker to say that it lives."""
RAFT_TICK_MS: Final = 50
RAFT_HEARTBEAT_TICKS: Final = 3
RAFT_ELECTION_TICKS: Final = 20
"""Silence of a leader after which an election is held: this, to twice as much."""
RAFT_SNAPSHOT_CHUNK_BYTES: Final = 256 * 1024
"""Bytes of a snapshot in one message."""
RAFT_WRITTEN_ON_LOOP_BYTES_MAX: Final = 64 * 1024
"""Entries that are written on the event loop, to be synced beside it; more go to a worker thread."""
APPLIED_PER_TURN_BYTES_MAX: Final = 32 * 1024
"""Entries that are decoded and applied in one turn of the event loop; a larger one is decoded in a worker thread."""
RAFT_STOP_MS_MAX: Final = 1_000
"""Longest that a stop waits for others to acknowledge what is under way."""
SUCCESSION_STEP_MS: Final = 40
"""Where the leader's process is plainly dead: the voter with the smallest id stands at once, each further one so much
later, and each again after as many steps as there are voters, SUCCESSION_ATTEMPTS_MAX times in all."""
SUCCESSION_ATTEMPTS_MAX: Final = 5
PEER_QUEUE_MESSAGES_MAX: Final = 1_024
PEER_QUEUE_BYTES_MAX: Final = 16 * 1024 * 1024
"""Messages to one member that wait to be written; the oldest are dropped beyond."""
PEER_FRAME_BYTES: Final = 1024 * 1024
"""Messages of one frame to a member, unless a single one is larger."""
PEER_FRAME_BYTES_MAX: Final = 32 * 1024 * 1024
"""Largest frame that is taken from another member."""
PEER_FRAME_MESSAGES_MAX: Final = 4_096
PEER_ANSWER_BYTES_MAX: Final = 4_096
"""Bytes that a member may say over the connection that another one made to it."""
PEER_ADDRESSES_MAX: Final = 4
"""Addresses of one member that are remembered, the newest first."""
PEERS_MAX: Final = 1_000
"""Members whose addresses are remembered."""
PEER_CONNECT_MS_MAX: Final = 2_000
PEER_BACKOFF_MS_MIN: Final = 20
PEER_BACKOFF_MS_MAX: Final = 500
"""Pause after a connection to a member failed or did not last: doubles from the first to the last of these."""
PEER_UNACKNOWLEDGED_MS_MAX: Final = 5_000
"""Time after which a connection whose bytes nobody acknowledges is given up."""

# compaction
CLEANER_PAUSE_MS_MIN: Final = 10
"""Shortest time between two looks for logs that are due for a cleaning, whatever log.cleaner.backoff.ms says."""

# replication
REPLICA_ANSWER_BYTES_MAX: Final = 4 * 1024 * 1024
"""Batches in one answer to a follower, but for one first batch of any size: it checks them on its event loop."""
REPLICA_IDLE_MS: Final = 500
"""Longest that a follower's frame waits for an answer while there is nothing to copy (replica.fetch.wait.max.ms)."""
REPLICA_NEWS_MS_MAX: Final = 20
"""Time after which a follower that copies nothing is told that the high watermark has risen."""
REPLICA_SILENCE_MS_MAX: Final = 5_000
"""Silence of a leader after which the connection to it is given up."""
REPLICA_BULK_BYTES_MIN: Final = 256 * 1024
"""An answer from which on a follower asks for the next before it has flushed this one."""
REPLICA_UNFLUSHED_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes from one leader that a follower has taken and not yet flushed, at which it asks for no more."""
REPLICA_FRAME_ROWS_MAX: Final = 10_000
"""Partitions that one frame to a leader names; more go with the next."""
REPLICA_BEGINNINGS_MAX: Final = 4
"""Copies of one follower that are told where to begin anew, with their producers, before it has taken that."""
REPLICA_TOLD_MAX: Final = 200_000
"""Refusals that wait for a frame of the follower that wants an answer; who makes more of them is not listened to."""
REPLICA_BACKOFF_MS_MIN: Final = 20
REPLICA_BACKOFF_MS_MAX: Final = 1_000
"""Pause after a connection to a leader failed, or before a partition that it refused is asked for again: doubles from
the first to the last of these."""

THROTTLE_BURST_S: Final = 1.0
"""Seconds of a replication throttle's rate that may be taken at once, where nothing was for as long."""

ISR_BACKOFF_MS: Final = 100
"""Pause before an ISR is proposed again that the controller has not decided on."""

# what is acknowledged before it is flushed
REQUEST_WAIT_MS_MIN: Final = 1_000
"""Shortest that a broker waits for its own disk, and for the controller, whatever shorter timeout a request has of its
own: Kafka's count for other replicas alone, and what was begun is better told done than unknown."""
OWN_FLUSH_WAIT_MS_MAX: Final = 1_000
"""Longest that a request for the latest offset waits for this broker's own disk to make visible what is appended."""

# copies that are begun anew
RENEWALS_AT_ONCE_MAX: Final = 4
"""Damaged copies that one broker has out of the in-sync replicas at a time to copy them anew, but for those that cannot
go on."""
RENEWAL_LOOK_MS: Final = 1_000
"""Time between two looks at damaged copies, while there are any."""
RENEWAL_ROOM_FACTOR: Final = 2
"""A copy is begun anew only where the volume has so many times its size to spare: what it had is kept until then."""
REPLICA_DAMAGED_BACKOFF_MS_MAX: Final = 30_000
"""Longest pause before a leader is asked again for what it has damaged itself; it doubles up to that."""
AILMENTS_TOLD_MAX: Final = 1_000
"""Damaged logs that a broker tells of at once."""
MOVES_ASK_TIMEOUT_MS: Final = 15_000
"""Longest that a command waits for what it asks of moves."""
AILMENTS_TIMEOUT_MS: Final = 2_000
"""Longest that it is waited for."""
STATE_LOOK_MS: Final = 5_000
"""Between two looks of a broker at what is wrong with itself."""
STATE_PARTITIONS_NAMED_MAX: Final = 5
"""Partitions that one state names; the rest are counted."""
STATES_TOLD_MAX: Final = 16
"""States that a heartbeat tells of, the worst first."""
DESCRIPTORS_USED_FRACTION_MAX: Final = 0.9
"""Of the file descriptors that a broker may have, from which on it says so."""
CLOCK_DIFFERENCE_MS_MAX: Final = 30_000
"""Between the clocks of a broker and the controller, from which on that is told; a heartbeat may be late by seconds."""
DOCTOR_ASK_MS_MAX: Final = 3_000
"""Longest that `headrace doctor` waits for one answer of a broker that it has reached."""
DOCTOR_MS_MAX: Final = 8_000
"""Longest that it looks, all together: it has ten seconds to say what it found."""

# quotas
QUOTA_ENTITIES_MAX: Final = 10_000
"""Entities that have quotas of their own."""
QUOTA_NAME_CHARACTERS_MAX: Final = 1_024
"""In the name of a user or a client id that is given a quota."""
QUOTA_CLIENTS_MAX: Final = 10_000
"""Client ids that are measured at a time, each by itself; those beyond are measured together, until some are idle."""
QUOTA_PERCENTAGE_MIN: Final = 0.001
"""Smallest request_percentage: 10 us of the event loop in a second. Less is not a quota but a lock."""
QUOTA_THROTTLE_MS_MAX: Final = 30_000
"""Longest that a client which went beyond its quota is told to wait, and is not read, however long the window is."""

# metrics
METRICS_PARTITIONS_PER_TURN_MAX: Final = 500
"""Partitions that a scrape looks at before others have the event loop: some 2 us each."""
METRICS_CONNECTIONS_MAX: Final = 16
"""Who asks for metrics at a time; others are closed."""
METRICS_REQUEST_BYTES_MAX: Final = 16 * 1024
"""Of the head of their request."""
METRICS_REQUEST_MS_MAX: Final = 30_000
"""From their connection to the end of the answer."""
LOOK_MS_MAX: Final = 2_000
"""Longest that `headrace top` waits for one broker: who does not answer by then counts as paused."""
LOOK_GROUPS_MAX: Final = 1_000
"""Groups of each coordinator that such a look asks for, the first by name."""
OVERTAKING_MS_MAX: Final = 5_000
"""For so long after it may write to a partition, a broker takes a producer's first batch that leaves others out for one
that has overtaken them."""

# pipelines on Spark
PIPELINE_COMMITS_READ_AT_ONCE_MAX: Final = 16
"""Commits of a table that are read at a time."""
PIPELINE_COMMITS_HELD_MAX: Final = 256
"""That are read ahead of what is replayed."""
PIPELINE_BATCH_BYTES: Final = 1024 * 1024 * 1024
"""Of record batches that one commit takes, about, unless its pipeline says otherwise."""
PIPELINE_FILE_BYTES: Final = 128 * 1024 * 1024
"""Of one file of a table, about, unless its pipeline says otherwise."""
PIPELINE_NICE: Final = 10
"""Of a local session, unless its pipeline says otherwise."""
PIPELINE_NICE_MAX: Final = 19
PROCESSORS_SPARED_MAX: Final = 1_024
"""That a pipeline leaves to brokers; one stays with it in any case."""
PIPELINE_TASKS_A_CORE: Final = 2
"""Into which a commit is cut where that makes large files: the second makes up for those that take longer."""
PIPELINE_CORES: Final = 16
"""Where a session does not tell how many it has (Spark Connect)."""
PIPELINE_TASK_BYTES_MAX: Final = 256 * 1024 * 1024
"""Of files that a task holds until they are whole; the largest is finished where it would be more."""
PIPELINE_OPEN_FILES_MAX: Final = 64
"""Of one task: rows of more values of the columns that partition a table make the largest be finished."""
PIPELINE_ROW_GROUP_ROWS: Final = 128 * 1024
PIPELINE_ROW_GROUP_BYTES: Final = 32 * 1024 * 1024
"""Rows are gathered up to these before they are compressed."""
PIPELINE_PATH_CHARS_MAX: Final = 100
"""Of a topic's name, or a column's value, in the name of a file or directory."""
PIPELINE_COMPACT_FILES_MIN: Final = 8
"""Small files that belong together, before they are merged; and the power by which files are alike in size."""
PIPELINE_COMPACT_GROUP_MAX: Final = 1_000
"""Of these, merged into one by one task."""
PIPELINE_COMPACT_FILES_MAX: Final = 10_000
"""Merged in one commit: its lines are far below what a store puts at once."""
PIPELINE_COMPACT_EVERY: Final = 32
"""Commits of a continuous pipeline, after which it looks for small files."""
PIPELINE_PUBLISH_TRIES_MAX: Final = 5
"""Times that a commit is put into a Delta or Iceberg table which others change meanwhile."""
REPLAY_BATCH_BYTES: Final = 64 * 1024 * 1024
"""Of record batches that a replay takes at a time, about, unless its pipeline says otherwise."""
REPLAY_OFFSETS_MAX: Final = 1_000_000
"""That it takes at a time."""
REPLAY_ROWS_MAX: Final = 1_000_000
"""That it makes of one record: with the one above, what the digits of a row's number hold."""
AUDIT_PROBLEMS_MAX: Final = 1_000
"""That an audit tells of one task; it counts all."""
STATISTICS_TOP_MAX: Final = 10_000
"""Keys of each topic that statistics name."""
AUDIT_MIRROR_TRIES_MAX: Final = 11
AUDIT_MIRROR_LOOK_MS: Final = 500
"""A catalog that is not in a store, and should be, is looked for so often, and waited for so long between."""
AUDIT_TASK_BYTES: Final = 256 * 1024 * 1024
"""Of objects that one task of an audit reads, about."""
