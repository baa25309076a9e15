"""`headrace top`: what two looks at a cluster tell, and the command against a real broker."""

from __future__ import annotations

import io
import json
import uuid
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from headrace.base.ids import NO_LEADER, BrokerId, LeaderEpoch, PartitionIndex, TopicId
from headrace.cli.main import main
from headrace.cli.top import _screen, sample
from headrace.net.client.looks import GroupLook, Look, Pauses, Place, Progress, traffic
from headrace.net.client.members import BrokerView
from headrace.net.client.view import ClusterView, PartitionView, TopicView
from headrace.testing import RunningBroker

LEADERS = {("a", 0): 1, ("a", 1): 2, ("b", 0): 1}


def look(
    at: float, ends: dict[Place, int], leaders: dict[Place, int] = LEADERS, isr: dict[Place, set[int]] | None = None
) -> Look:
    """Two topics on two brokers, each of which holds all."""
    topics = {}
    for name in sorted({topic for topic, _ in leaders}):
        parts = tuple(
            PartitionView(
                index=PartitionIndex(index),
                leader=BrokerId(leader),
                leader_epoch=LeaderEpoch(0),
                replicas=(BrokerId(1), BrokerId(2)),
                isr=tuple(map(BrokerId, sorted((isr or {}).get((topic, index), {1, 2})))),
                offline=(),
                error_code=0,
            )
            for (topic, index), leader in leaders.items()
            if topic == name
        )
        topics[name] = TopicView(
            name=name, id=TopicId(uuid.UUID(int=1)), internal=False, partitions=parts, error_code=0
        )
    brokers = tuple(
        BrokerView(id=node, host="h", port=1, rack=None, fenced=False, controller=node == 1) for node in (1, 2)
    )
    view = ClusterView(cluster_id="c", controller=BrokerId(1), brokers={}, topics=topics)
    return Look(at=at, view=view, brokers=brokers, ends=ends)


def test_rates_are_of_the_time_between_and_by_topic_and_leader() -> None:
    found = traffic(look(10, {("a", 0): 5, ("a", 1): 0}), look(12, {("a", 0): 105, ("a", 1): 40, ("b", 0): 999}))
    assert found.topics == {"a": 70, "b": 0}, "what is first seen now has no rate yet"
    assert found.brokers == {1: 50, 2: 20}
    assert (found.behind, found.offline, found.silent) == ({}, (), ())


def test_a_log_that_begins_anew_has_no_negative_rate() -> None:
    assert traffic(look(1, {("a", 0): 500}), look(2, {("a", 0): 3})).topics["a"] == 0


def test_what_is_behind_offline_or_silent_is_told_apart() -> None:
    leaders = LEADERS | {("b", 0): int(NO_LEADER)}
    now = look(2, {("a", 0): 7}, leaders, {("a", 0): {1}})
    found = traffic(look(1, {}), now)
    assert found.behind == {("a", 0): (2,)}
    assert found.offline == (("b", 0),)
    assert found.silent == (("a", 1),)
    told = sample(now, found, {("b", 0): 1.5})
    assert told["under_replicated"] == [{"topic": "a", "partition": 0, "out_of_sync": [2]}]
    assert told["offline"] == [{"topic": "b", "partition": 0}]
    assert told["paused"] == [{"topic": "b", "partition": 0, "seconds": 1.5}]
    assert [broker["leads"] for broker in told["brokers"]] == [1, 1]


def groups(**committed: dict[Place, int]) -> dict[str, GroupLook]:
    return {name: GroupLook(state="Stable", kind="consumer", committed=each) for name, each in committed.items()}


def test_lag_is_of_what_a_group_has_committed_and_its_rate_of_its_commits() -> None:
    ends = {("a", 0): 100, ("a", 1): 50}
    before = replace(look(1, ends), groups=groups(g={("a", 0): 40}))
    now = replace(look(3, ends), groups=groups(g={("a", 0): 60, ("a", 1): 45, ("b", 0): 7}, h={("a", 1): 70}))
    assert traffic(before, now).groups == {"g": Progress(40 + 5, 10.0), "h": Progress(0, 0.0)}
    back = replace(look(5, ends), groups=groups(g={("a", 0): 10}))
    assert traffic(now, back).groups == {"g": Progress(90, 0.0)}, "it was set back"


def test_the_screen_shows_it() -> None:
    now = replace(look(2, {("a", 0): 2507}, LEADERS, {("a", 0): {1}}), groups=groups(g={("a", 0): 507}))
    console = Console(width=120, file=io.StringIO(), color_system=None)
    with console.capture() as captured:
        console.print(_screen(now, traffic(look(1, {("a", 0): 7}), now), {("a", 1): 1.5}, 12.25))
    lines = [" ".join(line.split()) for line in captured.get().splitlines()]
    assert lines[:2] == [
        "cluster c controller 1 2,500 records/s longest pause 12.2 s",
        "1 under-replicated 0 offline 1 paused",
    ]
    assert "a 2 2,500.0" in lines
    assert "1 live 2 2,500.0" in lines
    assert "a 0 2" in lines, "a-0 lacks broker 2"
    assert "a 1 1.5" in lines
    assert "g consumer Stable 2,000 0.0" in lines


def test_a_pause_lasts_from_the_last_answer_to_the_next() -> None:
    pauses = Pauses()
    every = dict.fromkeys(LEADERS, 0)
    without = {place: end for place, end in every.items() if place != ("a", 1)}
    looks = [look(1, every), look(2, without), look(3.5, without), look(4, every)]
    assert pauses.note(None, looks[0]) == {}
    assert pauses.note(looks[0], looks[1]) == {("a", 1): 1}
    assert pauses.note(looks[1], looks[2]) == {("a", 1): 2.5}
    assert pauses.note(looks[2], looks[3]) == {}
    assert pauses.longest == 3
    assert pauses.note(looks[3], look(5, without)) == {("a", 1): 1}, "the next one begins anew"
    assert pauses.longest == 3


def test_one_sample_of_a_real_broker(
    headrace_broker: RunningBroker, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    address = headrace_broker.bootstrap
    assert main(["topic", "create", "t", "--partitions", "2", "--bootstrap", address]) == 0
    capsys.readouterr()
    assert main(["top", "--json", "--interval", "0.1", "--bootstrap", address]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    told = json.loads(line)
    assert told["topics"] == [{"topic": "t", "partitions": 2, "records_per_second": 0.0}]
    assert [(broker["broker"], broker["state"], broker["leads"]) for broker in told["brokers"]] == [(1, "live", 2)]
    assert told["under_replicated"] == told["offline"] == told["paused"] == []


def test_an_interval_that_cannot_be_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--interval", "0"]) == 2
    assert "--interval 0.0" in capsys.readouterr().err
