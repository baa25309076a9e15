"""Invariants of replicas with history in a durable store, beside those of replicas and of history (`records.judge`,
`moves.judge`).

A copy is judged by what it would serve: its own log, and history below that.

Promises:
- Two members of an ISR would serve the same records.
- A member of the ISR has no record of its own that differs from history.
- While leaders are elected cleanly, all of the ISR serves every acknowledged record at the end.
- Acknowledged records in history are always served.

After an unclean election, a log that is longer than history and differs from it is kept. History below its start is all
that is left of the other branch (decision 0033). From then on, the records that the leader serves count.

If the new leader was no replica (decision 0049), only history counts. Records above it on any disk belong to no later
log, even if their broker comes back.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from headrace.metadata.image import MetadataImage
from headrace.metadata.values import PartitionImage
from headrace.sim.cluster.moves.judge import MovesJudge
from headrace.sim.cluster.records.judge import Glimpse
from headrace.sim.cluster.records.media import VERBATIM, Batch
from headrace.sim.history import PartitionKey


class CopiesJudge(MovesJudge):
    """See the module."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._unclean: dict[PartitionKey, int] = {}
        """By partition: the leader epoch of its last unclean election."""
        self._parted: set[PartitionKey] = set()
        """Partitions whose kept log differs from the exported one."""
        self._kept: dict[PartitionKey, list[bytes]] = {}
        """Batches acknowledged at acks=all that must not be lost."""
        self._given_up: dict[PartitionKey, list[tuple[int, int]]] = {}
        """By partition: leader epochs that began with history alone, and the end of history then."""
        self.recoveries = 0
        self.unclean_elections = self.gave_way = self.parted = 0

    @property
    def under_way(self) -> list[PartitionKey]:
        """Partitions with an unfinished reassignment or move."""
        known = ((key, self.state(key)) for key in self._states)
        return [key for key, state in known if state is not None and (state.is_reassigned or state.move is not None)]

    def has_lost(self, key: PartitionKey) -> bool:
        """Whether its leader was ever elected uncleanly."""
        return key in self._unclean

    def frontier(self, key: PartitionKey) -> int:
        """The end of history, exclusive."""
        history = self.history(key)
        return history[-1].end if history else 0

    # elections

    def _on_state(self, key: PartitionKey, state: PartitionImage, image: MetadataImage) -> None:
        if state.is_unclean and state.leader_epoch > self._unclean.get(key, -1):
            before = [epoch for epoch in self._states[key] if epoch < state.partition_epoch]
            if before and state.leader not in self._states[key][max(before)].replicas:
                self._on_recovered(key, state)
            else:
                self._on_unclean(key, state)
        super()._on_state(key, state, image)

    def _on_recovered(self, key: PartitionKey, state: PartitionImage) -> None:
        """Expect no more than history."""
        frontier = self.frontier(key)
        self.recoveries += 1
        self._unclean[key] = state.leader_epoch
        self._given_up.setdefault(key, []).append((state.leader_epoch, frontier))
        self._parted.discard(key)
        self._promised[key] = min(frontier, self._promised.get(key, 0))
        there = {batch.data[VERBATIM:] for batch in self.history(key)}
        self._kept[key] = [data for data in self._kept.get(key, []) if data in there]
        self._tell(f"{state.leader} goes on with partition {key.number} behind {frontier} records of history")

    def _on_unclean(self, key: PartitionKey, state: PartitionImage) -> None:
        """Expect what the leader has, or history where that is longer. The disk of a leader that is only being added
        says nothing: it may still have an old copy that is to be removed."""
        self._unclean[key] = state.leader_epoch
        self.unclean_elections += 1
        history, frontier = self.history(key), self.frontier(key)
        written = self._appended(state.leader, key)
        flushed = self._last_run(state.leader, key)
        is_new = state.leader in state.adding
        served = history if is_new else _joined(history, written)
        end = written[-1].end if written else 0
        if end >= frontier and _differ(history, written):
            self._parted.add(key)
            self.parted += 1
        else:
            self._parted.discard(key)
            self.gave_way += end < frontier
        sure = frontier if is_new else max(frontier, self._kept_to(key, state, flushed))
        self._promised[key] = min(sure, self._promised.get(key, 0))
        there = {batch.data[VERBATIM:] for batch in served if batch.end <= sure}
        self._kept[key] = [data for data in self._kept.get(key, []) if data in there]
        self._tell(f"{state.leader} leads partition {key.number} uncleanly with {end} records, history has {frontier}")

    def _kept_to(self, key: PartitionKey, state: PartitionImage, log: Sequence[Batch]) -> int:
        """The end of the leader's log, or the offset where it differs from the log of the last leader. It may just be
        cut there, as it was told before its election."""
        others = [self._last_run(node, key) for node in state.replicas if node != state.leader]
        newest = max((run for run in others if run), key=lambda run: run[-1].leader_epoch, default=())
        if not log or not newest or newest[-1].leader_epoch <= log[-1].leader_epoch:
            return log[-1].end if log else 0
        known = {batch.base: batch for batch in newest}
        both = (batch for batch in log if batch.base >= newest[0].base)
        return next((batch.base for batch in both if known.get(batch.base) != batch), log[-1].end)

    def _counts(self, seen: Glimpse) -> bool:
        """Whether an answer comes from the leader since the last unclean election, as far as is known."""
        if seen.partition not in self._unclean:
            return True
        return seen.shown is not None and seen.shown.leader_epoch >= self._unclean[seen.partition]

    # answers

    def on_acknowledged(self, seen: Glimpse, data: bytes, base: int, count: int) -> None:
        key = seen.partition
        before = self._promised.get(key, 0)
        super().on_acknowledged(seen, data, base, count)
        if self._counts(seen):
            self._kept.setdefault(key, []).append(data[VERBATIM:])
        else:
            self._promised[key] = before

    def on_shown(self, key: PartitionKey, end: int) -> None:
        """Ignore records that a deposed leader showed once others were elected uncleanly."""
        if key not in self._unclean:
            super().on_shown(key, end)

    # the records that a broker serves

    def log(self, node: int, key: PartitionKey) -> list[Batch]:
        return _joined(self.history(key), self._last_run(node, key))

    def _last_run(self, node: int, key: PartitionKey) -> Sequence[Batch]:
        """The durable log. Earlier runs of batches were deleted and may be back in part. A run that begins above the
        end of history was not flushed before a power cut, and does not count."""
        runs = [run for run in self._runs(node, key) if run[0].base <= self.frontier(key)]
        return self._standing(key, runs[-1]) if runs else []

    def _appended(self, node: int, key: PartitionKey) -> Sequence[Batch]:
        """The last run of batches, including unflushed ones."""
        return self._standing(key, next(reversed(self._runs(node, key, cached=True)), []))

    def _standing(self, key: PartitionKey, run: Sequence[Batch]) -> Sequence[Batch]:
        """The run without the part that was given up."""
        for epoch, frontier in self._given_up.get(key, ()):
            run = [batch for batch in run if batch.end <= frontier or batch.leader_epoch >= epoch]
        gap = next((at for at, (one, other) in enumerate(pairwise(run), 1) if one.end != other.base), len(run))
        return run[:gap]

    def _check_in_sync(self, key: PartitionKey, state: PartitionImage, image: MetadataImage) -> None:
        super()._check_in_sync(key, state, image)
        history = self.history(key)
        for node in state.isr if key not in self._parted else ():
            run = self._last_run(node, key)
            if not run or run[-1].end <= self.frontier(key) or not _differ(history, run):
                continue
            if key in self._unclean:  # batches that were not flushed at the election
                self._parted.add(key)
            else:
                text = f"{node} is in the ISR {state.isr} of partition {key.number}, and its log from {run[0].base} on"
                self._accuse("history-differs", f"{text} is not what was exported")
            return

    def check_kept(self) -> None:
        """Check that every member of the ISR has all acknowledged batches that had to be kept."""
        for key, kept in self._kept.items():
            state = self.state(key)
            assert state is not None
            for node in state.isr:
                there = {batch.data[VERBATIM:] for batch in self.log(node, key)}
                if lost := [data for data in kept if data not in there]:
                    text = f"{node} has not {len(lost)} of {len(kept)} batches of partition {key.number} that were"
                    self._accuse("acknowledged-gone", f"{text} acknowledged, and could be kept")
                    return


def _joined(history: Sequence[Batch], log: Sequence[Batch]) -> list[Batch]:
    """The served batches: the log from its start and history before that, or history alone where the log ends below
    it."""
    if not history:
        return list(log)
    if not log or log[-1].end < history[-1].end or log[0].base > history[-1].end:
        return list(history)
    return [*(batch for batch in history if batch.end <= log[0].base), *log]


def _differ(history: Sequence[Batch], log: Sequence[Batch]) -> bool:
    """Whether the log has another batch than history where both have one."""
    known = {batch.base: batch for batch in history}
    end = history[-1].end if history else 0
    return any(known.get(batch.base) != batch for batch in log if batch.base < end)
