"""The cluster: how it stands, what is wrong with it, its brokers, and its rates."""

from __future__ import annotations

import asyncio
from typing import Annotated, Final

from pydantic import Field

from headrace.base.errors import HeadraceError
from headrace.base.limits import DOCTOR_ASK_MS_MAX, MCP_FINDINGS_MAX, MCP_RATE_S_MAX
from headrace.mcp.answers import Answer, Part, bounded, call
from headrace.mcp.desk import Desk
from headrace.mcp.plain import plain
from headrace.net.client.looks import Traffic, look, traffic
from headrace.net.client.members import Members
from headrace.operations.bearing import bearing
from headrace.operations.diagnosis import findings
from headrace.operations.loads import listed
from headrace.operations.summary import summary

BUSIEST: Final = 20


class Status(Answer):
    """The cluster in a few lines."""

    cluster: str
    brokers: int
    live: int
    controller: int | None
    quorum: str | None = Field(description="The losses that the quorum bears; null: no controller answers.")
    topics: int
    partitions: int
    moves: int
    problems: list[str]
    command: str


class Found(Part):
    """One problem, or something that might be better."""

    kind: str
    subject: str
    text: str
    todo: str = Field(description="What to do about it.")
    is_wrong: bool = Field(description="False: it may be intended.")


class Diagnosis(Answer):
    """The findings, the worst first."""

    findings: list[Found]
    left_out: int
    command: str


class Broker(Part):
    """One registered broker."""

    id: int
    host: str
    port: int
    rack: str | None
    is_live: bool
    is_controller: bool
    role: str = Field(description="voter, learner, or empty: nobody tells.")
    leads: int = Field(description="Partitions that it leads.")
    replicas: int
    disk_bytes: int | None
    disk_bytes_left: int | None


class Brokers(Answer):
    """All registered brokers."""

    brokers: list[Broker]
    quorum: str | None
    command: str


class Rate(Part):
    """Records a second."""

    name: str
    records_per_second: float


class GroupRate(Part):
    """A group's progress."""

    group: str
    state: str
    lag: int = Field(description="Records that it has still to read.")
    records_per_second: float = Field(description="Rate of its commits.")


class Top(Answer):
    """The activity of the cluster between two looks. Of topics and groups, the busiest and those that lag most."""

    seconds: float
    written_per_second: float
    topics: list[Rate]
    groups: list[GroupRate]
    under_replicated: int = Field(description="Partitions that lack replicas in sync.")
    offline: int = Field(description="Partitions without a leader.")
    silent: int = Field(description="Partitions whose leader did not answer.")
    named: list[str] = Field(description="Some of the partitions in trouble.")
    command: str


class ClusterTools:
    """Tools that look at the whole cluster."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def status(self) -> Status:
        """How the cluster stands: brokers, quorum, topics, moves under way, and its problems. Begin here."""
        found = await summary(self._desk.reach)
        fields = found.fields()
        problems = [plain(each, 500) for each in fields.pop("problems")]
        asks = [call("doctor")] if problems else [call("topic_list"), call("group_list"), call("top")]
        command = self._desk.command("status")
        return Status(**fields, problems=problems[:MCP_FINDINGS_MAX], command=command, next=asks)

    async def doctor(self) -> Diagnosis:
        """Find what is wrong with the cluster, or might be better, and what to do about each. The worst comes first."""
        found = await findings(self._desk.reach)
        shown = [
            Found(
                kind=each.kind,
                subject=plain(each.subject),
                text=plain(each.text, 500),
                todo=plain(each.todo, 500),
                is_wrong=each.is_wrong,
            )
            for each in found[:MCP_FINDINGS_MAX]
        ]
        asks = ["A person does what 'todo' says; then ask doctor() again."] if shown else [call("top")]
        left_out = len(found) - len(shown)
        return Diagnosis(findings=shown, left_out=left_out, command=self._desk.command("doctor"), next=asks)

    async def broker_list(self) -> Brokers:
        """The registered brokers: where each is, whether it lives, what it leads and holds, and its disk."""
        cluster = self._desk.cluster
        loads = await listed(cluster)
        roles: dict[int, str] = {}
        told: str | None = None
        try:
            async with asyncio.timeout(DOCTOR_ASK_MS_MAX / 1000):
                quorum = await Members(cluster).quorum()
            roles = {each.id: "voter" if each.voter else "learner" for each in quorum.members}
            told = bearing(quorum, [each.view for each in loads])
        except (HeadraceError, TimeoutError):
            told = None
        brokers = [
            Broker(
                id=each.view.id,
                host=plain(each.view.host),
                port=each.view.port,
                rack=None if each.view.rack is None else plain(each.view.rack),
                is_live=not each.view.fenced,
                is_controller=each.view.controller,
                role=roles.get(each.view.id, ""),
                leads=each.leads,
                replicas=each.replicas,
                disk_bytes=None if each.disk is None else each.disk.total,
                disk_bytes_left=None if each.disk is None else each.disk.usable,
            )
            for each in loads
        ]
        asks = [call("metrics", broker=brokers[0].id), call("topic_moves")] if brokers else [call("doctor")]
        return Brokers(brokers=brokers, quorum=told, command=self._desk.command("broker", "list"), next=asks)

    async def top(
        self,
        seconds: Annotated[int, Field(description="Time between the two looks, 1 to 10.", ge=1, le=MCP_RATE_S_MAX)] = 1,
    ) -> Top:
        """Rates now: records a second by topic, progress and lag of groups, and partitions in trouble."""
        loop = asyncio.get_running_loop()
        before = await look(self._desk.cluster, at=loop.time())
        await asyncio.sleep(bounded(seconds, MCP_RATE_S_MAX))
        now = await look(self._desk.cluster, at=loop.time())
        found = traffic(before, now)
        topics = sorted(found.topics.items(), key=lambda each: (-each[1], each[0]))[:BUSIEST]
        groups = sorted(found.groups.items(), key=lambda each: (-each[1].lag, each[0]))[:BUSIEST]
        asks = [call("group_describe", group=name) for name, each in groups[:1] if each.lag]
        asks += [call("topic_describe", topic=name) for name, _ in topics[:1]]
        return Top(
            seconds=round(found.seconds, 3),
            written_per_second=round(sum(found.topics.values()), 1),
            topics=[Rate(name=plain(name), records_per_second=round(rate, 1)) for name, rate in topics],
            groups=[
                GroupRate(
                    group=plain(name),
                    state=now.groups[name].state,
                    lag=each.lag,
                    records_per_second=round(each.rate, 1),
                )
                for name, each in groups
            ],
            under_replicated=len(found.behind),
            offline=len(found.offline),
            silent=len(found.silent),
            named=_named(found),
            command=self._desk.command("top", "--json"),
            next=[call("doctor"), *asks] if found.behind or found.offline or found.silent else asks,
        )


def _named(found: Traffic) -> list[str]:
    """Some partitions in trouble, those without a leader first."""
    places = dict.fromkeys([*found.offline, *found.silent, *sorted(found.behind)])
    return [f"{topic}-{index}" for topic, index in list(places)[:BUSIEST]]
