"""Brokers of an earlier release read what is decided while they are in the cluster.

`releases/0.1.0.zip` has the code of that release that reads and replays metadata events, as it was.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.ids import BrokerEpoch, BrokerId, DirectoryId
from headrace.metadata import events as ev
from headrace.metadata.codec import EVENT_TYPES, decode_event, encode_event, image_as_json
from headrace.metadata.events import MetadataEvent
from headrace.metadata.image import EMPTY_IMAGE, registration_of
from headrace.metadata.levels import METADATA_LEVEL, needed_by, needed_by_image
from tests.interop.support.asking import asked
from tests.metadata.histories import Entry, histories, wild_events

RELEASED: Final = Path(__file__).parent / "releases/0.1.0.zip"
PROGRAM: Final = """
import json, sys
import headrace.metadata.codec as codec
from headrace.metadata.image import EMPTY_IMAGE
assert "0.1.0.zip" in codec.__file__, codec.__file__
for line in sys.stdin:
    try:
        events = [codec.decode_event(event) for event in json.loads(line)]
    except codec.CorruptData as error:
        answer = str(error)
    else:
        image = EMPTY_IMAGE.replay(events)
        answer = [[codec.encode_event(event) for event in events], codec.image_as_json(image)]
    print(json.dumps(answer), flush=True)
"""
Released = Callable[[list[dict[str, Any]]], Any]


@pytest.fixture(scope="module")
def released() -> Iterator[Released]:
    """A function that has 0.1.0 read events, as JSON, and replay them. It returns what it read, and the image, as JSON;
    else the error."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(RELEASED)},
    )
    with asked(process) as put:
        yield lambda events: json.loads(put(json.dumps(events)))


def is_of_shared_logs(event: MetadataEvent) -> bool:
    """Whether it is of a cluster on Redis, which no broker of 0.1.0 joins."""
    return isinstance(event, ev.ChangesDoubted) or (isinstance(event, ev.TopicCreated) and event.created_index > 0)


@given(wild_events.filter(lambda event: not is_of_shared_logs(event)))
def test_a_released_broker_reads_what_its_level_knows_and_refuses_the_rest(
    released: Released, event: MetadataEvent
) -> None:
    answer = released([encode_event(event)])
    if needed_by([event])[0] > 0:
        assert "is unknown here" in answer
    else:
        (read,), _ = answer
        assert read.items() <= (encode_event(event) | {"version": read["version"]}).items()
        assert decode_event(read) == event or isinstance(event, ev.BrokerRegistered)


def test_every_event_that_the_release_does_not_know_tells_a_level(released: Released) -> None:
    bare = {cls: released([{"type": number, "version": 0}]) for number, cls in EVENT_TYPES.items()}
    unknown = {cls for cls, answer in bare.items() if "is unknown here" in answer} - {ev.ChangesDoubted}
    assert unknown == {cls for cls in EVENT_TYPES.values() if getattr(cls, "LEVEL", 0) > 0}
    assert all(cls.SUBJECT for cls in unknown)
    assert max(cls.LEVEL for cls in unknown) == METADATA_LEVEL


@given(histories())
def test_a_released_broker_replays_histories_below_its_level_to_the_same_brokers(
    released: Released, entries: list[Entry]
) -> None:
    """Among them are registrations that raise a level alone. The cluster stays at the level of 0.1.0."""
    told = [event for event in chain.from_iterable(entries) if not isinstance(event, ev.LevelFinalized)]
    image = EMPTY_IMAGE.replay(told)
    raised = [replace(registration_of(broker), level=METADATA_LEVEL + 1) for broker in image.brokers.values()]
    events = [*told, *raised]
    if needed_by(events)[0] == 0 and not any(map(is_of_shared_logs, events)):
        _, theirs = released(list(map(encode_event, events)))
        ours = image_as_json(image)["brokers"]
        assert [broker | {"level": METADATA_LEVEL, "level_min": 0} for broker in theirs["brokers"]] == ours


def test_a_released_broker_s_registration_has_the_lowest_level(released: Released) -> None:
    event = ev.BrokerRegistered(
        broker_id=BrokerId(1),
        broker_epoch=BrokerEpoch(1),
        directory_id=DirectoryId(UUID(int=1)),
        endpoints=(),
        level=METADATA_LEVEL,
    )
    (read,), _ = released([encode_event(event)])
    assert decode_event(read) == replace(event, level=0)


@given(st.lists(wild_events))
def test_an_image_needs_the_level_that_its_snapshot_needs(events: list[MetadataEvent]) -> None:
    image = EMPTY_IMAGE.replay(events)
    assert needed_by_image(image)[0] == needed_by(image.snapshot())[0]
