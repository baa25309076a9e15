"""The functions that run in the server, as calls: names, keys and arguments, and what their answers mean.

Promises: the library is named by its content, so that brokers of two versions work side by side, each with its own. A
function is atomic, checks before it writes, and answers a repeated call as it answered the first. `model.py` does the
same without a server, and tests compare the two.

A call is built here and sent by a client, in the order of the caller's calls. Functions of a partition name the topic's
id and the leader epoch; functions of the metadata name the controller's lease.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from importlib import resources
from typing import Any, Final, NamedTuple

from headrace.base.ids import NO_EPOCH, LeaderEpoch, Offset, TopicId
from headrace.base.ports import Buffer
from headrace.storage.redis.errors import RedisGarbled
from headrace.storage.redis.server_side.keys import Keys, PartitionKeys

_FILES: Final = ("partition.lua", "metadata.lua")
_SOURCE: Final = "".join(resources.files(__package__).joinpath(name).read_text(encoding="ascii") for name in _FILES)
LIBRARY: Final = f"headrace_{hashlib.sha256(_SOURCE.encode()).hexdigest()[:8]}"
"""The library's name; its functions are named `<library>_<function>`, since a server knows them by name alone."""
CODE: Final = f"#!lua name={LIBRARY}\n{_SOURCE.replace('PREFIX', LIBRARY)}"


class Status(IntEnum):
    """How an answer begins. The values behind it are named at each function."""

    DONE = 0
    FENCED = 1
    """The epoch, or the lease, that counts now, and its owner. An epoch below the caller's has to be claimed first."""
    AT = 2
    """The log ends elsewhere than the caller believes; its end."""
    GONE = 3
    """The partition was deleted, or never claimed, or is another topic's: id and birth of that topic, or '' and 0."""
    INVALID = 4
    """Arguments that contradict each other or the data: a mistake of the caller."""
    STALE = 5
    """A newer cleaning, snapshot or producer snapshot is there; its number."""
    MORE = 6
    """A part is done, and the end that it reached; the call is to be repeated."""
    HELD = 7
    """Somebody else has the lease: its token, holder, `about`, and the milliseconds that are left."""
    CHANGED = 8
    """The server has another history than the one in which a holder of the lease began last; that one. It may lack
    entries: the lease is to be taken again."""


class Answer(NamedTuple):
    """An answer of a function. Texts are str, everything else is int."""

    status: Status
    values: tuple[int | str, ...] = ()

    @property
    def number(self) -> int:
        """The first value."""
        return int(self.values[0])


class Lease(NamedTuple):
    """The controller's lease as its holder names it. `token` only ever rises, but for a failover of Redis that loses
    writes which its next holder does not know of. The holder's name differs for each start of a process, so both
    together are never given twice."""

    holder: str
    token: int


class Call(NamedTuple):
    """One call of a function."""

    function: str
    keys: tuple[str, ...]
    arguments: tuple[str | int, ...]
    payload: tuple[Buffer | str, ...] = ()
    """The last arguments, which may be large and are not copied."""

    @property
    def command(self) -> tuple[str | int, ...]:
        return ("FCALL", f"{LIBRARY}_{self.function}", len(self.keys), *self.keys, *self.arguments)

    @property
    def buffers(self) -> list[Buffer]:
        """The payload as it is sent."""
        return [piece.encode() if isinstance(piece, str) else piece for piece in self.payload]


def answer_of(reply: Any) -> Answer:
    """Parse a function's reply. Raises RedisGarbled where it is none."""
    try:
        status, *values = reply
        return Answer(Status(status), tuple(v.decode() if isinstance(v, bytes) else int(v) for v in values))
    except (TypeError, ValueError):
        raise RedisGarbled(f"A function of Redis answered {reply!r:.80}.") from None


class Batch(NamedTuple):
    """A record batch as an entry of a Stream holds it."""

    end: Offset
    """The offset after its last record."""
    data: Buffer


class IndexEntry(NamedTuple):
    """An entry of the sparse time index."""

    end: Offset
    """The offset after the batches that it covers, which begin where the entry before it ends."""
    timestamp: int
    """Their highest timestamp, in milliseconds."""
    position: int
    """Bytes of all batches up to there since the log began."""


class CleaningTry(NamedTuple):
    """One try of a cleaning."""

    number: int
    """One more than the last cleaning's."""
    attempt: int
    """Rises with each try of a leader."""


class PartitionFunctions(NamedTuple):
    """Calls for one partition, by the leader of `epoch`."""

    keys: PartitionKeys
    topic_id: TopicId
    epoch: LeaderEpoch

    def claim(self, birth: int, owner: str) -> Call:
        """Begin an epoch. `birth` is the metadata's index at which the topic was created: a later topic of the name
        takes the place of an earlier one. `owner` tells two claims of one epoch apart.

        DONE: end, start, bytes ever appended, bytes before the start, number of the last cleaning. Or FENCED, GONE.
        """
        keys = self.keys
        return Call(
            function="claim",
            keys=(keys.state, keys.stream, keys.times, keys.epochs, keys.producers, keys.next, keys.aborted),
            arguments=(str(self.topic_id), birth, self.epoch, owner),
        )

    def append(
        self, expected_end: Offset, batches: Sequence[Batch], timestamp: int, *, ends_range: bool = False
    ) -> Call:
        """Append batches at the expected end. `timestamp` is the highest since the last entry of the time index, which
        gets another one behind these batches where this `ends_range`.

        DONE: the new end, also where these batches are there already. Or AT, FENCED, GONE.
        """
        return Call(
            function="append",
            keys=(self.keys.stream, self.keys.state, self.keys.times),
            arguments=(*self._named, expected_end, timestamp, int(ends_range)),
            payload=_pairs(batches),
        )

    def trim(self, start: Offset, trimmed: int) -> Call:
        """Move the start up and remove what lies below it; `trimmed` bytes do, counted since the log began.

        DONE: the start, which never falls. Or FENCED, GONE. The server is held for about a millisecond for each
        thousand entries: trim in steps.
        """
        return Call(
            function="trim",
            keys=(self.keys.stream, self.keys.state, self.keys.times, self.keys.epochs, self.keys.aborted),
            arguments=(*self._named, start, trimmed),
        )

    def cut(self, end: Offset, carried_max: int) -> Call:
        """Remove everything from `end` on, which must be where a batch ends. The rest is carried to another Stream, at
        most `carried_max` entries a call: append nothing until it is done.

        DONE: the end. MORE: repeat the call. Or FENCED, GONE.
        """
        return Call(function="cut", keys=self._all, arguments=(*self._named, end, carried_max))

    def restart(self, at: Offset, *, before: LeaderEpoch = NO_EPOCH, producers: Buffer = b"") -> Call:
        """Set everything aside. The log goes on at `at`, behind a record of epoch `before`. A snapshot of producers is
        kept there, if it is not empty. A log that begins there or above stays as it is: the call may come late.

        DONE: the offset. Or FENCED, GONE.
        """
        return Call(
            function="restart",
            keys=(*self._all, self.keys.aside(self.epoch)),
            arguments=(*self._named, at, before),
            payload=(producers,),
        )

    def producers(self, offset: Offset, snapshot: Buffer, aborted: Sequence[Batch] = ()) -> Call:
        """Keep the leader's snapshot of producers at an offset. With it come entries of transactions that were aborted
        below, each at the offset behind its marker. DONE: the offset. Or STALE, FENCED, GONE."""
        return Call(
            function="producers",
            keys=(self.keys.state, self.keys.producers, self.keys.aborted),
            arguments=(*self._named, offset),
            payload=(snapshot, *_pairs(aborted)),
        )

    def clean(self, cleaning: CleaningTry, expected_end: Offset, batches: Sequence[Batch]) -> Call:
        """Add batches to the Stream that is to take the log's place. Its first call has no batches: it begins from
        nothing, and ends earlier tries.

        DONE: the end of these batches, also where they are there already. AT: it ends elsewhere, as after a failover
        that lost a part, or this is no try under way. Or STALE, FENCED, GONE.
        """
        return Call(
            function="clean",
            keys=(self.keys.state, self.keys.next),
            arguments=(*self._named, *cleaning, expected_end),
            payload=_pairs(batches),
        )

    def replace(
        self,
        cleaning: CleaningTry,
        written: Offset,
        until: Offset,
        removed: int,
        index: Sequence[IndexEntry],
        carried_max: int,
        bare: Sequence[int] = (),
    ) -> Call:
        """Let the cleaned Stream take the log's place: below `until` it is clean, and batches above are carried over,
        at most `carried_max` a call. `written`: the end of its batches. `removed` bytes fewer are left; `index` is the
        time index below `until`. `bare`: offsets of abort markers whose entries go.

        DONE: the end. MORE: repeat the call. AT: as of `clean`. Or STALE, FENCED, GONE.
        """
        return Call(
            function="replace",
            keys=(self.keys.stream, self.keys.state, self.keys.times, self.keys.next, self.keys.aborted),
            arguments=(
                *(*self._named, *cleaning, written, until, carried_max, removed),
                " ".join(str(marker + 1) for marker in bare),
                *(part for each in index for part in each),
            ),
        )

    @property
    def _named(self) -> tuple[str, int]:
        return str(self.topic_id), self.epoch

    @property
    def _all(self) -> tuple[str, ...]:
        keys = self.keys
        return (keys.stream, keys.state, keys.times, keys.epochs, keys.producers, keys.next, keys.aborted)


def delete_partition(keys: PartitionKeys, topic_id: TopicId, birth: int) -> Call:
    """Remove a deleted topic's partition, whoever leads it. For an hour nobody can claim it. DONE; or GONE, where a
    later topic has the name."""
    return Call(
        function="delete",
        keys=(keys.state, keys.stream, keys.times, keys.epochs, keys.producers, keys.next, keys.aborted),
        arguments=(str(topic_id), birth),
    )


@dataclass(frozen=True, slots=True)
class MetadataFunctions:
    """Calls for the commit log of the metadata and the controller's lease.

    `renew`, `commit` and those of the snapshot answer CHANGED, too. So a lease ends with the history of its server.
    """

    keys: Keys

    def take(self, holder: str, about: str, lasts_ms: int, least: int = 0) -> Call:
        """Take the lease if nobody has it. `about` tells others where the holder is reached. The token is above
        `least`. DONE: the token. Or HELD."""
        return Call(function="take", keys=(self.keys.lease,), arguments=(holder, about, lasts_ms, least))

    def renew(self, lease: Lease, lasts_ms: int) -> Call:
        """DONE: the token. Or FENCED: somebody else took it."""
        return Call(function="renew", keys=(self.keys.lease, self.keys.head), arguments=(*lease, lasts_ms))

    def release(self, lease: Lease) -> Call:
        """DONE: the token. Or FENCED."""
        return Call(function="release", keys=(self.keys.lease,), arguments=(*lease,))

    def commit(
        self,
        lease: Lease,
        index: int,
        events: Buffer,
        *,
        put: Mapping[str, Mapping[str, str | int]] | None = None,
        remove: Sequence[str] = (),
    ) -> Call:
        """Append an entry behind `index`, and change the topic registry with it: topics with all of their fields, and
        names of deleted ones. The server adds the time of a topic's creation in milliseconds, `created`.

        DONE: the entry's index, and the chain of hashes up to it, also where this entry is there already. AT: the last
        index and its chain. Or FENCED.
        """
        arguments: list[str | int] = []
        for name, fields in (put or {}).items():
            arguments += ("put", name, len(fields), *(part for pair in fields.items() for part in pair))
        for name in remove:
            arguments += ("del", name)
        keys = self.keys
        hashes = (keys.topic(name) for name in (*(put or {}), *remove))
        return Call(
            function="commit",
            keys=(keys.lease, keys.metadata, keys.head, keys.topics, *hashes),
            arguments=(*lease, index, *arguments),
            payload=(events,),
        )

    def intend(self, lease: Lease, number: int) -> Call:
        """Note the number of a doubt before it is committed. DONE: the number. STALE: a higher one. Or FENCED."""
        return Call(function="intend", keys=(self.keys.lease, self.keys.head), arguments=(*lease, number))

    def doubt(self, lease: Lease, index: int, new: int, history: str, number: int, events: Buffer) -> Call:
        """Go on in a Redis of another history, which may have lost entries: append one at the index `new`, which leaves
        a gap behind `index`. Without events, in a log without entries, only the history is noted.

        DONE: the entry's index and its chain, also where it is there already. AT: the last index and its chain. Or
        FENCED.
        """
        return Call(
            function="doubt",
            keys=(self.keys.lease, self.keys.metadata, self.keys.head),
            arguments=(*lease, index, new, history, number),
            payload=(events,),
        )

    def snapshot_part(self, lease: Lease, index: int, number: int, part: Buffer) -> Call:
        """Put one part of a snapshot at `index` beside the one that counts. DONE: its number. Or FENCED."""
        return Call(
            function="snapshot_part",
            keys=(self.keys.lease, self.keys.next_snapshot, self.keys.head),
            arguments=(*lease, index, number),
            payload=(part,),
        )

    def snapshot(self, lease: Lease, index: int, parts: int, keep_from: int) -> Call:
        """Let a snapshot count that has all of its parts, and trim the log below index `keep_from`.

        DONE: its index. STALE: a newer one's. Or FENCED, or INVALID where a part is missing.
        """
        keys = self.keys
        return Call(
            function="snapshot",
            keys=(keys.lease, keys.metadata, keys.head, keys.snapshot, keys.next_snapshot),
            arguments=(*lease, index, parts, keep_from),
        )


def _pairs(batches: Sequence[Batch]) -> tuple[Buffer | str, ...]:
    return tuple(part for batch in batches for part in (str(batch.end), batch.data))
