"""Invariants of groups at every moment: the owners of partitions, and the clients whose commits may count.

The judge sees requests of members and their answers; it never asks a coordinator's own state.

Classic groups:
- All members of one generation get one assignment, which has each partition once at most.
- A commit of an older generation is refused after a member got its assignment in a later one.

Consumer groups:
- No member is told to read a partition that another may still be reading.
- No commit is accepted for a partition that another member reads.

Both: an acknowledged commit is on the disks of a whole ISR. A coordinator that may know less than its successor does
not answer (decision 0028's lease).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from headrace.broker.groups.service import OFFSETS_TOPIC
from headrace.sim.cluster.records.judge import Glimpse, RecordsJudge
from headrace.sim.cluster.world import ClusterWorld
from headrace.sim.history import PartitionKey

RATE: Final = 0.95
"""Clocks are wrong by up to 3 %. So a session that a client measures may end that much earlier for its coordinator."""

Share = frozenset[tuple[UUID, int]]
"""Partitions, by topic id."""


class GroupsJudge(RecordsJudge):
    """The disks' part: acknowledged commits are on a whole ISR, as in `RecordsJudge`."""

    def on_recorded(self, seen: Glimpse, tag: bytes) -> None:
        """A commit was acknowledged. Check that its record, found by the unique `tag` in it, is durable on all of an
        ISR that its coordinator may have used."""
        key = seen.partition
        first = -1 if seen.shown is None else seen.shown.partition_epoch
        states = [state for epoch, state in self._states.get(key, {}).items() if epoch >= first]
        holders = {node for state in states for node in state.isr if self._is_recorded(node, key, tag)}
        if not any(holders.issuperset(state.isr) for state in states):
            isrs = " or ".join(str(state.isr) for state in states)
            text = f"{tag.decode()} is acknowledged by {seen.node}, durable on {sorted(holders)}"
            self._accuse("acknowledged-too-early", f"{text}, in sync are {isrs}")

    def deposed(self, node: int) -> set[PartitionKey]:
        """Partitions for which this broker may not answer a question that is sent now, because only the leader may. The
        newest image that any broker has shown has another leader, and an ISR without it."""
        states = {key: self.state(key) for key, topic in self._topics.items() if topic.name == OFFSETS_TOPIC}
        return {
            key
            for key, state in states.items()
            if state is not None and node in state.replicas and node not in (state.leader, *state.isr)
        }

    def on_told(self, deposed: set[PartitionKey], group: str, node: int, what: str) -> None:
        """The broker answered for a group. `deposed` is from the time when the question was sent. A partition that is
        no longer in it is excused. The question may have waited until the broker led again, as when a broker is joining
        its cluster."""
        count = sum(topic.name == OFFSETS_TOPIC for topic in self._topics.values())
        for key in deposed & self.deposed(node):
            if key.number != _partition_for(group, count):
                continue
            text = f"{node} tells {what} of {group}, when others lead partition {key.number} without it"
            self._accuse("deposed-coordinator", text)

    def _is_recorded(self, node: int, key: PartitionKey, tag: bytes) -> bool:
        return self._is_excused(node, self.newest) or any(tag in batch.data for batch in reversed(self.log(node, key)))


@dataclass(frozen=True, slots=True)
class Sharing:
    """The assignment of one leader, as its members see it."""

    number: int
    """Unique in a run."""
    shares: dict[str, Share]
    """By identity: the instance id of a static member, the member id of another."""


class ClassicJudge:
    """One classic group. `restarts`: it may be deleted or change its type, so that generations begin again."""

    def __init__(self, world: ClusterWorld, group: str, *, restarts: bool) -> None:
        self._world = world
        self._group = group
        self._restarts = restarts
        self._generations: dict[int, Sharing] = {}
        self._newest = 0
        """The newest generation in which a member got its assignment."""
        self.generations = 0

    def on_share(self, generation: int, identity: str, number: int, share: Share) -> None:
        """A member got its assignment."""
        known = self._generations.get(generation)
        if known is None or (self._restarts and known.number != number):
            known = self._generations[generation] = Sharing(number, {})
            self.generations += 1
        where = f"{self._group} in generation {generation}"
        if known.number != number:
            text = f"{where}: {identity} is told of sharing {number}, others of {known.number}"
            self._world.problem("generation-given-twice", text)
        for other, theirs in known.shares.items():
            if other != identity and (both := share & theirs):
                text = f"{where}: {identity} and {other} read {_named(both)}"
                self._world.problem("two-owners", text)
        if (before := known.shares.setdefault(identity, share)) != share:
            text = f"{where}: {identity} is told of {_named(share)}, and of {_named(before)} before"
            self._world.problem("generation-given-twice", text)
        self._newest = max(self._newest, generation)

    @property
    def newest(self) -> int:
        """The newest generation, for a commit that is about to be sent: an older one must not count. 0: any may."""
        return 0 if self._restarts else self._newest

    def on_committed(self, generation: int, newest: int, who: str) -> None:
        """The commit counts. `newest` is from the time when it was sent."""
        if 0 <= generation < newest:
            text = f"{self._group}: {who} commits in generation {generation}, after shares of {newest} were told"
            self._world.problem("zombie-commit", text)


@dataclass(slots=True)
class _Holding:
    """One partition as assigned to one member."""

    member: str
    until: float
    """Time from which the coordinator may consider the member gone, unless it hears from it."""


class ConsumerJudge:
    """One consumer group. A member owns its assigned partitions until it sends a request without them, since nobody can
    know earlier. Otherwise it owns them until its session may have ended, counted from its last answered request."""

    def __init__(self, world: ClusterWorld, group: str, *, lease_s: float) -> None:
        self._world = world
        self._group = group
        self._lease_s = lease_s * RATE
        self._holdings: dict[tuple[UUID, int], _Holding] = {}
        self._last: dict[tuple[UUID, int], str] = {}
        self.handed_over = 0

    def on_sent(self, member: str, owned: Share) -> None:
        """The member reports that it owns this and nothing else."""
        for partition, holding in list(self._holdings.items()):
            if holding.member == member and partition not in owned:
                del self._holdings[partition]

    def on_told(self, member: str, sent_at: float, share: Share) -> None:
        """The member may read these, by the answer to its request from that time."""
        now, until = self._world.loop.time(), sent_at + self._lease_s
        if until <= now:
            return
        for partition in share:
            other = self._holdings.get(partition)
            if other is not None and other.member != member and other.until > now:
                text = f"{self._group}: {member} is given {_named([partition])}, which {other.member} has"
                self._world.problem("two-owners", f"{text} until {other.until:.3f} at least")
            self.handed_over += self._last.setdefault(partition, member) != member
            self._last[partition] = member
            self._holdings[partition] = _Holding(member, until)
        for holding in self._holdings.values():
            if holding.member == member:
                holding.until = max(holding.until, until)

    def others(self, member: str, partition: tuple[UUID, int]) -> str | None:
        """The other member that reads the partition now, for a commit that is about to be sent."""
        holding = self._holdings.get(partition)
        is_others = holding is not None and holding.member != member and holding.until > self._world.loop.time()
        return holding.member if holding is not None and is_others else None

    def on_committed(self, member: str, partition: tuple[UUID, int], reader: str | None) -> None:
        """The commit counts. `reader` is the result of `others` from the time when it was sent."""
        if reader is not None:
            text = f"{self._group}: {member} commits for {_named([partition])}, which {reader} had been given"
            self._world.problem("zombie-commit", text)


def _partition_for(group: str, count: int) -> int:
    """Kafka's choice: Java's hash of an ASCII name, without its sign, modulo the number of partitions."""
    value = 0
    for letter in group.encode("ascii"):
        value = (31 * value + letter) & 0xFFFFFFFF
    return min(value, (1 << 32) - value) % count


def _named(partitions: Iterable[tuple[UUID, int]]) -> str:
    return ", ".join(f"{str(topic)[:8]}-{index}" for topic, index in sorted(partitions)) or "nothing"
