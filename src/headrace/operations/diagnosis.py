"""The checks of `headrace doctor`, made from any broker's answers about brokers, quorum and partitions."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence, Set
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from headrace.base.errors import HeadraceError
from headrace.base.limits import (
    AILMENTS_TIMEOUT_MS,
    DOCTOR_ASK_MS_MAX,
    DOCTOR_MS_MAX,
    DOCTOR_TOPICS_PER_ASK_MAX,
    MOVE_WAIT_TOLD_MS,
)
from headrace.net.client.admin import Admin
from headrace.net.client.ailments import report_of
from headrace.net.client.cluster import Cluster
from headrace.net.client.durable import DurableLink
from headrace.net.client.errors import ClientError, RefusedError
from headrace.net.client.members import BrokerView, Members, QuorumView
from headrace.net.client.moves import under_way
from headrace.net.client.retry import Backoff
from headrace.net.client.view import PartitionView, TopicView
from headrace.operations.bearing import losses_borne
from headrace.operations.finding import BROKER_DOWN, MORE, OUT_OF_SYNC, START, TOO_FEW_FOR_ALL, VOTER_DOWN, Finding
from headrace.operations.levels import LEVEL_BEHIND, of_levels
from headrace.operations.opened import OPENED, opened
from headrace.operations.reaching import Reach, since
from headrace.operations.unended import UNENDED, unended
from headrace.wire.ailments import IN_REDIS, KINDS, Ailment, Report, State
from headrace.wire.errors import ErrorCode
from headrace.wire.moves import MoveView

T = TypeVar("T")
Ends: TypeAlias = Mapping[tuple[str, int], int]
"""The last durable offset of each partition that has history, by topic and index."""
OFFSETS_TOPIC = "__consumer_offsets"
PARTITIONS_NAMED_MAX = 20
"""Maximum partitions named per topic and kind of finding. The rest are counted."""


ORDER: Final = (
    "not allowed",
    "no quorum",
    "offline",
    *KINDS,
    "waits for history",
    "damaged",
    "not asked",
    "not told",
    "move held up",
    *UNENDED,
    TOO_FEW_FOR_ALL,
    VOTER_DOWN,
    "no loss borne",
    BROKER_DOWN,
    OUT_OF_SYNC,
    "few replicas",
    OPENED,
    LEVEL_BEHIND,
)
"""Order of findings, the worst first."""
RECOVERING: Final = "recover"
"""The phase of a move after its seal, when it can only go forward."""
PATIENCE: Final = Backoff(attempts_max=2)


async def findings(reach: Reach) -> list[Finding]:
    """All findings, the worst first, within DOCTOR_MS_MAX. Raises ClientError where no broker answers."""
    found: list[Finding] = []
    async with reach(
        backoff=PATIENCE, connect_timeout_ms=AILMENTS_TIMEOUT_MS, request_timeout_ms=DOCTOR_ASK_MS_MAX
    ) as cluster:
        try:
            async with asyncio.timeout(DOCTOR_MS_MAX / 1000):
                await _look(cluster, found)
        except TimeoutError as error:
            if not found:
                raise ClientError("No broker has told of the cluster in time; is one running, and reached?") from error
            found.append(_untold("all of it in time"))
    return sorted(found, key=_order)


def _order(finding: Finding) -> int:
    """Sort key of a finding. Brokers of a later version may report kinds that are unknown here."""
    return ORDER.index(finding.kind) if finding.kind in ORDER else len(KINDS)


async def _look(cluster: Cluster, found: list[Finding]) -> None:
    """Collect the findings. Without a quorum, brokers answer from their own knowledge: none of these requests waits for
    a quorum.
    """
    members, admin = Members(cluster), Admin(cluster)
    brokers = {broker.id: broker for broker in await members.brokers()}
    quorum, reports = await asyncio.gather(_allowed(members.quorum, "its condition"), _reports(cluster, brokers))
    if isinstance(quorum, Finding):  # brokers' reports need the same right, and so does what else is asked
        found.append(quorum)
        return
    answering = [broker for broker, report in reports.items() if report is not None]
    settings = await _allowed(partial(_settings, admin, answering[0]), "its configuration") if answering else None
    found += [*_of_reports(brokers, reports), *_of_quorum(quorum, brokers), *of_levels(reports.values())]
    found += await opened(admin, answering)
    view = await members.metadata()
    topics = view.topics
    parts = [part for topic in topics.values() for part in topic.partitions]
    found += _of_brokers(brokers, parts, decides=quorum is not None)
    ailing = [view for view in topics.values() if any(_ails(part) for part in view.partitions)]
    least = await _min_insync(admin, [view.name for view in ailing])
    durable = await _durable(cluster, {view.name for view in ailing if _are_gone(view, brokers)}, brokers)
    for topic in ailing:
        found += _of_topic(topic, least.get(topic.name, 1), brokers, durable)
    found += [_of_move(view) for view in await _answered(_moves(cluster)) or () if _is_held_up(view)]
    found += await _unended(cluster, is_well=not any(finding.is_wrong for finding in found))
    if settings is None or isinstance(settings, Finding):
        found.append(settings or _untold("its configuration"))
        return
    if any(finding.kind == IN_REDIS for finding in found):
        return  # a partition has one replica there, its leader
    live = sum(not broker.fenced for broker in brokers.values())
    for each in topics.values():
        factor = settings.offsets_factor if each.name == OFFSETS_TOPIC else settings.factor
        found += _of_factor(each, min(factor, live), live)


async def _answered(asking: Coroutine[Any, Any, T]) -> T | None:
    """The answer; None where it did not come in time."""
    try:
        async with asyncio.timeout(DOCTOR_ASK_MS_MAX / 1000):
            return await asking
    except (ClientError, TimeoutError):
        return None


async def _allowed(ask: Callable[[], Awaitable[T]], what: str) -> T | Finding | None:
    """The answer; None where it did not come in time. A finding where the user may not ask for `what`: a refusal is no
    silence, and says nothing about the cluster's health. `ask` is a function: a coroutine would be lost where this is
    cancelled before it begins."""
    try:
        async with asyncio.timeout(DOCTOR_ASK_MS_MAX / 1000):
            return await ask()
    except RefusedError as error:
        return _not_allowed(what) if error.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED else None
    except (ClientError, TimeoutError):
        return None


def _not_allowed(what: str) -> Finding:
    text = f"this user may not ask for {what}: it needs the rights Describe and DescribeConfigs on the cluster"
    give = "headrace acl allow --principal User:NAME --operation Describe --operation DescribeConfigs --cluster"
    return Finding("not allowed", "the cluster", text, f"an administrator gives them with '{give} --execute'")


async def _unended(cluster: Cluster, *, is_well: bool) -> list[Finding]:
    """Transactions that do not end. Where brokers do not tell of them, that is a finding only where all else `is_well`:
    what keeps them from it is told by then.
    """
    try:
        async with asyncio.timeout(DOCTOR_ASK_MS_MAX / 1000):
            return await unended(cluster)
    except (HeadraceError, TimeoutError):
        return [_untold("which transactions do not end")] if is_well else []


async def _reports(cluster: Cluster, brokers: Mapping[int, BrokerView]) -> dict[int, Report | None]:
    """Reports of all live brokers, requested at once; None for a broker that did not answer."""
    live = [broker for broker in brokers.values() if not broker.fenced]
    answered = await asyncio.gather(*(report_of(broker.address, cluster.security) for broker in live))
    return {broker.id: report for broker, report in zip(live, answered, strict=True)}


def _of_reports(brokers: Mapping[int, BrokerView], reports: Mapping[int, Report | None]) -> Iterator[Finding]:
    """Findings of the brokers' reports. The controller knows the states of a broker that does not answer here, and its
    clock.
    """
    heard: dict[int, Sequence[State]] = {}
    for report in reports.values():
        heard |= {} if report is None else report.heard
    for broker, answered in reports.items():
        states = [] if answered is None else [*answered.states]
        states += [state for state in heard.get(broker, ()) if answered is None or state.kind == "clock"]
        yield from (
            Finding(state.kind, f"broker {broker}", state.text, state.todo, is_wrong=state.kind != IN_REDIS)
            for state in states
        )
        if answered is None:
            yield _of_silence(brokers[broker])
        else:
            yield from (_of_damage(broker, each) for each in answered.damaged[:PARTITIONS_NAMED_MAX])


async def _min_insync(admin: Admin, topics: Sequence[str]) -> dict[str, int]:
    """The config by topic, as far as a broker answers. Many topics are asked for at once, since all may be ailing."""
    found: dict[str, int] = {}
    for first in range(0, len(topics), DOCTOR_TOPICS_PER_ASK_MAX):
        some = topics[first : first + DOCTOR_TOPICS_PER_ASK_MAX]
        answered = await _answered(admin.one_config_of_topics(some, "min.insync.replicas"))
        found |= {topic: int(value) for topic, value in (answered or {}).items()}
    return found


class _Settings(NamedTuple):
    """Settings of the cluster, as one broker has them."""

    factor: int
    """Default number of replicas of topics."""
    offsets_factor: int
    """Default number of replicas of the topic of committed offsets."""


async def _settings(admin: Admin, broker: int) -> _Settings:
    values = {config.name: config.value for config in await admin.broker_configs(broker)}
    keys = ("default.replication.factor", "offsets.topic.replication.factor")
    return _Settings(*(int(values[key] or 1) for key in keys))


def _untold(what: str) -> Finding:
    text = f"nobody tells {what}: more may be wrong than is said here"
    return Finding("not told", "the cluster", text, "see to what else is said, then ask again")


async def _durable(cluster: Cluster, topics: Set[str], brokers: Mapping[int, BrokerView]) -> Ends:
    """Durable ends of these topics. Empty where the broker does not answer about durable history."""
    found: dict[tuple[str, int], int] = {}
    asked = next((broker for broker in brokers.values() if not broker.fenced), None)
    if not topics or asked is None:
        return found
    try:
        async with DurableLink(asked.address, cluster.security) as link:
            async for topic in link.topics():
                if topic["topic"] in topics:
                    found |= {(topic["topic"], part["partition"]): part["end_offset"] for part in topic["partitions"]}
    except ClientError:
        return {}
    return found


def _are_gone(view: TopicView, brokers: Mapping[int, BrokerView]) -> bool:
    """Whether a partition without a leader has no replica on a live broker."""
    return any(part.leader < 0 and not _lives(part, brokers) for part in view.partitions)


def _lives(part: PartitionView, brokers: Mapping[int, BrokerView]) -> bool:
    """Whether a broker with a replica of the partition lives."""
    return any((known := brokers.get(replica)) is not None and not known.fenced for replica in part.replicas)


def _ails(part: PartitionView) -> bool:
    return part.leader < 0 or len(part.isr) < len(part.replicas)


def _of_topic(view: TopicView, least: int, brokers: Mapping[int, BrokerView], durable: Ends) -> Iterator[Finding]:
    shown: dict[str, int] = {}
    for part in view.partitions:
        finding = _of_partition(view.name, part, least, brokers, durable.get((view.name, part.index), -1))
        if finding is None:
            continue
        shown[finding.kind] = shown.get(finding.kind, 0) + 1
        if shown[finding.kind] <= PARTITIONS_NAMED_MAX:
            yield finding
    for kind, count in shown.items():
        if count > PARTITIONS_NAMED_MAX:
            more = count - PARTITIONS_NAMED_MAX
            todo = f"see 'headrace topic describe {view.name}'"
            yield Finding(kind, view.name, f"{MORE}{more} more of its partitions", todo)


def _of_partition(
    topic: str, part: PartitionView, least: int, brokers: Mapping[int, BrokerView], durable_end: int = -1
) -> Finding | None:
    """The finding of one partition, if any. `durable_end`: its last durable offset; -1: none, or it is unknown."""
    subject = f"{topic}-{part.index}"
    if part.leader < 0:
        text = f"it has no leader: of those that have all that was acknowledged ({_listed(part.isr)}) none can lead"
        return Finding("offline", subject, text, _brought_back(topic, part, brokers, durable_end))
    missing = [replica for replica in part.replicas if replica not in part.isr]
    down = [replica for replica in missing if (known := brokers.get(replica)) is None or known.fenced]
    todo = f"{START}{_listed(down)}" if down else f"wait until broker {_listed(missing)} has caught up"
    if len(part.isr) < least:
        text = f"{len(part.isr)} of its replicas are in sync, acks=all needs {least} (min.insync.replicas)"
        return Finding(TOO_FEW_FOR_ALL, subject, text, todo)
    return Finding(OUT_OF_SYNC, subject, f"broker {_listed(missing)} is not in sync", todo) if missing else None


def _brought_back(topic: str, part: PartitionView, brokers: Mapping[int, BrokerView], durable_end: int) -> str:
    """Advice for a partition without a leader."""
    start = f"start broker {_either(part.isr)} with its disk; where that is lost for good,"
    if durable_end >= 0 and not _lives(part, brokers):
        recover = f"headrace durable recover {topic} --partition {part.index}"
        return f"{start} '{recover}' says how another broker goes on behind offset {durable_end}, the last durable one"
    if not _lives(part, brokers):
        return f"{start} its records are gone: nobody else has a copy"
    return f"{start} 'headrace topic elect {topic} --partition {part.index} --unclean' goes on without"


def _of_damage(broker: int, ailment: Ailment) -> Finding:
    name = f"{ailment.topic}-{ailment.partition} on broker {broker}"
    if ailment.leads and ailment.start == ailment.end:
        text = f"it is not led before its durable history is read, behind which (offset {ailment.end}) its log begins"
        return Finding("waits for history", name, text, ailment.obstacle)
    todo = ailment.obstacle or "wait until the broker has taken a sound copy from the leader"
    if ailment.start == ailment.end:
        text = f"its new copy cannot go on at offset {ailment.start}"
    elif ailment.end < 0:
        text = "what was flushed last is gone from its log"
    else:
        text = f"its log is damaged between offsets {ailment.start} and {ailment.end - 1}"
    return Finding("damaged", name, text, todo)


async def _moves(cluster: Cluster) -> list[MoveView]:
    return (await under_way(cluster))[0]


def _is_held_up(view: MoveView) -> bool:
    """Whether a move has waited for one thing for long."""
    return bool(view.obstacle) and view.since_ms > 0 and time.time() * 1000 - view.since_ms >= MOVE_WAIT_TOLD_MS


def _of_move(view: MoveView) -> Finding:
    waits = f"{view.obstacle.rstrip('.')}{since(view.since_ms)}"
    text = f"its move from broker {view.source} to broker {view.target} is held up: {waits}"
    todo = "mend that: it goes on by itself"
    if view.phase != RECOVERING:
        stay = f"headrace topic reassign {view.topic} --partition {view.partition} --replicas {view.source}"
        todo += f"; '{stay}' leaves it where it is"
    return Finding("move held up", f"{view.topic}-{view.partition}", text, todo)


def _of_silence(broker: BrokerView) -> Finding:
    text = f"it does not tell whether its logs are damaged, though the others hear it ({broker.address})"
    todo = "ask again from where that address is reached, or look at its log"
    return Finding("not asked", f"broker {broker.id}", text, todo)


def _of_factor(view: TopicView, factor: int, live: int) -> Iterator[Finding]:
    """Findings of topics with too few replicas. They were made with fewer, or by a version that did not add any. Other
    topics get more replicas one after the other.
    """
    few = [part for part in view.partitions if len(part.replicas) < factor]
    if few:
        least = min(len(part.replicas) for part in few)
        text = f"{len(few)} of its partitions have fewer replicas ({least}) than the {factor} that {live} brokers allow"
        command = f"headrace topic reassign {view.name} --replication-factor {factor}"
        todo = f"where none are being added by now, '{command}' adds them, unless that is meant so"
        yield Finding("few replicas", view.name, text, todo, is_wrong=False)


def _of_quorum(quorum: QuorumView | None, brokers: Mapping[int, BrokerView]) -> Iterator[Finding]:
    """Findings of the quorum. `quorum` None: no controller answers about it."""
    if quorum is None:
        text = "no controller answers: nothing is decided, so that no topic is made and nobody else comes to lead"
        todo = (
            "start the brokers that are down until most of its voters run; where the disks of most are lost for good, "
            "stop those that are left: 'headrace quorum recover --data DIR --accept-loss' goes on with one of them; "
            "without --accept-loss it says what that costs"
        )
        yield Finding("no quorum", "the quorum", text, todo)
        return
    voters = [member.id for member in quorum.members if member.voter]
    down = [voter for voter in voters if (known := brokers.get(voter)) is None or known.fenced]
    if down:
        left = len(voters) - len(down) - len(voters) // 2 - 1
        bears = "none more may go" if left <= 0 else f"{left} more may go"
        text = f"of the {len(voters)} voters of the quorum {_listed(down)} is down: {bears}"
        yield Finding(VOTER_DOWN, "the quorum", text, f"{START}{_listed(down)}")
    elif len(quorum.members) > 1 and losses_borne(len(voters), 0) <= 0:
        yield _of_no_loss(quorum, voters)


def _of_no_loss(quorum: QuorumView, voters: Sequence[int]) -> Finding:
    """The finding that all voters live, and the loss of one more stops the cluster. With two brokers that is
    unavoidable.
    """
    count = f"{len(voters)} voter{'s' if len(voters) != 1 else ''}"
    text = f"it has {count} ({_listed(voters)}), and with the loss of one nothing can be decided any more"
    todo = quorum.outlook or "start a third broker: it is promoted once it has caught up"
    return Finding("no loss borne", "the quorum", text, todo, is_wrong=len(quorum.members) > 2)


def _of_brokers(
    brokers: Mapping[int, BrokerView], parts: Sequence[PartitionView], *, decides: bool
) -> Iterator[Finding]:
    """Findings of brokers that are down. The removal of one is advised only where it would not be refused: where a
    controller `decides`, and others have its copies.
    """
    for broker in brokers.values():
        if not broker.fenced:
            continue
        held = [part for part in parts if broker.id in part.replicas]
        lacking = [part for part in held if broker.id not in part.isr]
        alone = sum(set(part.isr) <= {broker.id} for part in held)
        text = f"it is down, or not ready (it is reached at {broker.address})"
        if lacking:
            text += f": {len(lacking)} partitions have {_in_sync(lacking)} replicas in sync"
        if alone:
            todo = f"start it with its disk: it has the only in-sync copy of {alone} partitions"
        elif not decides:
            todo = "start it"
        else:
            todo = f"start it, or 'headrace broker remove {broker.id}' where it shall not come back"
        yield Finding(BROKER_DOWN, f"broker {broker.id}", text, todo)


def _in_sync(parts: Sequence[PartitionView]) -> str:
    """How many of their replicas are in sync, where it is the same for most: "2 of 3"."""
    (in_sync, of), _ = Counter((len(part.isr), len(part.replicas)) for part in parts).most_common(1)[0]
    return f"{in_sync} of {of}"


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def _either(numbers: Sequence[int]) -> str:
    return " or ".join(map(str, numbers))
