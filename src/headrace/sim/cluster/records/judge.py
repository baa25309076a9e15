"""Invariants of replicated partitions at every moment, judged by images, answers, and the bytes on the disks.

The judge gets every image that any broker shows, and every answer that a client gets. It never asks a broker's own
state. "Promised" records are those acknowledged at acks=all or shown to a consumer.

Promises:
- An epoch has one leader.
- The ISR is never empty, and includes the leader.
- A record acknowledged at acks=all is durable on a whole ISR that its leader may have used.
- Every member of the ISR has all promised records, with the same bytes.
- A replica that joins the ISR has all records with which its leader began the epoch.
- The high watermark never falls within an epoch.
- A broker that knows that it does not lead serves nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from headrace.base.ids import NO_LEADER, BrokerId, TopicId
from headrace.metadata.image import EMPTY_IMAGE, MetadataImage
from headrace.metadata.values import PartitionImage, TopicImage
from headrace.sim.cluster.host import Host
from headrace.sim.cluster.judges import Judge
from headrace.sim.cluster.records.media import SUFFIX, VERBATIM, Batch, Media, directory_of, parse
from headrace.sim.history import PartitionKey
from headrace.sim.nodes import FileNode
from headrace.sim.process import Process


@dataclass(frozen=True, slots=True)
class Glimpse:
    """The known facts about a broker and a partition when a request was sent to it."""

    partition: PartitionKey
    node: int
    process: Process | None
    shown: PartitionImage | None
    """The broker's own view of the partition; None: it showed none yet."""
    high_watermarks: dict[int, int]
    """By leader epoch: the highest one that any client was told."""


class RecordsJudge(Judge):
    """The judge, as the module says. `hosts` may grow."""

    def __init__(
        self, accuse: Callable[[str, str], object], tell: Callable[[str], object], hosts: Sequence[Host]
    ) -> None:
        super().__init__(accuse, tell)
        self._hosts = hosts
        self._media = Media()
        self._shown: dict[Process, MetadataImage] = {}
        self.newest = EMPTY_IMAGE
        """The newest image that any broker showed."""
        self._topics: dict[PartitionKey, TopicImage] = {}
        self._states: dict[PartitionKey, dict[int, PartitionImage]] = {}
        """States by partition epoch."""
        self._leaders: dict[tuple[PartitionKey, int], int] = {}
        self._promised: dict[PartitionKey, int] = {}
        """The end of the promised records, exclusive."""
        self._high_watermarks: dict[PartitionKey, dict[int, int]] = {}
        self._lost: dict[int, int] = {}
        """Brokers whose disk was lost, with their broker epoch then. Nothing is expected of them in that epoch."""
        self._rotten: dict[tuple[int, PartitionKey], tuple[FileNode, Batch]] = {}
        """By broker and partition: a file that its disk has damaged, and the lost batch."""
        self._ever_rotten: set[tuple[int, PartitionKey]] = set()
        self.leader_epochs = self.isr_changes = 0
        self.unjudged: set[str] = set()
        """Topics that another judge checks."""
        self.on_shrunk: Callable[[PartitionKey], object] = _nobody
        """Called when an ISR has just lost a member other than its leader, so that a fault can use the moment."""

    # images

    def on_image(self, process: Process, image: MetadataImage) -> None:
        super().on_image(process, image)
        self._shown[process] = image
        if image.index > self.newest.index:
            self.newest = image
        for topic in image.topics.values():
            if topic.name in self.unjudged:
                continue
            for state in topic.partitions:
                key = PartitionKey(topic.id, state.index)
                self._topics[key] = topic
                states = self._states.setdefault(key, {})
                if state.partition_epoch not in states:
                    states[state.partition_epoch] = state
                    self._on_state(key, state, image)
        for node in [each for each in self._lost if not self._is_excused(each, image)]:
            del self._lost[node]
            self.check_all()

    def _on_state(self, key: PartitionKey, state: PartitionImage, image: MetadataImage) -> None:
        before = self._leaders.get((key, state.leader_epoch))
        if before is None:
            self._leaders[key, state.leader_epoch] = state.leader
            self.leader_epochs += 1
        elif before != state.leader:
            text = f"both {before} and {state.leader} lead {_name(key)} in epoch {state.leader_epoch}"
            self._accuse("two-leaders", text)
        else:
            self.isr_changes += 1
            known = self._states[key].get(state.partition_epoch - 1)
            if known is not None and len(known.isr) > len(state.isr):
                self.on_shrunk(key)
            if known is not None and known.leader_epoch == state.leader_epoch:
                for node in set(state.isr).difference(known.isr):
                    self._check_joined(key, state, node, image)
        if not state.isr:
            self._accuse("empty-isr", f"nobody is in sync with {_name(key)}: {state}")
        elif state.leader != NO_LEADER and state.leader not in state.isr:
            self._accuse("leader-not-in-sync", f"{_name(key)}: {state}")
        if state.partition_epoch == max(self._states[key]):
            self._check_in_sync(key, state, image)

    def state(self, key: PartitionKey) -> PartitionImage | None:
        """The newest state of a partition that any broker showed."""
        states = self._states.get(key)
        return states[max(states)] if states else None

    # the disks

    def on_disk_lost(self, node: int) -> None:
        """Expect nothing of this broker's disk until the broker has registered again."""
        known = self.newest.brokers.get(BrokerId(node))
        self._lost[node] = -1 if known is None else known.epoch

    def _is_excused(self, node: int, image: MetadataImage) -> bool:
        known = image.brokers.get(BrokerId(node))
        return node in self._lost and (known is None or known.epoch <= self._lost[node])

    def on_rot(self, node: int, key: PartitionKey, file: FileNode, batch: Batch) -> None:
        """Its disk has damaged a file of that partition. Expect nothing of this copy until the file is mended, or no
        longer part of the log."""
        self._rotten[node, key] = file, batch
        self._ever_rotten.add((node, key))

    def is_rotten(self, node: int, key: PartitionKey) -> bool:
        """Whether that file is still part of its log, and damaged."""
        if (node, key) not in self._rotten:
            return False
        file, batch = self._rotten[node, key]
        host = next(host for host in self._hosts if host.node == node)
        directory = directory_of(host.disk, f"{self._topics[key].name}-{key.number}")
        names = {} if directory is None else {**directory.names, **directory.durable}
        is_there = any(found is file for name, found in names.items() if name.endswith(SUFFIX))
        if is_there and batch not in parse(bytes(file.durable)):
            return True
        del self._rotten[node, key]
        return False

    def is_any_rotten(self, key: PartitionKey) -> bool:
        return any(self.is_rotten(node, each) for node, each in list(self._rotten) if each == key)

    def has_no_sound_copy_in_sync(self, key: PartitionKey) -> bool:
        """Whether every replica in sync is damaged: the others fell behind after that. There is no promise that it goes
        on by itself: it would be an unclean election."""
        state = self.state(key)
        return state is not None and all(self.is_rotten(node, key) for node in state.isr)

    def may_be_corrupt(self, node: int, key: PartitionKey) -> bool:
        """Whether a reader may get that error there. That includes requests from just before the damage was mended."""
        return (node, key) in self._ever_rotten

    def start_of(self, key: PartitionKey) -> int:
        """Start of the partition; records below it were deleted."""
        return 0

    def promised(self, key: PartitionKey) -> int:
        """The end of the promised records, exclusive."""
        return self._promised.get(key, 0)

    def log(self, node: int, key: PartitionKey) -> list[Batch]:
        """The durable part of a partition's log on this broker's disk."""
        host = next(host for host in self._hosts if host.node == node)
        return self._media.log(host.disk, f"{self._topics[key].name}-{key.number}")

    def _check_in_sync(self, key: PartitionKey, state: PartitionImage, image: MetadataImage) -> None:
        """Check that every member of the ISR has all promised records, and the same ones."""
        promised = self._promised.get(key, 0)
        members = [node for node in state.isr if not (self._is_excused(node, image) or self.is_rotten(node, key))]
        logs = {node: [batch for batch in self.log(node, key) if batch.base < promised] for node in members}
        for node, log in logs.items():
            end = log[-1].end if log else 0
            if end < promised:
                text = f"{node} is in the ISR {state.isr} of {_name(key)} with {end} of {promised} records promised"
                self._accuse("in-sync-without", text)
        for node, log in logs.items():
            if differs := _first_difference(logs[members[0]], log):
                text = f"{_name(key)} on {members[0]} and {node}, both in sync, differs at offset {differs.base}"
                self._accuse("replicas-differ", f"{text}, below {promised}")

    def _check_joined(self, key: PartitionKey, state: PartitionImage, node: int, image: MetadataImage) -> None:
        """Check that a replica that joins the ISR has flushed all that its leader had when the epoch began. Earlier
        leaders may have promised any of that. (Where a log is cleaned its end on a disk is not known: `Media.log`.)"""
        if "compact" in self._topics[key].configs.get("cleanup.policy", ""):
            return
        if any(self._is_excused(each, image) or self.is_rotten(each, key) for each in (state.leader, node)):
            return
        inherited = [batch.end for batch in self.log(state.leader, key) if batch.leader_epoch < state.leader_epoch]
        log = self.log(node, key)
        end = log[-1].end if log else 0
        if inherited and end < inherited[-1]:
            text = f"{node} joined the ISR {state.isr} of {_name(key)} in epoch {state.leader_epoch} with {end} of the"
            self._accuse("joined-too-early", f"{text} {inherited[-1]} records that {state.leader} began it with")

    def check_all(self) -> None:
        """Check every partition now."""
        for key in self._states:
            state = self.state(key)
            assert state is not None
            self._check_in_sync(key, state, self.newest)

    def apart_in(self, key: PartitionKey) -> str | None:
        """A sentence where durable logs differ from the leader's, when nothing is written and all should be equal."""
        state = self.state(key)
        assert state is not None
        logs = {node: self.log(node, key) for node in state.replicas}
        ends = {node: log[-1].end if log else 0 for node, log in logs.items()}
        first = logs[state.replicas[0]]
        if len(state.isr) == len(state.replicas) and all(log == first for log in logs.values()):
            return None
        return f"{_name(key)}: ISR {state.isr} of {state.replicas}, led by {state.leader}, logs end at {ends}"

    # answers

    def glimpse(self, key: PartitionKey, node: int) -> Glimpse:
        """The facts for a request that is sent now."""
        host = next(host for host in self._hosts if host.node == node)
        image = self._shown.get(host.process) if host.process is not None else None
        shown = None if image is None else _state_in(image, key)
        return Glimpse(key, node, host.process, shown, dict(self._high_watermarks.get(key, {})))

    def on_served(self, seen: Glimpse, what: str, epoch: int = -1) -> None:
        """The broker did something that only a leader does. `epoch` is the leader epoch in the request (-1: none)."""
        key, node = seen.partition, seen.node
        leader = self._leaders.get((key, epoch), node)
        if epoch >= 0 and leader != node:
            self._accuse("stale-leader", f"{node} {what} of {_name(key)} in epoch {epoch}, which {leader} leads")
        shown = seen.shown
        if shown is None:
            return
        if epoch >= 0:
            knew_better = epoch < shown.leader_epoch
        else:  # it may have learnt meanwhile that it leads again
            knew_better = shown.leader != node and node not in self._since(key, shown.leader_epoch)
        if knew_better:
            text = f"{node} {what} of {_name(key)}, asked in epoch {epoch}; before that it had shown"
            self._accuse("stale-leader", f"{text} that {shown.leader} leads in epoch {shown.leader_epoch}")

    def _since(self, key: PartitionKey, epoch: int) -> Iterable[int]:
        """Brokers that have led in later epochs."""
        return (leads for (each, since), leads in self._leaders.items() if each == key and since > epoch)

    def on_high_watermark(self, seen: Glimpse, epoch: int, high_watermark: int) -> None:
        """The leader of that epoch told it to a client."""
        before = seen.high_watermarks.get(epoch, 0)
        if high_watermark < before:
            where = f"{_name(seen.partition)} in epoch {epoch}"
            self._accuse("high-watermark-fell", f"{where} from {before} to {high_watermark}, says {seen.node}")
        known = self._high_watermarks.setdefault(seen.partition, {})
        known[epoch] = max(high_watermark, known.get(epoch, 0))

    def on_acknowledged(self, seen: Glimpse, data: bytes, base: int, count: int) -> None:
        """A batch was acknowledged at acks=all: check that it is durable on all of an ISR that the leader may have
        used."""
        key = seen.partition
        first = -1 if seen.shown is None else seen.shown.partition_epoch
        states = [state for epoch, state in self._states[key].items() if epoch >= first]
        counted = {node for state in states for node in state.isr}
        holders = {node for node in counted if self._has(node, key, base, data)}
        if not any(holders.issuperset(state.isr) for state in states):
            isrs = " or ".join(str(state.isr) for state in states)
            text = f"offset {base} of {_name(key)} is acknowledged by {seen.node}, durable on {sorted(holders)}"
            self._accuse("acknowledged-too-early", f"{text}, in sync are {isrs}")
        if base >= 0:
            self._promise(key, base + count)

    def on_shown(self, key: PartitionKey, end: int) -> None:
        """A consumer got the records below `end`."""
        self._promise(key, end)

    def promised_under(self, key: PartitionKey, epoch: int) -> int:
        """The promised records that the leader of this epoch must know: none if there is a leader of a later epoch."""
        state = self.state(key)
        return self._promised.get(key, 0) if state is not None and epoch >= state.leader_epoch else 0

    def _promise(self, key: PartitionKey, end: int) -> None:
        self._promised[key] = max(end, self._promised.get(key, 0))

    def _has(self, node: int, key: PartitionKey, base: int, data: bytes) -> bool:
        if self._is_excused(node, self.newest) or self.is_rotten(node, key):
            return True
        written = data[VERBATIM:]
        return any(
            len(batch.data) == len(data) and batch.data.endswith(written)
            for batch in self.log(node, key)
            if base < 0 or base == batch.base
        )


def _nobody(key: PartitionKey) -> None:
    """The default callback, which does nothing."""


def _first_difference(one: Sequence[Batch], other: Sequence[Batch]) -> Batch | None:
    """The first batch that differs where both logs have one."""
    return next((first for first, second in zip(one, other, strict=False) if first != second), None)


def _state_in(image: MetadataImage, key: PartitionKey) -> PartitionImage | None:
    topic = image.topics.get(TopicId(key.topic_id))
    return None if topic is None else topic.partitions[key.number]


def _name(key: PartitionKey) -> str:
    return f"partition {key.number}"
