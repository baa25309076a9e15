"""A stream's offsets as Spark keeps them: ``{"topic": {"id": "...", "0": 23, "from": {"0": 5}}}``, offsets exclusive.

`id` tells a topic from one made anew under its name. `from` says where the batch that ends here begins in partitions
that the batch before does not name, so that a replay reads the same. Promises the same text for the same offsets, by
which Spark compares them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from headrace.base.reading import is_natural

ID: Final = "id"
FROM: Final = "from"
StreamOffsets: TypeAlias = Mapping[str, Mapping[str, Any]]


class TopicOffsets(NamedTuple):
    """Of one topic."""

    id: str
    """Empty in checkpoints of earlier versions: any."""
    next: Mapping[int, int]
    """By partition, what is to be read next."""
    begun: Mapping[int, int]
    """By partition, where the batch that ends here begins, if that is said here."""

    def is_of(self, topic_id: str) -> bool:
        return self.id == topic_id or "" in (self.id, topic_id)


Positions: TypeAlias = Mapping[str, TopicOffsets]


def parsed(offsets: StreamOffsets) -> Positions:
    return {
        name: TopicOffsets(
            by_partition.get(ID, ""),
            {int(partition): offset for partition, offset in by_partition.items() if is_natural(partition)},
            {int(partition): offset for partition, offset in by_partition.get(FROM, {}).items()},
        )
        for name, by_partition in offsets.items()
    }


def formatted(positions: Positions) -> StreamOffsets:
    return {name: _formatted(positions[name]) for name in sorted(positions)}


def _formatted(topic: TopicOffsets) -> Mapping[str, Any]:
    found: dict[str, Any] = {ID: topic.id} if topic.id else {}
    found |= _by_text(topic.next)
    return {**found, FROM: _by_text(topic.begun)} if topic.begun else found


def _by_text(offsets: Mapping[int, int]) -> dict[str, int]:
    return {str(partition): offsets[partition] for partition in sorted(offsets)}


def merged(start: Positions, there: Positions, *, first: bool) -> Positions:
    """The end of a batch from `start` that reads all that is `there`, whose `begun` are where partitions begin. Offsets
    never go back, but in a topic made anew. `first`: no checkpoint says `start`."""
    found = {}
    for name in {**start, **there}:
        old, new = start.get(name), there.get(name)
        if new is None:
            assert old is not None, "it is in one of them"
            found[name] = old._replace(begun={})
        elif old is None or not old.is_of(new.id):
            found[name] = new
        else:
            following = {**new.next, **{at: max(offset, new.next.get(at, 0)) for at, offset in old.next.items()}}
            begun = {at: offset for at, offset in new.begun.items() if at not in old.next}
            found[name] = TopicOffsets(new.id, following, {**begun, **old.next} if first else begun)
    return found


def is_same(one: Positions, other: Positions) -> bool:
    """Whether nothing lies between."""
    return {name: topic[:2] for name, topic in one.items()} == {name: topic[:2] for name, topic in other.items()}
