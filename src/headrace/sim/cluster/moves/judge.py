"""Invariants of partitions that are handed over, beside those of replicated ones (`records.judge`).

The judge uses images, and the bytes in the store and on the disks. It uses nothing of the storage engine, the exporter
or the reader.

Promises:
- An object that a catalog names was in the store before any broker showed that, complete and with the claimed hashes.
- It stays while it is named.
- A catalog has no gap, and its chain is that of its content.
- History at an offset never changes until it is deleted.
- A seal covers all records that there are.
- A new owner appends nothing before the move is finished, and then begins where the old owner ended.
- A batch in an owner's log has a leader epoch in which it led, and equals history's batch there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from itertools import chain

from headrace.base.ids import PartitionIndex, TopicId, TopicPartition
from headrace.metadata.image import MetadataImage
from headrace.metadata.segments import CatalogEntry, PartitionCatalog, SegmentDescriptor
from headrace.metadata.values import PartitionImage, TopicImage
from headrace.sim.cluster.host import Host
from headrace.sim.cluster.moves.chain import Chains
from headrace.sim.cluster.moves.store import SimStore, batches_in
from headrace.sim.cluster.records.judge import Glimpse, RecordsJudge
from headrace.sim.cluster.records.media import SUFFIX, Batch, directory_of, parse
from headrace.sim.history import PartitionKey
from headrace.sim.nodes import FileNode
from headrace.sim.process import Process


class MovesJudge(RecordsJudge):
    """The judge, as the module says."""

    def __init__(
        self,
        accuse: Callable[[str, str], object],
        tell: Callable[[str], object],
        hosts: Sequence[Host],
        store: SimStore,
    ) -> None:
        super().__init__(accuse, tell, hosts)
        self._store = store
        self._catalogs: dict[PartitionKey, PartitionCatalog] = {}
        """The newest catalog that was checked."""
        self._segments: dict[str, list[Batch]] = {}
        """The batches of each object."""
        self._chains = Chains()
        self._named: dict[PartitionKey, set[str]] = {}
        """Objects that the newest catalog refers to."""
        self._ever: dict[PartitionKey, dict[int, Batch]] = {}
        """By partition and offset: history's batch there, since it was exported."""
        self.replacements = 0
        store.on_delete = self._on_delete
        self._history: dict[PartitionKey, tuple[str, list[Batch]]] = {}
        """By partition: a catalog's head, and all batches that it has ever named."""
        self.moves_started = self.moves_sealed = self.moves_finished = self.moves_cancelled = 0
        self.moves_retargeted = 0
        self._handed_over: set[tuple[PartitionKey, int]] = set()
        """Partitions, with the brokers that handed them over."""
        self.on_step: Callable[[PartitionKey, PartitionImage], object] = _nobody
        """Called at each step of a move, so that a fault can use the moment."""
        self.on_replaced: Callable[[PartitionKey], object] = _none
        """Called for each segment that has replaced others."""
        self.on_gone: Callable[[str], object] = str
        """Called for each object that has gone from the store."""
        self.on_proposal: Callable[[PartitionKey], object] = _none
        """Called for each seal that is about to be proposed."""

    # images

    def on_image(self, process: Process, image: MetadataImage) -> None:
        if image.index > self.newest.index:
            for key, catalog in image.catalog.items():
                topic = image.topics.get(key.topic_id)
                if topic is None or topic.name not in self.unjudged:
                    self._look_at(PartitionKey(key.topic_id, key.partition), catalog)
        super().on_image(process, image)

    def _on_state(self, key: PartitionKey, state: PartitionImage, image: MetadataImage) -> None:
        before = [epoch for epoch in self._states[key] if epoch < state.partition_epoch]
        known = self._states[key][max(before)] if before else None
        super()._on_state(key, state, image)
        if known is not None and state.partition_epoch == max(self._states[key]):
            self._on_change(key, known, state, image)
        if self.is_single(key):
            self._check_owners(key)

    def is_single(self, key: PartitionKey) -> bool:
        """Whether it always has one copy."""
        return all(len(state.replicas) == 1 for state in self._states[key].values())

    def _on_change(
        self, key: PartitionKey, before: PartitionImage, state: PartitionImage, image: MetadataImage
    ) -> None:
        if (before.move, before.leader_epoch) == (state.move, state.leader_epoch):
            return
        if state.move is not None and not state.is_sealed and before.move != state.move:
            self.moves_started += before.move is None
        elif state.is_sealed and not before.is_sealed:
            self.moves_sealed += 1
            self._on_sealed(key, state, image)
        elif state.is_sealed and before.is_sealed and _target(before) != _target(state):
            self.moves_retargeted += 1
            self._nothing_appended(key, before)
        elif before.is_sealed and state.move is None:
            self.moves_finished += 1
            self._nothing_appended(key, before)
        elif before.move is not None and state.move is None:
            self.moves_cancelled += 1
        self.on_step(key, state)

    def _on_sealed(self, key: PartitionKey, state: PartitionImage, image: MetadataImage) -> None:
        """Check that history has everything on the owner's disk."""
        assert state.move is not None
        assert state.move.state is not None
        sealed = state.move.state
        self._handed_over.add((key, sealed.broker_id))
        end = _catalog(image, key).end_offset
        if end != sealed.last_committed_offset and sealed.last_committed_offset >= 0:
            text = f"{_name(key)} is sealed at {sealed.last_committed_offset}, history ends at {end}"
            self._accuse("seal-without-history", text)
        runs = self._runs(sealed.broker_id, key)
        if runs and runs[-1][-1].end > sealed.next_offset:
            text = f"{_name(key)} is sealed at {sealed.last_committed_offset} by {sealed.broker_id}"
            self._accuse("sealed-too-early", f"{text}, whose log goes on to {runs[-1][-1].end - 1}")

    def _nothing_appended(self, key: PartitionKey, sealed: PartitionImage) -> None:
        """The move was just finished, or got another target: check that the old target wrote nothing before."""
        target = _target(sealed)  # it may be dead, so that no broker leads
        host = next(host for host in self._hosts if host.node == target)
        directory = directory_of(host.disk, f"{self._topics[key].name}-{key.number}")
        for name, file in {} if directory is None else directory.names.items():
            if name.endswith(SUFFIX) and isinstance(file, FileNode):
                for batch in parse(bytes(file.data)):
                    if batch.leader_epoch >= sealed.leader_epoch:
                        text = f"{target} has appended {batch.base} to {_name(key)} in epoch"
                        self._accuse("appended-unfinished", f"{text} {batch.leader_epoch}, and the move is not over")
                        return

    def _check_owners(self, key: PartitionKey) -> None:
        """Check that no broker wrote in another's epoch, and that everything written equals history."""
        history = {batch.base: batch for batch in self.history(key)}
        for host in self._hosts:
            for batch in chain.from_iterable(self._runs(host.node, key)):
                leader = self._leaders.get((key, batch.leader_epoch), host.node)
                if leader != host.node:
                    text = f"{host.node} has {batch.base} of {_name(key)} in epoch {batch.leader_epoch}"
                    self._accuse("two-owners", f"{text}, which {leader} leads")
                    return
                if history.get(batch.base, batch) != batch:
                    text = f"{host.node} has at offset {batch.base} of {_name(key)} another batch than history"
                    self._accuse("two-owners", f"{text}, in epoch {batch.leader_epoch}")
                    return

    # answers

    def on_served(self, seen: Glimpse, what: str, epoch: int = -1) -> None:
        """A former owner forwards producers' batches to the new owner. Its disk shows that it writes none of them
        itself."""
        if what != "takes a batch" or (seen.partition, seen.node) not in self._handed_over:
            super().on_served(seen, what, epoch)

    # catalogs

    def _look_at(self, key: PartitionKey, catalog: PartitionCatalog) -> None:
        known = self._catalogs.get(key)
        if known is catalog or (known is not None and known.head == catalog.head):
            return
        if problem := self._broken(key, catalog, known):
            self._accuse("catalog-broken", f"{_name(key)}: {problem}")
        self._catalogs[key] = catalog

    def _broken(self, key: PartitionKey, catalog: PartitionCatalog, known: PartitionCatalog | None) -> str | None:
        """The first violation in a catalog. For entries checked before, check only that they are still there."""
        if problem := self._chains.problem(key, catalog) or _misbegun(catalog, known):
            return problem
        self._named[key] = {catalog.entries[start].descriptor.key for start in catalog.entries}
        for start in sorted(catalog.entries):
            entry = catalog.entries[start]
            if known is not None and known.entries.get(start) == entry:
                continue
            if problem := self.object_problem(entry.descriptor) or self._changed(key, entry):
                return problem
            if entry.is_substitute and known is not None:
                self.replacements += 1
                self.on_replaced(key)
        return None

    def _changed(self, key: PartitionKey, entry: CatalogEntry) -> str | None:
        """A violation where a segment's batches differ from history's earlier ones, or leave a gap."""
        ever = self._ever.setdefault(key, {})
        for batch in self._segments[entry.descriptor.key]:
            before = ever.get(batch.base)
            end = next(reversed(ever.values())).end if ever else 0
            if before is None and batch.base == end:
                ever[batch.base] = batch
            elif before != batch:
                return f"history has another batch at offset {batch.base} than before"
        return None

    def _on_delete(self, name: str) -> None:
        """An object has just gone from the store."""
        for key, names in self._named.items():
            if name in names:
                self._accuse("referred-object-deleted", f"{_name(key)} names '{name}', and it is deleted")
        self.on_gone(name)

    def object_problem(self, segment: SegmentDescriptor) -> str | None:
        """The problem of the object that a descriptor names; None: there is none."""
        stored = self._store.objects.get(segment.key)
        if stored is None:
            return f"object '{segment.key}' is named, and not there"
        if len(stored.data) != segment.object_bytes or hashlib.sha256(stored.data).hexdigest() != segment.sha256:
            return f"object '{segment.key}' holds something else"
        batches = parse(batches_in(stored.data, segment))
        if not batches or (batches[0].base, batches[-1].end) != (segment.start_offset, segment.end_offset + 1):
            return f"object '{segment.key}' does not hold {segment.start_offset} to {segment.end_offset}"
        if batches[-1].leader_epoch != segment.last_epoch:
            return f"object '{segment.key}' ends in epoch {batches[-1].leader_epoch}, not {segment.last_epoch}"
        self._segments[segment.key] = batches
        return None

    def check_catalogs(self) -> None:
        """Check again everything that is named now."""
        for key in self._states:
            if problem := self._broken(key, _catalog(self.newest, key), None):
                self._accuse("catalog-broken", f"{_name(key)}: {problem}")
            if self.is_single(key):
                self._check_owners(key)

    # a broker's log with its history

    def history(self, key: PartitionKey) -> list[Batch]:
        """All batches of a partition that the store ever held, as far as shown catalogs named them; this includes
        deleted ones."""
        catalog = self._catalogs.get(key)
        if catalog is None:
            return []
        known = self._history.get(key)
        if known is None or known[0] != catalog.head:
            known = self._history[key] = catalog.head, list(self._ever.get(key, {}).values())
        return known[1]

    def start_of(self, key: PartitionKey) -> int:
        catalog = self._catalogs.get(key)
        return 0 if catalog is None else catalog.log_start_offset

    def log(self, node: int, key: PartitionKey) -> list[Batch]:
        """History, and the batches that follow it without a gap on this broker's disk."""
        history = self.history(key)
        if not history:
            return super().log(node, key)
        end = history[-1].end
        for run in self._runs(node, key):
            behind = [batch for batch in run if batch.base >= end]
            if behind and behind[0].base == end:
                return [*history, *behind]
        return history

    def _runs(self, node: int, key: PartitionKey, *, cached: bool = False) -> list[list[Batch]]:
        """The durable batches on its disk; `cached`: with unflushed ones."""
        host = next(host for host in self._hosts if host.node == node)
        return self._media.runs(host.disk, f"{self._topics[key].name}-{key.number}", cached=cached)

    @property
    def under_way(self) -> list[PartitionKey]:
        """Partitions with an unfinished move."""
        return [key for key in self._states if (state := self.state(key)) is not None and state.move is not None]

    def topic_of(self, key: PartitionKey) -> TopicImage:
        return self._topics[key]


def _misbegun(catalog: PartitionCatalog, known: PartitionCatalog | None) -> str | None:
    """A violation where it does not begin where deletions have left it, or has lost its end."""
    start, end = catalog.log_start_offset, catalog.end_offset
    if (
        catalog.entries
        and not catalog.start_offset <= start <= catalog.entries[catalog.start_offset].descriptor.end_offset
    ):
        return f"its first segment starts at {catalog.start_offset}, and it is deleted up to {start}"
    if not catalog.entries and end >= 0 and start != end + 1:
        return f"it has no segments, is deleted up to {start}, and ended at {end}"
    if known is not None and (known.log_start_offset > start or known.end_offset > end):
        return f"it was {known.log_start_offset} to {known.end_offset}, and is {start} to {end}"
    return None


def _catalog(image: MetadataImage, key: PartitionKey) -> PartitionCatalog:
    return image.durable(TopicPartition(TopicId(key.topic_id), PartitionIndex(key.number)))


def _target(state: PartitionImage) -> int:
    """The target of its move."""
    assert state.move is not None
    return state.move.target


def _nobody(key: PartitionKey, state: PartitionImage) -> None:
    """The default callback, which does nothing."""


def _none(key: PartitionKey) -> None:
    """The default callback, which does nothing."""


def _name(key: PartitionKey) -> str:
    return f"partition {key.number}"
