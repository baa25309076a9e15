"""The catalog's mirror: JSON documents beside the objects, so that history can be read with no broker running.

Promises:
- A mirror is a projection of the metadata image and never its source.
- A document states the Raft index at which it was true. A writer that is behind leaves newer documents alone.
- A segment's document, or the chunk that holds it (`chunks`), is written before `state` counts it. So a reader between
  two writes sees an older catalog, never a broken one.
- Chunks that `state` no longer names stay until a sweep, for readers of an older one.

A chunk may be missing for a moment where it is named again just as a sweep removes it. Both the writer and the sweep
then look, and whichever notices puts it back. A broker that has an image never reads the mirror, except to find out
what is missing in it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID

from headrace.base.errors import CorruptData, StorageFailure
from headrace.base.ids import FIRST_OFFSET, ClusterId, Offset, PartitionIndex, TopicId
from headrace.base.limits import CATALOG_DOCUMENT_BYTES_MAX, MIRROR_CHUNK_TRIES_MAX
from headrace.base.ports import ObjectMeta, Objects
from headrace.metadata.segments import CatalogEntry, Link, PartitionCatalog, SegmentDescriptor, links_from_json
from headrace.storage.tier.chunks import (
    TOPICS,
    VERSION,
    ChunkRef,
    Stretch,
    chunk_key,
    chunks_prefix,
    encode_chunk,
    is_there,
    stretches,
)

__all__ = ["TOPICS", "MirrorWriter", "MirroredState", "MirroredTopic", "read_document", "read_state"]

NAMES: Final = "storage/names/"


def topic_document_key(topic_id: TopicId) -> str:
    """A key apart from the catalogs, so that listing the topics lists nothing else."""
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
    """The mirror's document of a topic."""

    cluster_id: ClusterId
    topic_id: TopicId
    name: str
    partitions: int
    deleted: bool = False
    raft_index: int = 0
    """Raft index at which the document was true."""

    def to_json(self) -> dict[str, Any]:
        fields = {name: getattr(self, name) for name in MirroredTopic.__slots__}
        return {**fields, "topic_id": str(self.topic_id), "version": VERSION}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> MirroredTopic:
        """Raises CorruptData where the document is malformed."""
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
    """Records below this offset are deleted, though the first segment may still hold them."""
    deletions: tuple[Link, ...] = ()
    """Deletions and replacements since the last segment was published. Linked to its hash, they give `head`."""
    chunks: tuple[ChunkRef, ...] = field(default=(), compare=False)
    """Chunks with the entries, in order. Retention may have removed the beginning of the first."""
    singles: tuple[Offset, ...] | None = field(default=None, compare=False)
    """Start offsets of the entries behind all chunks, each in a document of its own. None: unknown, as in mirrors of
    earlier versions.
    """

    def to_json(self) -> dict[str, Any]:
        known: dict[str, Any] = {name: getattr(self, name) for name in MirroredState.__slots__}
        if self.singles is None:
            del known["chunks"], known["singles"]
        else:
            known |= {"chunks": [list(ref) for ref in self.chunks], "singles": list(self.singles)}
        return {**known, "deletions": [list(link) for link in self.deletions], "version": VERSION}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> MirroredState:
        """Raises CorruptData where the document is malformed."""
        try:
            known = {"log_start_offset": 0, "deletions": [], "chunks": [], "singles": None, **value}
            known["deletions"] = links_from_json(known["deletions"])
            known["chunks"] = tuple(map(ChunkRef.from_json, known["chunks"]))
            known["singles"] = None if known["singles"] is None else tuple(known["singles"])
            state = cls(**{name: known[name] for name in MirroredState.__slots__})
        except (KeyError, TypeError) as error:
            raise CorruptData(f"A partition's state is malformed: {error!r}.") from error
        numbers = [state.start_offset, state.end_offset, state.last_start, state.segments, state.raft_index]
        numbers += [state.log_start_offset, *(state.singles or ())]
        if any(type(number) is not int for number in numbers) or type(state.head) is not str:
            raise CorruptData("A partition's state is malformed: a field is of another type.")
        return state

    @classmethod
    def of(cls, catalog: PartitionCatalog, raft_index: int, chunks: Sequence[ChunkRef] | None = None) -> MirroredState:
        """The state of a catalog. `chunks`: the chunks with its entries; None: unknown."""
        return cls(
            start_offset=catalog.start_offset,
            end_offset=catalog.end_offset,
            last_start=catalog.last_start,
            segments=len(catalog.entries),
            head=catalog.head,
            raft_index=raft_index,
            log_start_offset=catalog.log_start_offset,
            deletions=catalog.deletions,
            chunks=tuple(chunks or ()),
            singles=None if chunks is None else tuple(_behind(catalog, chunks)),
        )


def _behind(catalog: PartitionCatalog, chunks: Sequence[ChunkRef]) -> Iterator[Offset]:
    """Start offsets of the entries that no chunk holds."""
    return catalog.entries.starts(chunks[-1].end_offset + 1 if chunks else 0)


def read_document(objects: Objects, key: str) -> dict[str, Any] | None:
    """One JSON document; None where it is missing. Raises CorruptData where it is no JSON object of this version."""
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


def read_state(objects: Objects, topic_id: TopicId, partition: PartitionIndex) -> MirroredState | None:
    """The partition's state; None where there is none. Raises as `read_document`."""
    document = read_document(objects, state_key(topic_id, partition))
    return None if document is None else MirroredState.from_json(document)


def named_chunks(objects: Objects, topic_id: TopicId, partition: PartitionIndex) -> set[str]:
    """Keys of the chunks that `state` names. Raises as `read_document`."""
    state = read_state(objects, topic_id, partition)
    return {chunk_key(topic_id, partition, ref) for ref in (state.chunks if state is not None else ())}


def lacks_chunk(objects: Objects, topic_id: TopicId, partition: PartitionIndex) -> bool:
    """Whether a chunk that `state` names is missing. Raises as `read_document`."""
    there = {meta.key for meta in objects.list(chunks_prefix(topic_id, partition))}
    return not named_chunks(objects, topic_id, partition) <= there


def unnamed_chunks(objects: Objects, topic_id: TopicId, partition: PartitionIndex) -> list[ObjectMeta]:
    """Chunks that `state` does not name: of an earlier catalog, or of one being written. Raises as `read_document`."""
    there = list(objects.list(chunks_prefix(topic_id, partition)))
    named = named_chunks(objects, topic_id, partition) if there else set()
    return [meta for meta in there if meta.key not in named]


def remove_chunk(objects: Objects, topic_id: TopicId, partition: PartitionIndex, meta: ObjectMeta) -> None:
    """Remove a chunk that `state` does not name, unless it is named or written again meanwhile. A writer of a state
    checks its chunks after that, so that one of the two notices the other. Raises as `read_document`, StorageFailure.
    """
    key = meta.key
    try:
        data = objects.get(key)
        if any(each.key == key and each.modified_ms != meta.modified_ms for each in objects.list(key)):
            return
    except FileNotFoundError:
        return
    objects.delete(key)
    if key in named_chunks(objects, topic_id, partition):
        objects.put(key, data)


class MirrorWriter:
    """Writes the mirror of one cluster. Blocks: never call it on the event loop, and one call at a time per partition.

    It remembers nothing: each call compares with the store, so it also repairs. After a publication pass `known`, the
    catalog that the last call for this partition wrote. Then only newer entries are written.
    """

    def __init__(self, objects: Objects, *, cluster_id: ClusterId) -> None:
        self._objects = objects
        self._cluster_id = cluster_id

    def write_topic(self, topic: MirroredTopic) -> bool:
        """Write the topic's document where it is missing, damaged or older. Returns whether it was written.

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
        """Bring one partition's documents up to `catalog`, true at `raft_index`. Returns the number of documents
        written.

        Nothing is written where the mirror's state is already at a higher index.
        """
        there = self._readable(state_key(topic_id, partition))
        if there is not None and _raft_index(there) > raft_index:
            return 0
        if known is not None and (there is None or there.get("head") != known.head):
            known = None  # another process wrote or damaged it: check everything
        if known is None:
            return self._write_all(topic_id, partition, catalog, raft_index, there)
        gone = list(known.entries.gone(catalog.entries))
        replaced = [each for each in gone if each.start_offset >= catalog.start_offset]
        kept = [ref for ref in _chunks_of(there) if not any(_overlap(ref, each) for each in replaced)]
        missing = [entry for entry in catalog.above(known.end_offset) if not entry.is_substitute]
        names = [segment_document_key(topic_id, partition, each.start_offset) for each in gone]
        return self._write_state(topic_id, partition, catalog, raft_index, kept, missing, names)

    def _write_all(
        self,
        topic_id: TopicId,
        partition: PartitionIndex,
        catalog: PartitionCatalog,
        raft_index: int,
        there: Mapping[str, Any] | None,
    ) -> int:
        """Check all documents. Missing, damaged or different ones are written; surplus ones are removed."""
        kept = [ref for ref in _chunks_of(there) if self._is_right(topic_id, partition, catalog, ref)]
        covered = max((each.end_offset for each in stretches(catalog, kept)), default=-1)
        names = {meta.key for meta in self._objects.list(segments_prefix(topic_id, partition))}
        names.discard(current_key(topic_id, partition))
        missing = []
        for entry in catalog:
            key = segment_document_key(topic_id, partition, entry.descriptor.start_offset)
            is_named = key in names and not entry.is_substitute
            if is_named:
                names.remove(key)
            is_read = is_named and (
                entry.descriptor.start_offset <= covered or _holds(self._readable(key), entry.to_json())
            )
            if not is_read and not entry.is_substitute:
                missing.append(entry)
        end = segment_document_key(topic_id, partition, catalog.next_offset)
        gone = sorted(name for name in names if name < end)
        return self._write_state(topic_id, partition, catalog, raft_index, kept, missing, gone)

    def _is_right(self, topic_id: TopicId, partition: PartitionIndex, catalog: PartitionCatalog, ref: ChunkRef) -> bool:
        """Whether a chunk exists, and agrees with the catalog for these offsets."""
        if not ref.start_offset <= ref.end_offset <= catalog.end_offset:
            return False
        if catalog.entries.holding(ref.start_offset) is None:
            return False
        wanted, _ = encode_chunk(topic_id, partition, catalog, ref.start_offset, ref.end_offset)
        return wanted == ref and is_there(self._objects, topic_id, partition, ref)

    def _write_state(
        self,
        topic_id: TopicId,
        partition: PartitionIndex,
        catalog: PartitionCatalog,
        raft_index: int,
        kept: Sequence[ChunkRef],
        missing: Sequence[CatalogEntry],
        gone: Sequence[str],
        tries: int = MIRROR_CHUNK_TRIES_MAX,
    ) -> int:
        """Write the documents and then the state; returns the number of documents written. `missing`: entries whose
        single documents are written. `gone`: documents that nothing needs once `state` does not count them.
        """
        stamp = {"raft_index": raft_index, "version": VERSION}
        written = 0
        for entry in missing:
            key = segment_document_key(topic_id, partition, entry.descriptor.start_offset)
            self._write(key, entry.to_json() | stamp)
            written += 1
        chunks = []
        for each in stretches(catalog, kept) if catalog.entries else ():
            chunks.append(each.there or self._write_chunk(topic_id, partition, catalog, each))
            written += each.there is None
        if last := catalog.last:
            current = {"start_offset": catalog.last_start, "key": last.descriptor.key, "hash": last.hash} | stamp
            written += self._update(current_key(topic_id, partition), current)
        there = self._readable(state_key(topic_id, partition))
        if there is not None and _raft_index(there) > raft_index:
            return written  # another broker leads the partition by now
        state = MirroredState.of(catalog, raft_index, chunks)
        written += self._update(state_key(topic_id, partition), state.to_json())
        found = {meta.key for meta in self._objects.list(chunks_prefix(topic_id, partition))} if chunks else set()
        left = [ref for ref in chunks if chunk_key(topic_id, partition, ref) in found]
        if len(left) < len(chunks):  # a sweep removed some meanwhile
            if not tries:
                raise StorageFailure("Chunks of the mirror go as they are written; it is tried again.")
            return written + self._write_state(topic_id, partition, catalog, raft_index, left, (), gone, tries - 1)
        for name in gone:
            self._objects.delete(name)
        return written

    def _write_chunk(
        self, topic_id: TopicId, partition: PartitionIndex, catalog: PartitionCatalog, new: Stretch
    ) -> ChunkRef:
        ref, data = encode_chunk(topic_id, partition, catalog, new.start_offset, new.end_offset)
        self._objects.put(chunk_key(topic_id, partition, ref), data, if_absent=False)  # replaces a damaged one
        return ref

    def _readable(self, key: str) -> dict[str, Any] | None:
        """A document; None where it is missing or damaged. Both are repaired by writing it."""
        try:
            return read_document(self._objects, key)
        except CorruptData:
            return None

    def _update(self, key: str, document: Mapping[str, Any]) -> bool:
        """Write a document where it differs from the stored one. Returns whether it was written."""
        there = self._readable(key)
        if there is not None and _unstamped(there) == _unstamped(document):
            return False
        self._write(key, document)
        return True

    def _write(self, key: str, document: Mapping[str, Any]) -> None:
        text = json.dumps(document, sort_keys=True, indent=1, ensure_ascii=False) + "\n"
        self._objects.put(key, text.encode(), if_absent=False)


def _chunks_of(state: Mapping[str, Any] | None) -> list[ChunkRef]:
    """The chunks that a state names; empty where it names none, or is damaged."""
    try:
        return [] if state is None else list(MirroredState.from_json(state).chunks)
    except CorruptData:
        return []


def _overlap(ref: ChunkRef, segment: SegmentDescriptor) -> bool:
    return segment.start_offset <= ref.end_offset and ref.start_offset <= segment.end_offset


def _holds(document: Mapping[str, Any] | None, wanted: Mapping[str, Any]) -> bool:
    return document is not None and {name: document.get(name) for name in wanted} == wanted


def _raft_index(document: Mapping[str, Any]) -> int:
    index = document.get("raft_index")
    return index if type(index) is int else -1


def _unstamped(document: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name != "raft_index"}
