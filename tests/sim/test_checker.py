"""The checker: each kind of broken promise is seen in the smallest history that breaks it, and in no sound one."""

from __future__ import annotations

import random
import uuid

import pytest

from headrace.sim.checker import check
from headrace.sim.history import FinalState, Found, History, PartitionKey, Sent, TopicStory

TOPIC = uuid.UUID(int=1)
PARTITION = PartitionKey(TOPIC, 0)


class Story:
    """A sound run of one partition, to be spoilt."""

    def __init__(self, records: int = 5) -> None:
        self.history = History()
        self.history.topics[TOPIC] = TopicStory("orders", 1, 1)
        self.final = FinalState(topics={TOPIC: ("orders", 1)}, contents={PARTITION: []})
        self.values = [f"lane/{number}/".encode() for number in range(records)]
        for number, value in enumerate(self.values):
            self.history.sent[value] = Sent(PARTITION, "lane", number, b"lane", 1000 + number, idempotent=True)
            self.history.acknowledge([value], number, durable=True, sent_in_era=0)
            record = Found(number, b"lane", value, 1000 + number)
            self.history.see("reader", PARTITION, record)
            self.content.append(record)
        self.history.high_watermarks[PARTITION] = self.final.high_watermarks[PARTITION] = records

    @property
    def content(self) -> list[Found]:
        return self.final.contents[PARTITION]

    def forget_sight(self) -> None:
        self.history.seen.clear()

    def kinds(self) -> set[str]:
        return {problem.kind for problem in check(self.history, self.final)}


def test_a_sound_run_has_no_problem() -> None:
    assert Story().kinds() == set()


def test_a_record_in_doubt_may_be_there_or_not() -> None:
    story = Story()
    del story.history.acked[story.values[4]]
    assert story.kinds() == set()
    story.forget_sight()
    story.content.pop()
    assert story.kinds() == set()


def test_an_acknowledged_record_is_missing() -> None:
    story = Story()
    story.forget_sight()
    story.content.pop()
    assert story.kinds() == {"lost-write"}


def test_a_record_that_was_seen_is_gone() -> None:
    story = Story()
    story.history.acked.clear()
    story.content.pop()
    assert story.kinds() == {"gone"}


def test_a_record_is_there_twice() -> None:
    story = Story()
    story.content.append(story.content[2]._replace(offset=5))
    assert "duplicate" in story.kinds()


def test_a_record_stands_elsewhere_than_acknowledged() -> None:
    story = Story()
    story.forget_sight()
    first, second = story.content[3], story.content[4]
    story.content[3:] = [second._replace(offset=3), first._replace(offset=4)]
    assert story.kinds() == {"inconsistent-offsets", "misordered"}


def test_two_readers_saw_different_records_at_one_offset() -> None:
    story = Story()
    story.history.see("another", PARTITION, story.content[1]._replace(offset=0))
    assert "inconsistent-offsets" in story.kinds()


def test_an_offset_is_missing() -> None:
    story = Story()
    del story.content[2]
    assert "gap" in story.kinds()


@pytest.mark.parametrize("change", [{"value": b"of nobody"}, {"timestamp": 5}, {"key": None}])
def test_a_record_is_not_as_it_was_sent(change: dict[str, bytes | int | None]) -> None:
    story = Story()
    story.forget_sight()
    story.content[2] = story.content[2]._replace(**change)  # type: ignore[arg-type]  # one field, of its type
    assert "phantom" in story.kinds()


def test_the_high_watermark_fell() -> None:
    story = Story()
    story.final.high_watermarks[PARTITION] = 4
    assert story.kinds() == {"high-watermark-fell"}


def test_topics_that_should_be_there_and_should_not() -> None:
    story = Story()
    story.final.topics.clear()
    story.final.contents.clear()
    assert story.kinds() == {"topic-lost"}
    story.history.topics[TOPIC].delete_asked = story.history.topics[TOPIC].deleted = True
    assert story.kinds() == set()
    story.final.topics[TOPIC] = ("orders", 1)
    assert story.kinds() == {"topic-undead"}
    story.final.topics[uuid.UUID(int=9)] = ("stranger", 1)
    assert story.kinds() == {"topic-undead", "phantom"}


def test_a_partition_that_was_acknowledged_is_missing() -> None:
    story = Story()
    story.history.topics[TOPIC].partitions = story.history.topics[TOPIC].partitions_asked = 2
    assert story.kinds() == {"topic-lost"}


def test_acks_1_may_be_lost_with_the_power_but_not_below_the_high_watermark() -> None:
    story = Story()
    story.forget_sight()
    story.history.acknowledge([story.values[4]], 4, durable=False, sent_in_era=0)
    story.content.pop()
    story.history.high_watermarks[PARTITION] = story.final.high_watermarks[PARTITION] = 4
    assert story.kinds() == set()
    story.history.acknowledge([story.values[3]], 3, durable=False, sent_in_era=0)
    story.history.acknowledge([story.values[4]], 4, durable=True, sent_in_era=0)
    story.content.pop()
    assert story.kinds() == {"lost-write"}
    story.history.era = 1
    story.history.acknowledge([story.values[4]], -1, durable=True, sent_in_era=0)
    assert [problem.what for problem in check(story.history, story.final) if "lane/3" in problem.what] == []


def test_any_single_change_of_what_is_there_is_noticed() -> None:
    for seed in range(300):
        chance, story = random.Random(seed), Story(8)
        content, at = story.content, chance.randrange(8)
        match chance.randrange(4):
            case 0:
                del content[at:]
            case 1:
                content.insert(at, content[at])
            case 2:
                content[at] = content[at]._replace(offset=content[at].offset + 1)
            case 3:
                other = (at + 1 + chance.randrange(7)) % 8
                content[at] = content[at]._replace(value=content[other].value)
        assert story.kinds() != set(), seed
