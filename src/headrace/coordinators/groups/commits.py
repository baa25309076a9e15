"""Commits read from their records, and written to them, as fast as Python can: a log that is loaded holds millions of
them, and most of what is written to it is that.

Promises: says of a record what `records.decode`, its slow twin, says, or nothing: then that is to be asked; and writes
what `records.encode` writes.
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
"""A key: its type, the length of the group's name, the name; then the partition, in the same bytes for every group."""
METADATA_AT: Final = 14
EMPTY_METADATA: Final = 1
SHORT_METADATA_MAX: Final = 127
"""The length of the metadata, and one more, is one byte up to this."""
NO_TAGS: Final = b"\0"
"""What a value ends with that names no topic id."""
TOPIC_TAG: Final = b"\1\0\x10"
"""And what goes before one that it names: one tag, its number, the length."""

unpack_key = Struct(">hh").unpack_from
unpack_value = Struct(">hqi").unpack_from
unpack_time = Struct(">q").unpack_from
pack_plain = Struct(">hqiBq").pack
"""A value without metadata, up to its tags: version, offset, leader epoch, length of the metadata plus one, time."""
pack_value = Struct(">hqiB").pack
pack_time = Struct(">q").pack


class CommitReader:
    """Remembers names and ids, of which there are few, so that equal ones are one object."""

    def __init__(self) -> None:
        self._groups: dict[bytes, str] = {}
        self._partitions: dict[bytes, NamedPartition] = {}
        self._topics: dict[bytes, TopicId] = {NO_TAGS: NO_TOPIC_ID}
        """By the tagged fields that values end with."""

    def read(self, key: bytes, value: bytes) -> OffsetCommitted | None:
        """None where it is no commit in the form that is written today, or is damaged."""
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
        """The first with this partition or topic id: read slowly, and remembered. Raises DecodeError."""
        found = records.decode(key, value)
        if not isinstance(found, OffsetCommitted):
            return None
        self._partitions[place] = found.partition
        self._topics[tags] = found.commit.topic_id
        return OffsetCommitted(found.group, found.partition, found.commit)


class CommitWriter:
    """Remembers the bytes of names and ids, of which there are few."""

    def __init__(self) -> None:
        self._groups: dict[str, bytes] = {}
        self._partitions: dict[NamedPartition, bytes] = {}
        self._topics: dict[TopicId, bytes] = {NO_TOPIC_ID: NO_TAGS}

    def write(self, record: OffsetCommitted) -> tuple[bytes, bytes | None]:
        """Key and value. Raises EncodeError where a name is too long for the record."""
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
        """The first with one of its names: written slowly, and remembered."""
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
