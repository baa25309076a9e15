"""Checks a run's history against the final state. It knows the promises, but nothing of the broker's code.

Its kinds of problems are those of Jepsen's Kafka workload, and some of our own:
- lost-write, duplicate, inconsistent-offsets, gap, gone, phantom, misordered;
- high-watermark-fell, topic-lost, topic-undead, lost-commit.
"""

from __future__ import annotations

from collections.abc import Iterator

from headrace.sim.history import Acked, FinalState, Found, History, PartitionKey, Problem, Sent


def check(history: History, final: FinalState) -> list[Problem]:
    """Every broken promise; those noted during the run come first."""
    return [*history.problems, *_check_topics(history, final), *_check_partitions(history, final)]


def _check_topics(history: History, final: FinalState) -> Iterator[Problem]:
    for topic_id, story in history.topics.items():
        found = final.topics.get(topic_id)
        if found is None and not story.delete_asked:
            yield Problem("topic-lost", f"{story.name} ({topic_id}) was created and is not there")
        if found is not None and story.deleted:
            yield Problem("topic-undead", f"{story.name} ({topic_id}) was deleted and is there")
        if found is not None and not story.partitions <= found[1] <= story.partitions_asked:
            text = f"{story.name} has {found[1]} partitions, acknowledged {story.partitions}"
            yield Problem("topic-lost", text)
    for topic_id, (name, _) in final.topics.items():
        if topic_id not in history.topics and name not in history.names_asked and not name.startswith("__"):
            yield Problem("phantom", f"nobody created {name} ({topic_id})")


def _check_partitions(history: History, final: FinalState) -> Iterator[Problem]:
    acked_by_partition = _by_partition(history)
    partitions = dict.fromkeys([*final.contents, *acked_by_partition, *history.seen])
    for partition in partitions:
        story = history.topics.get(partition.topic_id)
        if story is None or story.delete_asked:
            continue
        content = final.contents.get(partition)
        if content is None:
            yield Problem("topic-lost", f"partition {partition} cannot be read")
            continue
        yield from _check_content(history, partition, content)
        yield from _check_acknowledged(acked_by_partition.get(partition, []), partition, content)
        yield from _check_seen(history, partition, content)
        seen, now = history.high_watermarks.get(partition, 0), final.high_watermarks.get(partition, 0)
        if now < seen:
            yield Problem("high-watermark-fell", f"{partition} from {seen} to {now}")


def _by_partition(history: History) -> dict[PartitionKey, list[tuple[bytes, Sent, Acked]]]:
    grouped: dict[PartitionKey, list[tuple[bytes, Sent, Acked]]] = {}
    for value, acked in history.acked.items():
        sent = history.sent[value]
        grouped.setdefault(sent.partition, []).append((value, sent, acked))
    return grouped


def _check_content(history: History, partition: PartitionKey, content: list[Found]) -> Iterator[Problem]:
    """Check the log itself: it is contiguous, and each record was sent there, is there once, and is in its lane's
    order."""
    places: dict[bytes, int] = {}
    last_in_lane: dict[str, int] = {}
    for expected, found in enumerate(content):
        if found.offset != expected:
            yield Problem("gap", f"{partition} has offset {found.offset} where {expected} was due")
            return
        sent = None if found.value is None else history.sent.get(found.value)
        if sent is None or found.value is None:
            yield Problem("phantom", f"{partition} offset {expected} holds {found.value!r:.60}, which nobody sent")
            continue
        if (sent.partition, sent.key, sent.timestamp) != (partition, found.key, found.timestamp):
            yield Problem("phantom", f"{partition} offset {expected} holds an altered or misplaced {found.value!r:.60}")
        if found.value in places:
            text = f"{partition} holds {found.value!r:.60} at {places[found.value]} and {expected}"
            yield Problem("duplicate", text)
            continue
        places[found.value] = expected
        if sent.number < last_in_lane.get(sent.lane, -1):
            text = f"{partition} offset {expected}: {sent.lane} {sent.number} follows {last_in_lane[sent.lane]}"
            yield Problem("misordered", text)
        last_in_lane[sent.lane] = sent.number


def _check_acknowledged(
    acked: list[tuple[bytes, Sent, Acked]], partition: PartitionKey, content: list[Found]
) -> Iterator[Problem]:
    """Check that acknowledged records are at their acknowledged offsets.

    A record acknowledged at acks=1 may be lost when its era ends, unless the high watermark passed it before that.
    """
    places = {found.value: found.offset for found in content}
    durable_end: dict[int, int] = {-1: -1}
    for _, _, fact in acked:
        if fact.durable and fact.era >= 0:
            durable_end[fact.era] = max(fact.offset, durable_end.get(fact.era, -1))
    for value, _, fact in acked:
        at = places.get(value)
        binding = fact.durable or fact.offset < durable_end.get(fact.era, -1)
        if at is None and binding:
            yield Problem("lost-write", f"{partition} lacks {value!r:.60}, acknowledged at {fact.offset}")
        elif at is not None and fact.offset not in (-1, at):
            yield Problem(
                "inconsistent-offsets", f"{partition} has {value!r:.60} at {at}, acknowledged at {fact.offset}"
            )


def _check_seen(history: History, partition: PartitionKey, content: list[Found]) -> Iterator[Problem]:
    """Check that every record that a consumer saw is still there: nothing at or above the high watermark was ever
    shown."""
    values = {found.offset: found.value for found in content}
    for offset, value in history.seen.get(partition, {}).items():
        now = values.get(offset)
        if now != value:
            yield Problem("gone", f"{partition} offset {offset} was seen as {value!r:.60} and is {now!r:.60}")
