"""New offsets for a group."""

from __future__ import annotations

import time
from typing import Final, NamedTuple
from urllib.parse import quote

from headrace.base.errors import HeadraceError, UsageError
from headrace.base.reading import LONG_MAX, natural, whole
from headrace.console.changes import Change, Plan
from headrace.console.state import Console
from headrace.net.client.groups import Groups, TopicPartition
from headrace.operations.groups import check_inactive, chosen
from headrace.operations.resetting import Target, parse_datetime, parse_duration, parse_topics, plan

TARGETS: Final = (
    ("earliest", "the first record that is there"),
    ("latest", "the end"),
    ("offset", "an offset"),
    ("shift", "so many records on (back: a minus)"),
    ("datetime", "a time (UTC)"),
    ("duration", "so long ago"),
)
"""Kinds of targets, in words."""
OPTIONS: Final = {
    "earliest": "--to-earliest",
    "latest": "--to-latest",
    "offset": "--to-offset",
    "shift": "--shift-by",
    "datetime": "--to-datetime",
    "duration": "--by-duration",
}


class Asked(NamedTuple):
    """A wish, as the form has it."""

    group: str
    topics: str
    """TOPIC or TOPIC:0,1, with blanks between several; empty: all that it has committed."""
    to: str
    value: str


def _target(asked: Asked) -> Target:
    """Raises UsageError."""
    value = asked.value
    try:
        match asked.to:
            case "earliest":
                return Target(earliest=True)
            case "latest":
                return Target(latest=True)
            case "offset":
                return Target(offset=natural(value, LONG_MAX))
            case "shift":
                return Target(shift=whole(value))
            case "datetime":
                return Target(timestamp_ms=parse_datetime(value))
            case "duration":
                return Target(timestamp_ms=parse_duration(value, time.time_ns() // 1_000_000))
    except ValueError:
        raise UsageError(f"'{value}' is no {asked.to}: write a whole number.") from None
    raise UsageError("Say where the group is to read on.")


def _words(asked: Asked) -> list[str]:
    topics = [word for topic in asked.topics.split() for word in ("--topic", topic)] or ["--all-topics"]
    value = [] if asked.to in ("earliest", "latest") else [asked.value]
    return ["group", "reset-offsets", asked.group, *topics, OPTIONS.get(asked.to, ""), *value, "--execute"]


async def _plan(console: Console, asked: Asked) -> Plan:
    groups = Groups(console.cluster)
    target, topics = _target(asked), parse_topics(asked.topics.split())
    view = await groups.describe(asked.group)
    committed = await groups.committed(asked.group)
    partitions = await chosen(console.cluster, topics, committed, target)
    resets = await plan(console.cluster, target, partitions, committed)
    obstacle = ""
    try:
        check_inactive(view)
    except HeadraceError as error:
        obstacle = str(error)
    offsets = {TopicPartition(one.topic, one.partition): one.new for one in resets}
    return Plan(resets, lambda: groups.commit(asked.group, offsets), obstacle)


CHANGE: Final = Change(
    path="/group-reset",
    template="reset.html",
    title=lambda asked: f"Reset {asked.group}",
    asked=Asked,
    is_asked=lambda asked: bool(asked.to),
    plan=_plan,
    words=_words,
    after=lambda asked: f"/groups/{quote(asked.group)}",
    more=lambda _: {"targets": TARGETS},
)
