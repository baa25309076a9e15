"""OffsetCommit by a shortcut, for offsets of known partitions of a group that this broker keeps.

It answers exactly as `headrace.broker.handlers.offset_commit`, which has all rules but those of the group itself. Where
a partition is unknown, or another broker keeps the group, it does nothing and leaves the whole request to that handler.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final
from uuid import UUID

from headrace.base.ids import LeaderEpoch, Offset, TopicId
from headrace.base.limits import PLACES_REMEMBERED_MAX
from headrace.broker.groups.answers import Told
from headrace.broker.groups.shard import GroupShard
from headrace.broker.handlers.group_answers import PlainAnswer
from headrace.broker.requests.context import Services, Shortcut
from headrace.broker.requests.rights import Rights, named
from headrace.coordinators.groups.events import CommitOffsets, CommitReply, NewOffset
from headrace.coordinators.groups.model import NamedPartition
from headrace.metadata.access.acls import AclOperation, ResourceType
from headrace.metadata.image import MetadataImage
from headrace.net.server.listener import Answer, Connection
from headrace.wire.apis import ApiKey
from headrace.wire.codec import new
from headrace.wire.errors import ErrorCode
from headrace.wire.plain_commit import (
    TOPIC_ID_VERSION,
    VERSIONS,
    PlainCommit,
    read_plain_commit,
    topic_of,
    write_plain_answer,
)

API: Final = int(ApiKey.OFFSET_COMMIT)
"""As a plain number, which is at hand sooner than a member of an enumeration."""


def shortcuts(services: Services, in_words_of: Callable[[ErrorCode, int], ErrorCode]) -> dict[int, Shortcut]:
    """Return the shortcuts by version. `in_words_of` gives an error as a version names it."""
    return {version: _Road(services, version, in_words_of).serve for version in VERSIONS}


class _Road:
    """Serves requests of one version. It remembers which partition each topic and index means, while the cluster does
    not change."""

    def __init__(self, services: Services, version: int, in_words_of: Callable[[ErrorCode, int], ErrorCode]) -> None:
        self._groups = services.groups
        self._metadata = services.metadata
        self._version = version
        self._in_words_of = in_words_of
        self._by_id = version >= TOPIC_ID_VERSION
        self._known: dict[tuple[bytes, int], tuple[NamedPartition, TopicId]] = {}
        self._image: MetadataImage | None = None
        """The image of the remembered partitions."""
        self._rights = services.authority.rights if services.authority.is_asked else None
        self._grants = services.authority.grants()
        self.on_error = services.on_error

    def serve(self, frame: memoryview, connection: Connection) -> PlainAnswer | None:
        """`Shortcut`."""
        wanted = read_plain_commit(frame)
        if wanted is None:
            return None
        if self._rights is not None and not self._may_commit(wanted, self._rights(connection, API)):
            return None
        shard = self._groups.shard(wanted.group_id)
        if not isinstance(shard, GroupShard):
            return None
        offsets = self._offsets(wanted)
        if offsets is None:
            return None
        answer = PlainAnswer(partial(self.answer_to, wanted))
        commit = (shard.registered(answer), wanted.member_id, wanted.epoch, offsets, wanted.instance_id)
        shard.gather(wanted.group_id, new(CommitOffsets, commit))
        return answer

    def _may_commit(self, wanted: PlainCommit, rights: Rights) -> bool:
        """Whether the client may read as the group, and each topic."""
        grants, group = self._grants, wanted.group_id
        if not grants.has(rights, group):
            if not rights.may(AclOperation.READ, ResourceType.GROUP, group):
                return False
            grants.add(rights, group)
        return all(grants.has(rights, topic) or self._is_granted(topic, rights) for topic, _ in wanted.topics)

    def _is_granted(self, topic: bytes, rights: Rights) -> bool:
        name = named(topic_of(topic, by_id=self._by_id), self._metadata.image, by_id=self._by_id)
        if name is None or not rights.may(AclOperation.READ, ResourceType.TOPIC, name):
            return False
        self._grants.add(rights, topic)
        return True

    def _offsets(self, wanted: PlainCommit) -> tuple[NewOffset, ...] | None:
        """Return the offsets to commit; None where a partition does not exist."""
        if self._image is not self._metadata.image:
            self._known.clear()
            self._image = self._metadata.image
        known, offsets = self._known, []
        for topic, positions in wanted.topics:
            for index, offset, leader_epoch, metadata in positions:
                place = known.get((topic, index)) or self._find(topic, index)
                if place is None:
                    return None
                offsets.append(new(NewOffset, (*place, Offset(offset), LeaderEpoch(leader_epoch), metadata)))
        return tuple(offsets)

    def _find(self, topic: bytes, index: int) -> tuple[NamedPartition, TopicId] | None:
        """Look the partition up as the general handler does."""
        assert self._image is not None
        name = topic_of(topic, by_id=self._by_id)
        if self._by_id:
            found = self._image.topic_by_id(TopicId(UUID(bytes=name)))
        else:
            found = self._image.topic(name.decode(errors="replace"))
        if found is None or not 0 <= index < len(found.partitions):
            return None
        if len(self._known) >= PLACES_REMEMBERED_MAX:
            self._known.clear()
        place = self._known[topic, index] = (NamedPartition(found.name, index), found.id)
        return place

    def answer_to(self, wanted: PlainCommit, reply: Told) -> Answer:
        if isinstance(reply, CommitReply):
            errors = reply.errors
            if any(errors):
                errors = tuple(self._in_words_of(error, self._version) for error in errors)
        else:
            assert isinstance(reply, ErrorCode)
            errors = (reply,) * sum(len(positions) for _, positions in wanted.topics)
        for error in errors:
            if error:
                self.on_error(ApiKey.OFFSET_COMMIT, error)
        return [write_plain_answer(wanted.correlation_id, wanted.topics, errors)]
