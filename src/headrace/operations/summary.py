"""The cluster in ten lines, for `headrace status`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from headrace.base.errors import HeadraceError
from headrace.base.limits import AILMENTS_TIMEOUT_MS, DOCTOR_ASK_MS_MAX
from headrace.net.client.disks import DiskView, disks
from headrace.net.client.members import BrokerView, Members
from headrace.net.client.moves import under_way
from headrace.net.client.view import ClusterView, PartitionView
from headrace.operations.bearing import bearing
from headrace.operations.diagnosis import findings
from headrace.operations.finding import Finding, told
from headrace.operations.levels import known_to_all, raising
from headrace.operations.reaching import Reach
from headrace.wire.ailments import Levels
from headrace.wire.moves import MoveView


class Summary(NamedTuple):
    """Everything that the lines are made of."""

    brokers: Sequence[BrokerView]
    quorum: str | None
    """None: no controller answers."""
    view: ClusterView
    room: Mapping[int, DiskView]
    moves: Sequence[MoveView]
    levels: Levels | None
    """None: no broker tells."""
    found: Sequence[Finding]

    def lines(self) -> list[str]:
        live = [broker.id for broker in self.brokers if not broker.fenced]
        down = [broker.id for broker in self.brokers if broker.fenced]
        parts = [part for topic in self.view.topics.values() for part in topic.partitions]
        lines = [
            f"cluster    {self.view.cluster_id}",
            f"brokers    {len(live)} of {len(self.brokers)} live" + (f"; down: {_listed(down)}" if down else ""),
            f"level      {self._level()}",
            f"controller {next((f'broker {each.id}' for each in self.brokers if each.controller), 'none is known')}",
            f"quorum     {self.quorum or 'no controller answers about it'}",
            f"topics     {self._topics()}",
            f"partitions {len(parts)}: {_count(parts)}",
            f"disks      {self._disks()}",
            f"moves      {len(self.moves)} under way, {sum(bool(each.obstacle) for each in self.moves)} held up",
        ]
        return [*lines, f"health     {self._health()}"]

    def _topics(self) -> str:
        internal = sum(topic.internal for topic in self.view.topics.values())
        return f"{len(self.view.topics)}" + (f", {internal} of them internal" if internal else "")

    def _level(self) -> str:
        if self.levels is None:
            return "no broker tells the feature level"
        command = raising(self.levels)
        more = "" if command is None else f"; all brokers know {known_to_all(self.levels)}: {command} raises it"
        return f"{self.levels.level}{more}"

    def _health(self) -> str:
        """As many problems and hints as `headrace doctor` has lines."""
        lines = told(self.found)
        wrong = [each for each in lines if each.is_wrong]
        hints = len(lines) - len(wrong)
        hinted = f"{hints} hint{'s' if hints > 1 else ''}"
        if not wrong:
            return "nothing is wrong" + (f"; 'headrace doctor' has {hinted}" if hints else "")
        count = f"{len(wrong)} problem{'s' if len(wrong) > 1 else ''}" + (f" and {hinted}" if hints else "")
        return f"{count}, the worst: {wrong[0].named}: {wrong[0].text}; 'headrace doctor' says what to do"

    def _disks(self) -> str:
        known = {broker: disk for broker, disk in self.room.items() if disk.total > 0}
        if not known:
            return "no broker tells of its disk"
        broker, disk = max(known.items(), key=lambda item: item[1].percent)
        return f"the fullest is that of broker {broker}, with {disk.percent} % used"

    def fields(self) -> dict[str, Any]:
        """As --json prints them."""
        return {
            "cluster": self.view.cluster_id,
            "brokers": len(self.brokers),
            "live": sum(not broker.fenced for broker in self.brokers),
            "controller": next((each.id for each in self.brokers if each.controller), None),
            "quorum": self.quorum,
            "topics": len(self.view.topics),
            "partitions": sum(len(topic.partitions) for topic in self.view.topics.values()),
            "moves": len(self.moves),
            "problems": [f"{each.named}: {each.text}" for each in told(self.found) if each.is_wrong],
        }


async def summary(reach: Reach) -> Summary:
    """Ask the cluster. Raises ClientError where no broker answers."""
    async with reach(connect_timeout_ms=AILMENTS_TIMEOUT_MS, request_timeout_ms=DOCTOR_ASK_MS_MAX) as cluster:
        members = Members(cluster)
        brokers = await members.brokers()
        view = await members.metadata()
        try:
            async with asyncio.timeout(DOCTOR_ASK_MS_MAX / 1000):
                quorum: str | None = bearing(await members.quorum(), brokers)
        except (HeadraceError, TimeoutError):
            quorum = None
        try:
            async with asyncio.timeout(DOCTOR_ASK_MS_MAX / 1000):
                levels: Levels | None = await members.levels()
        except (HeadraceError, TimeoutError):
            levels = None
        room = await disks(cluster, [broker.id for broker in brokers if not broker.fenced])
        moves, _ = await under_way(cluster)
    return Summary(brokers, quorum, view, room, moves, levels, await findings(reach))


def _count(parts: Sequence[PartitionView]) -> str:
    without = sum(part.leader < 0 for part in parts)
    behind = sum(len(part.isr) < len(part.replicas) for part in parts)
    if not without and not behind:
        return "each has a leader, and all of its replicas in sync"
    return f"{without} without a leader, {behind} lack replicas in sync"


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
