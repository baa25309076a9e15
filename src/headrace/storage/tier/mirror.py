"""The catalog's mirror: JSON documents beside the objects, so that history can be read with no broker running.

Promises: a mirror is a projection of the metadata image and never its source; a document says at which Raft index it
was true; a writer that is behind leaves what is ahead of it alone. A segment's document is written before `state`
counts it, so that a reader between two writes sees an older catalog, never a broken one.
Never read by a broker that has an image, but to find out what is missing in it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from headrace.base.errors import CorruptData, StorageFailure
from headrace.base.ids import FIRST_OFFSET, ClusterId, Offset, PartitionIndex, TopicId
from headrace.base.limits import CATALOG_DOCUMENT_BYTES_MAX
from headrace.base.ports import Objects
from headrace.metadata.segments import CatalogEntry, PartitionCatalog, Removed, deletions_from_json

VERSION: Final = 1
NAMES: Final = "storage/names/"
TOPICS: Final = "storage/topics/"


def topic_document_key(topic_id: TopicId) -> str:
    """Apart from the catalogs, so that listing the topics lists nothing else."""
    return f"{NAMES}{topic_id}"


def state_key(topic_id: TopicId, partition: PartitionIndex) -> str:
    return f"{TOPICS}{topic_id}/{partition}/state"


def segments_prefix(topic_id: TopicId, partition: PartitionIndex) -> str:
    return f"{TOPICS}{topic_id}/{partition}/segments/"


def segment_document_key(topic_id: TopicId, partition: PartitionIndex, start: Offset) -> str:
    return f"{segments_prefix(topic_id, partition)}{start:020d}"


def current_key(topic_id: TopicId, partition: PartitionIndex) -> str:
    return f"{segments_prefix(topic_id, partition)}cur"


@dataclass(frozen=True, slots=True, kw_only=True)
class MirroredTopic:
    """What the mirror says of a topic."""

    cluster_id: ClusterId
    topic_id: TopicId
    name: str
    partitions: int
    deleted: bool = False
    raft_index: int = 0
    """At which all this was true."""

    def to_json(self) -> dict[str, Any]:
        fields = {name: getattr(self, name) for name in MirroredTopic.__slots__}
        return {**fields, "topic_id": str(self.topic_id), "version": VERSION}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> MirroredTopic:
        """Raises CorruptData."""
        try:
            known = {name: value[name] for name in MirroredTopic.__slots__}
            topic = cls(**{**known, "topic_id": TopicId(UUID(known["topic_id"]))})
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptData(f"A topic's document is malformed: {error!r}.") from error
        if type(topic.partitions) is not int or type(topic.name) is not str or type(topic.raft_index) is not int:
            raise CorruptData("A topic's document is malformed: a field is of another type.")
        return topic


@dataclass(frozen=True, slots=True, kw_only=True)
class MirroredState:
    """The ends of one partition's catalog. Offsets are -1 while there is no segment."""

    start_offset: Offset
    end_offset: Offset
    """Inclusive."""
    last_start: Offset
    segments: int
    head: str
    raft_index: int
    log_start_offset: Offset = FIRST_OFFSET
    """What lies below is deleted, though the first segment may still hold it."""
    deletions: tuple[Removed, ...] = ()
    """What was deleted since the last segment was published, linked to its hash to give `head`."""

    def to_json(self) -> dict[str, Any]:
        known = {name: getattr(self, name) for name in MirroredState.__slots__}
        return {**known, "deletions": [list(removed) for removed in self.deletions], "version": VERSION}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> MirroredState:
        """Raises CorruptData."""
        try:
            known = {"log_start_offset": 0, "deletions": [], **value}
            state = cls(
                **{name: known[name] for name in MirroredState.__slots__ if name != "deletions"},
                deletions=deletions_from_json(known["deletions"]),
            )
        except (KeyError, TypeError) as error:
            raise CorruptData(f"A partition's state is malformed: {error!r}.") from error
        numbers = [state.start_offset, state.end_offset, state.last_start, state.segments, state.raft_index]
        numbers.append(state.log_start_offset)
        if any(type(number) is not int for number in numbers) or type(state.head) is not str:
            raise CorruptData("A partition's state is malformed: a field is of another type.")
        return state

    @classmethod
    def of(cls, catalog: PartitionCatalog, raft_index: int) -> MirroredState:
        return cls(
            start_offset=catalog.start_offset,
            end_offset=catalog.end_offset,
            last_start=catalog.last_start,
            segments=len(catalog.entries),
            head=catalog.head,
            raft_index=raft_index,
            log_start_offset=catalog.log_start_offset,
            deletions=catalog.deletions,
        )


def read_document(objects: Objects, key: str) -> dict[str, Any] | None:
    """One JSON document; None where it is missing. Raises CorruptData where it is no JSON object of our version."""
    try:
        data = objects.get(key)
    except FileNotFoundError:
        return None
    if len(data) > CATALOG_DOCUMENT_BYTES_MAX:
        raise CorruptData(f"Document '{key}' has {len(data)} bytes.")
    try:
        value = json.loads(data)
    except ValueError as error:
        raise CorruptData(f"Document '{key}' is not JSON: {error}.") from error
    if not isinstance(value, dict) or value.get("version") != VERSION:
        raise CorruptData(f"Document '{key}' is not one that this version of Headrace reads.")
    return value


def deleted_in_mirror(objects: Objects, topic_id: TopicId, partition: PartitionIndex) -> Offset:
    """Nothing that lies whole below it is named by the mirror's state any more. Raises as `read_document`."""
    document = read_document(objects, state_key(topic_id, partition))
    return FIRST_OFFSET if document is None else MirroredState.from_json(document).log_start_offset


class MirrorWriter:
    """Writes the mirror of one cluster. Blocking: never on the event loop; one call at a time per partition.

    Remembers nothing: each call compares with what is there, so it also repairs. After a publication pass `known`,
    the catalog that the last call for this partition wrote, and only what is new since is written.
    """

    def __init__(self, objects: Objects, *, cluster_id: ClusterId) -> None:
        self._objects = objects
        self._cluster_id = cluster_id

    def write_topic(self, topic: MirroredTopic) -> bool:
        """Write the topic's document where it is missing, damaged or older. True where it was written.

        Raises StorageFailure where the store holds this topic id for another cluster.
        """
        assert topic.cluster_id == self._cluster_id
        key = topic_document_key(topic.topic_id)
        there = self._readable(key)
        if there is not None:
            if there.get("cluster_id") != self._cluster_id:
                raise StorageFailure(f"The store holds topic '{topic.name}' of cluster {there.get('cluster_id')}.")
            if _raft_index(there) > topic.raft_index or _unstamped(there) == _unstamped(topic.to_json()):
                return False
        self._write(key, topic.to_json())
        return True

    def write_partition(
        self,
        topic_id: TopicId,
        partition: PartitionIndex,
        catalog: PartitionCatalog,
        raft_index: int,
        *,
        known: PartitionCatalog | None = None,
    ) -> int:
        """Bring one partition's documents up to `catalog`, true at `raft_index`; the number of documents written.

        Nothing is written where the mirror's state is already at a higher index.
        """
        state = MirroredState.of(catalog, raft_index)
        there = self._readable(state_key(topic_id, partition))
        if there is not None and _raft_index(there) > raft_index:
            return 0
        stamp = {"raft_index": raft_index, "version": VERSION}
        written = 0
        for entry in self._missing(topic_id, partition, catalog, known):
            self._write(
                segment_document_key(topic_id, partition, entry.descriptor.start_offset), entry.to_json() | stamp
            )
            written += 1
        if last := catalog.last:
            current = {"start_offset": catalog.last_start, "key": last.descriptor.key, "hash": last.hash} | stamp
            written += self._update(current_key(topic_id, partition), current)
        written += self._update(state_key(topic_id, partition), state.to_json())
        self._drop_deleted(topic_id, partition, catalog, known)
        return written

    def _drop_deleted(
        self, topic_id: TopicId, partition: PartitionIndex, catalog: PartitionCatalog, known: PartitionCatalog | None
    ) -> None:
        """The documents of segments that left the catalog, once `state` does not count them any more."""
        if known is not None:
            gone = [
                segment_document_key(topic_id, partition, each.start_offset) for each in known.below(_first(catalog))
            ]
        elif not catalog.log_start_offset:
            return
        else:
            low = segment_document_key(topic_id, partition, _first(catalog))
            gone = [meta.key for meta in self._objects.list(segments_prefix(topic_id, partition)) if meta.key < low]
        for key in gone:
            self._objects.delete(key)

    def _missing(
        self,
        topic_id: TopicId,
        partition: PartitionIndex,
        catalog: PartitionCatalog,
        known: PartitionCatalog | None,
    ) -> list[CatalogEntry]:
        """The entries whose documents must be written: those above `known`, or all that are not there as they are."""
        if known is not None and known.entries and catalog.start_offset <= known.next_offset:
            return list(catalog.above(known.end_offset))
        names = {meta.key for meta in self._objects.list(segments_prefix(topic_id, partition))}
        missing = []
        for entry in catalog:
            key = segment_document_key(topic_id, partition, entry.descriptor.start_offset)
            there = self._readable(key) if key in names else None
            if there is None or {name: there.get(name) for name in entry.to_json()} != entry.to_json():
                missing.append(entry)
        return missing

    def _readable(self, key: str) -> dict[str, Any] | None:
        """A document, or None where it is missing or damaged: both are repaired by writing it."""
        try:
            return read_document(self._objects, key)
        except CorruptData:
            return None

    def _update(self, key: str, document: Mapping[str, Any]) -> bool:
        """Write a document where what is there says otherwise. True where it was written."""
        there = self._readable(key)
        if there is not None and _unstamped(there) == _unstamped(document):
            return False
        self._write(key, document)
        return True

    def _write(self, key: str, document: Mapping[str, Any]) -> None:
        text = json.dumps(document, sort_keys=True, indent=1, ensure_ascii=False) + "\n"
        self._objects.put(key, text.encode(), if_absent=False)


def _first(catalog: PartitionCatalog) -> Offset:
    """Where the first segment starts; where the next one will, where there is none."""
    return catalog.start_offset if catalog.entries else catalog.next_offset


def _raft_index(document: Mapping[str, Any]) -> int:
    index = document.get("raft_index")
    return index if type(index) is int else -1


def _unstamped(document: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name != "raft_index"}
