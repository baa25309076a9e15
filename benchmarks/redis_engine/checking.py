"""A relay that checks what a broker has to check: the honest floor of `benchmarks.redis_engine`.

It does what a broker that loses and doubles nothing cannot do without, and no more:

- It checks each batch's length, header and CRC, and walks its records, by Headrace's own functions.
- It remembers the last five batches of each producer in each partition. A batch that comes again is answered as the
  first one was. An old epoch and a gap are refused.
- One function in Redis, called for each batch, compares the leader's epoch and the Stream's end before it appends.
- It answers once Redis has, whose file is synced by then: it does not start on a Redis that answers before. Once an
  answer is a refusal, nothing more is acknowledged.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from benchmarks.redis_engine.sink import Done, Relay
from headrace.base.limits import DECOMPRESSED_BATCH_BYTES_MAX, PRODUCER_BATCHES_CACHED
from headrace.storage.redis.links.connection import Connection
from headrace.wire.batches import PREFIX, SEQUENCE_MAX, BatchHeader, CorruptBatch, check_batch, walk_batch
from headrace.wire.errors import ErrorCode

EPOCH: Final = 1
NO_OFFSET: Final = -1
CODE: Final = """#!lua name=relay
-- keys: stream, state. args: epoch, expected end, new end, batch. Answers 0 and the new end, 1 and the epoch that
-- counts, or 2 and the end that is there.
local function append(keys, args)
  local found = redis.call('HMGET', keys[2], 'epoch', 'end')
  if found[1] ~= args[1] then
    return {1, tonumber(found[1] or -1)}
  end
  if found[2] ~= args[2] then
    return {2, tonumber(found[2])}
  end
  redis.call('XADD', keys[1], args[3] .. '-0', 'batch', args[4])
  redis.call('HSET', keys[2], 'end', args[3])
  return {0, tonumber(args[3])}
end
redis.register_function('relay_append', append)
"""


class Producer:
    """A producer in one partition."""

    def __init__(self, epoch: int) -> None:
        self.epoch: Final = epoch
        self.batches = deque[tuple[int, int, int]](maxlen=PRODUCER_BATCHES_CACHED)
        """First and last sequence, and base offset."""


class CheckingRelay(Relay):
    """Its one leader epoch begins with the first batch of a partition. State is beside each Stream, in a hash."""

    def __init__(self, partitions: int, redis: Connection) -> None:
        super().__init__(partitions, redis)
        self._producers: dict[tuple[str, int, int], Producer] = {}
        self._is_refused = False
        """Redis has refused a batch, and those behind it cannot follow."""

    async def start(self) -> None:
        found = await self._redis.call("CONFIG", "GET", "append*")
        assert found[b"appendonly"] == b"yes", "an answer says that a batch is on the disk"
        assert found[b"appendfsync"] == b"always", "an answer says that a batch is on the disk"
        await self._redis.call("FUNCTION", "LOAD", "REPLACE", CODE)

    def append(self, topic: str, index: int, batch: memoryview, done: Done) -> None:
        try:
            header = check_batch(batch)
            walk_batch(batch, limit=DECOMPRESSED_BATCH_BYTES_MAX)
        except CorruptBatch:
            done(NO_OFFSET, ErrorCode.CORRUPT_MESSAGE)
            return
        base = self._ends[topic, index]
        if header.producer_id >= 0:
            known = self._noted(topic, index, header, base)
            if isinstance(known, ErrorCode):
                done(NO_OFFSET, known)
                return
            if known != base:  # it is in Redis once an answer comes behind the first one's
                self._redis.post(("PING",), lambda _: self._answer(done, known))
                return
        end = self._ends[topic, index] = base + header.last_offset_delta + 1
        stream, state = f"{topic}:{index}", state_of(topic, index)
        if base == 0:
            self._redis.post(("HSET", state, "epoch", EPOCH, "end", 0), lambda _: None)
        data = PREFIX.pack(base, header.batch_length, EPOCH) + batch[PREFIX.size :]

        def on_answer(reply: object) -> None:
            self._is_refused = self._is_refused or reply != [0, end]
            self._answer(done, base)

        self._redis.post(("FCALL", "relay_append", 2, stream, state, EPOCH, base, end), on_answer, (data,))

    def _answer(self, done: Done, base: int) -> None:
        if self._is_refused:
            done(NO_OFFSET, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        else:
            done(base, ErrorCode.NONE)

    def _noted(self, topic: str, index: int, header: BatchHeader, base: int) -> int | ErrorCode:
        """The offset of a batch: `base` where it comes next, and is noted. Or why it is refused."""
        key = (topic, index, header.producer_id)
        producer = self._producers.get(key)
        if producer is not None and header.producer_epoch < producer.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if producer is None or header.producer_epoch > producer.epoch:
            expected = header.base_sequence if producer is None else 0
            producer = Producer(header.producer_epoch)
        else:
            expected = (producer.batches[-1][1] + 1) & SEQUENCE_MAX
        if header.base_sequence != expected:
            wanted = (header.base_sequence, header.last_sequence)
            same = [at for *sequences, at in producer.batches if tuple(sequences) == wanted]
            return same[0] if same else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        producer.batches.append((header.base_sequence, header.last_sequence, base))
        self._producers[key] = producer
        return base


def state_of(topic: str, index: int) -> str:
    """The key of the epoch and the end."""
    return f"{topic}:{index}:state"
