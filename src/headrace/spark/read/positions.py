"""A stream's offsets as Spark keeps them: ``{"topic": {"id": "...", "0": 23, "from": {"0": 5}}}``, offsets exclusive.

`id` distinguishes a topic from a later one of that name. `from` has the beginning of the batch that ends here, for
partitions that the batch before does not name. So a replay reads the same records. Promises equal text for equal
offsets, since Spark compares the text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from headrace.base.reading import is_natural

ID: Final = "id"
FROM: Final = "from"
StreamOffsets: TypeAlias = Mapping[str, Mapping[str, Any]]


class TopicOffsets(NamedTuple):
    """The offsets of one topic."""

    id: str
    """Empty in checkpoints of earlier versions: any topic id."""
    next: Mapping[int, int]
    """The next offset to read, by partition."""
    begun: Mapping[int, int]
    """Where the batch that ends here begins, by partition, if that is given."""

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
    """The end of a batch from `start` that reads everything in `there`, whose `begun` are the starts of partitions.
    Offsets never go back, except in a topic made again. `first`: `start` is not from a checkpoint.
    """
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
    """Whether nothing lies between the two."""
    return {name: topic[:2] for name, topic in one.items()} == {name: topic[:2] for name, topic in other.items()}
