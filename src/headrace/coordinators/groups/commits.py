"""Reads and writes the records of commits as fast as Python can. A loaded log holds millions of them, and most new
records are commits.

Promises: the result for a record is that of the slow twin `records.decode`, or None; then the caller asks the twin.
Writing gives the bytes of `records.encode`.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from headrace.base.ids import NO_TOPIC_ID, LeaderEpoch, Offset, TopicId
from headrace.base.limits import PLACES_REMEMBERED_MAX
from headrace.coordinators.groups import records
from headrace.coordinators.groups.events import OffsetCommitted
from headrace.coordinators.groups.model import Commit, NamedPartition

NAME_AT: Final = 4
"""Offset of the group's name in a key. A key has its type, the length of the group's name, and the name. After that,
the bytes of the partition are equal for all groups."""
METADATA_AT: Final = 14
EMPTY_METADATA: Final = 1
SHORT_METADATA_MAX: Final = 127
"""Longest metadata whose length plus one fits one byte."""
NO_TAGS: Final = b"\0"
"""The end of a value without a topic id."""
TOPIC_TAG: Final = b"\1\0\x10"
"""Precedes a topic id at the end of a value: one tag, its number, the length."""

unpack_key = Struct(">hh").unpack_from
unpack_value = Struct(">hqi").unpack_from
unpack_time = Struct(">q").unpack_from
pack_plain = Struct(">hqiBq").pack
"""A value without metadata, up to its tags: version, offset, leader epoch, length of the metadata plus one, time."""
pack_value = Struct(">hqiB").pack
pack_time = Struct(">q").pack


class CommitReader:
    """Caches names and ids, of which there are few, so that equal ones are one object."""

    def __init__(self) -> None:
        self._groups: dict[bytes, str] = {}
        self._partitions: dict[bytes, NamedPartition] = {}
        self._topics: dict[bytes, TopicId] = {NO_TAGS: NO_TOPIC_ID}
        """Topic ids by the tagged fields at the end of values."""

    def read(self, key: bytes, value: bytes) -> OffsetCommitted | None:
        """The commit; None where it is damaged, is no commit, or has not the form that is written today."""
        if len(key) < NAME_AT or len(value) <= METADATA_AT:
            return None
        kind, length = unpack_key(key)
        version, offset, leader_epoch = unpack_value(value)
        size = value[METADATA_AT]
        if kind != 1 or version != records.COMMIT_VERSION or length < 0 or not 0 < size <= SHORT_METADATA_MAX:
            return None
        name, place = key[NAME_AT : NAME_AT + length], key[NAME_AT + length :]
        at = METADATA_AT + size
        tags = value[at + 8 :]
        group, partition, topic_id = self._groups.get(name), self._partitions.get(place), self._topics.get(tags)
        if partition is None or topic_id is None:
            return self._first(key, value, place, tags)
        (timestamp_ms,) = unpack_time(value, at)
        try:
            if group is None:
                group = self._groups[name] = name.decode()
            metadata = "" if size == EMPTY_METADATA else value[METADATA_AT + 1 : at].decode()
        except UnicodeDecodeError:
            return None
        commit = Commit(Offset(offset), timestamp_ms, LeaderEpoch(leader_epoch), metadata, topic_id)
        return OffsetCommitted(group, partition, commit)

    def _first(self, key: bytes, value: bytes, place: bytes, tags: bytes) -> OffsetCommitted | None:
        """Read slowly the first commit with this partition or topic id, and cache these. Raises DecodeError."""
        found = records.decode(key, value)
        if not isinstance(found, OffsetCommitted):
            return None
        self._partitions[place] = found.partition
        self._topics[tags] = found.commit.topic_id
        return OffsetCommitted(found.group, found.partition, found.commit)


class CommitWriter:
    """Caches the bytes of names and ids, of which there are few."""

    def __init__(self) -> None:
        self._groups: dict[str, bytes] = {}
        self._partitions: dict[NamedPartition, bytes] = {}
        self._topics: dict[TopicId, bytes] = {NO_TOPIC_ID: NO_TAGS}

    def write(self, record: OffsetCommitted) -> tuple[bytes, bytes | None]:
        """Encode to key and value. Raises EncodeError where a name is too long for the record."""
        name, place, (offset, timestamp_ms, leader_epoch, metadata, topic_id) = record
        group, partition, tags = self._groups.get(name), self._partitions.get(place), self._topics.get(topic_id)
        if group is None or partition is None or tags is None:
            group, partition, tags = self._first(record)
        if not metadata:
            return group + partition, pack_plain(records.COMMIT_VERSION, offset, leader_epoch, 1, timestamp_ms) + tags
        said = metadata.encode()
        if len(said) >= SHORT_METADATA_MAX:
            return records.encode(record)
        front = pack_value(records.COMMIT_VERSION, offset, leader_epoch, len(said) + 1)
        return group + partition, front + said + pack_time(timestamp_ms) + tags

    def _first(self, record: OffsetCommitted) -> tuple[bytes, bytes, bytes]:
        """Encode slowly the first commit with one of its names, and cache the bytes."""
        key, _ = records.encode(record)
        for known in (self._groups, self._partitions, self._topics):
            if len(known) >= PLACES_REMEMBERED_MAX:
                known.clear()
        at = NAME_AT + len(record.group.encode())
        group = self._groups[record.group] = key[:at]
        partition = self._partitions[record.partition] = key[at:]
        topic_id = record.commit.topic_id
        tags = self._topics[topic_id] = NO_TAGS if topic_id == NO_TOPIC_ID else TOPIC_TAG + topic_id.bytes
        return group, partition, tags
