"""What must hold of groups while they go on: who owns what, and whose commits may count.

Told of what members send and are told; of the coordinators' own opinions nothing is asked. Classic groups: in one
generation all are told of one sharing out, that no partition is in twice; and no commit of an older generation is
taken after somebody was told its share in a later one. Consumer groups: nobody is told to read what somebody else may
still be reading, and nobody's commit is taken for what somebody else reads. And of both: what is acknowledged is on
the disks of a whole ISR, and who may know less than its successor tells nothing of it (decision 0028's lease).
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
"""Clocks go wrong by up to 3 %: a session that a client counts may be over that much earlier for its coordinator."""

Share = frozenset[tuple[UUID, int]]
"""Partitions, by topic id."""


class GroupsJudge(RecordsJudge):
    """The disks' side: what is acknowledged is on a whole ISR, as `RecordsJudge` has it."""

    def on_recorded(self, seen: Glimpse, tag: bytes) -> None:
        """A commit was acknowledged, whose record (told by the unique `tag` in it) is durable on all of an ISR that its
        coordinator may have gone by."""
        key = seen.partition
        first = -1 if seen.shown is None else seen.shown.partition_epoch
        states = [state for epoch, state in self._states.get(key, {}).items() if epoch >= first]
        holders = {node for state in states for node in state.isr if self._is_recorded(node, key, tag)}
        if not any(holders.issuperset(state.isr) for state in states):
            isrs = " or ".join(str(state.isr) for state in states)
            text = f"{tag.decode()} is acknowledged by {seen.node}, durable on {sorted(holders)}"
            self._accuse("acknowledged-too-early", f"{text}, in sync are {isrs}")

    def deposed(self, node: int) -> set[PartitionKey]:
        """Of which partitions this broker, for a question to it that leaves now, may not tell what only their leader
        knows: another one leads, with an ISR without it, which is in the newest image that anybody has shown."""
        states = {key: self.state(key) for key, topic in self._topics.items() if topic.name == OFFSETS_TOPIC}
        return {
            key
            for key, state in states.items()
            if state is not None and node in state.replicas and node not in (state.leader, *state.isr)
        }

    def on_told(self, deposed: set[PartitionKey], group: str, node: int, what: str) -> None:
        """It did, of a group's; `deposed` as it was when the question left. Where it is not any more, the question may
        have waited until it led again, as those to a broker do that is on its way into its cluster."""
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
    """One leader's sharing out, as its members are told of it."""

    number: int
    """Its own, in a run."""
    shares: dict[str, Share]
    """By identity: the instance id of a static member, the member id of another."""


class ClassicJudge:
    """One classic group. `restarts`: whether it may be deleted or change its type, so that generations begin again."""

    def __init__(self, world: ClusterWorld, group: str, *, restarts: bool) -> None:
        self._world = world
        self._group = group
        self._restarts = restarts
        self._generations: dict[int, Sharing] = {}
        self._newest = 0
        """The newest generation that anybody was told its share in."""
        self.generations = 0

    def on_share(self, generation: int, identity: str, number: int, share: Share) -> None:
        """A member was told what it reads."""
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
        """For a commit that is about to leave: of an older generation than this it must not count. 0: any may."""
        return 0 if self._restarts else self._newest

    def on_committed(self, generation: int, newest: int, who: str) -> None:
        """It counts; `newest` as it was when it left."""
        if 0 <= generation < newest:
            text = f"{self._group}: {who} commits in generation {generation}, after shares of {newest} were told"
            self._world.problem("zombie-commit", text)


@dataclass(slots=True)
class _Holding:
    """One partition as one member was told of it."""

    member: str
    until: float
    """When its coordinator may take it for gone, unless it is heard again."""


class ConsumerJudge:
    """One consumer group. A member has what it was told of until it says that it does not (when that leaves it, for it
    is not before that that anybody can know), or its time may be up: a session after it sent what was answered last."""

    def __init__(self, world: ClusterWorld, group: str, *, lease_s: float) -> None:
        self._world = world
        self._group = group
        self._lease_s = lease_s * RATE
        self._holdings: dict[tuple[UUID, int], _Holding] = {}
        self._last: dict[tuple[UUID, int], str] = {}
        self.handed_over = 0

    def on_sent(self, member: str, owned: Share) -> None:
        """It says that it has this, and no more."""
        for partition, holding in list(self._holdings.items()):
            if holding.member == member and partition not in owned:
                del self._holdings[partition]

    def on_told(self, member: str, sent_at: float, share: Share) -> None:
        """It may read that, by the answer to what it sent at that time."""
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
        """Who else reads it now, for a commit that is about to leave."""
        holding = self._holdings.get(partition)
        is_others = holding is not None and holding.member != member and holding.until > self._world.loop.time()
        return holding.member if holding is not None and is_others else None

    def on_committed(self, member: str, partition: tuple[UUID, int], reader: str | None) -> None:
        """It counts; `reader`: `others` when it left."""
        if reader is not None:
            text = f"{self._group}: {member} commits for {_named([partition])}, which {reader} had been given"
            self._world.problem("zombie-commit", text)


def _partition_for(group: str, count: int) -> int:
    """Kafka's: Java's hash of a name (of ASCII), without its sign, modulo the number of partitions."""
    value = 0
    for letter in group.encode("ascii"):
        value = (31 * value + letter) & 0xFFFFFFFF
    return min(value, (1 << 32) - value) % count


def _named(partitions: Iterable[tuple[UUID, int]]) -> str:
    return ", ".join(f"{str(topic)[:8]}-{index}" for topic, index in sorted(partitions)) or "nothing"
