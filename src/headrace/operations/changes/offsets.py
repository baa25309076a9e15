"""Plans of new offsets for a group."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from headrace.base.errors import HeadraceError, UsageError
from headrace.base.reading import LONG_MAX, natural, whole
from headrace.net.client.cluster import Cluster
from headrace.net.client.groups import Groups, TopicPartition
from headrace.operations.changes.plan import Plan
from headrace.operations.groups import check_inactive, chosen
from headrace.operations.resetting import Target, parse_datetime, parse_duration, parse_topics, plan

OPTIONS: Final[Mapping[str, str]] = {
    "earliest": "--to-earliest",
    "latest": "--to-latest",
    "offset": "--to-offset",
    "shift": "--shift-by",
    "datetime": "--to-datetime",
    "duration": "--by-duration",
}
"""Kinds of targets, and the command's option for each."""
WITHOUT_VALUE: Final = ("earliest", "latest")
OF_THE_LOG: Final = (*WITHOUT_VALUE, "duration")
"""Kinds of targets whose offsets change while records come and go."""


class Aim(NamedTuple):
    """Where a group is to read on."""

    to: str
    """A kind of OPTIONS."""
    value: str = ""

    @property
    def target(self) -> Target:
        """Raises UsageError."""
        try:
            match self.to:
                case "earliest":
                    return Target(earliest=True)
                case "latest":
                    return Target(latest=True)
                case "offset":
                    return Target(offset=natural(self.value, LONG_MAX))
                case "shift":
                    return Target(shift=whole(self.value))
                case "datetime":
                    return Target(timestamp_ms=parse_datetime(self.value))
                case "duration":
                    return Target(timestamp_ms=parse_duration(self.value, time.time_ns() // 1_000_000))
        except ValueError:
            raise UsageError(f"'{self.value}' is no {self.to}: write a whole number.") from None
        raise UsageError(f"Say where the group is to read on: {', '.join(OPTIONS)}.")


async def reset(cluster: Cluster, group: str, topics: Sequence[str], aim: Aim) -> Plan:
    """`topics`: TOPIC or TOPIC:0,1; none: all that the group has committed. A plan of OF_THE_LOG is the same one while
    the group stands where it stood. Raises UsageError, ClientError.
    """
    groups = Groups(cluster)
    target, named = aim.target, parse_topics(topics)
    view = await groups.describe(group)
    committed = await groups.committed(group)
    resets = await plan(cluster, target, await chosen(cluster, named, committed, target), committed)
    obstacle = ""
    try:
        check_inactive(view)
    except HeadraceError as error:
        obstacle = str(error)
    offsets = {TopicPartition(one.topic, one.partition): one.new for one in resets}
    stood = [(one.topic, one.partition, one.current) for one in resets] if aim.to in OF_THE_LOG else None
    return Plan(words(group, topics, aim), resets, lambda: groups.commit(group, offsets), obstacle, ground=stood)


def words(group: str, topics: Sequence[str], aim: Aim) -> list[str]:
    named = [word for topic in topics for word in ("--topic", topic)] or ["--all-topics"]
    value = [] if aim.to in WITHOUT_VALUE else [aim.value]
    return ["group", "reset-offsets", group, *named, OPTIONS.get(aim.to, ""), *value, "--execute"]
