"""The log as the consensus core sees it: its entries, which of them are on the disk, and which are committed.

Promises:
- The log is truncated only where a leader's entry conflicts, and never at or below the commit index.
- The durable part is a prefix of the present log, whatever was overwritten while a write was under way.
- An entry is handed out to be applied once, in order, and only when it is both committed and durable here.
- No step copies the log.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence

from headrace.raft.membership import Membership, MembershipHistory
from headrace.raft.messages import Entry, EntryKind, SnapshotMark


class Log:
    """Entries after `base_index`, in memory, and their memberships.

    Invariants:
    - `base_index <= snapshot.index <= handed_index <= commit_index <= last_index`.
    - `durable_index <= last_index`.
    - `handed_index <= durable_index`, except while a received snapshot is being written.
    - Terms never fall along the log.
    """

    def __init__(self, snapshot: SnapshotMark, entries: Sequence[Entry]) -> None:
        """The recovered log: all of it is durable, and nothing above the snapshot is known to be committed."""
        self.snapshot = snapshot
        self.base_index = snapshot.index
        self.base_term = snapshot.term
        self.members = MembershipHistory(snapshot.index, snapshot.membership)
        self._entries: list[Entry] = []
        self._run_terms: list[int] = []
        """The distinct terms in `_entries`, rising. `_run_starts` has the index of each one's first entry."""
        self._run_starts: list[int] = []
        for entry in entries:
            self.append(entry)
        self.commit_index = snapshot.index
        self.handed_index = snapshot.index
        self.durable_index = self.last_index
        self._next_to_save = self.last_index + 1
        self._writes: deque[tuple[int, int]] = deque()
        """Writes under way: the number of each, and the index up to which it makes the present log durable."""

    @property
    def last_index(self) -> int:
        return self.base_index + len(self._entries)

    @property
    def last_term(self) -> int:
        return self._entries[-1].term if self._entries else self.base_term

    def term_at(self, index: int) -> int | None:
        """The term of an entry; None where the log does not hold it, or no longer does."""
        at = index - self.base_index - 1
        if 0 <= at < len(self._entries):
            return self._entries[at].term
        return self.base_term if at == -1 else None

    def is_up_to_date(self, last_index: int, last_term: int) -> bool:
        """Whether a log that ends there holds all entries that this one may have committed (Raft paper, 5.4.1)."""
        return (last_term, last_index) >= (self.last_term, self.last_index)

    def last_of_terms_up_to(self, term: int, index: int) -> int:
        """The last entry at or below `index` of a term of at most `term`; at least `base_index`."""
        run = bisect_right(self._run_terms, term)
        end = self._run_starts[run] - 1 if run < len(self._run_starts) else self.last_index
        return max(self.base_index, min(end, index))

    def read(self, first: int, bytes_max: int) -> tuple[Entry, ...]:
        """Entries from `first` on, up to this many bytes, but at least one if there is one."""
        start = first - self.base_index - 1
        end, size = start, 0
        while end < len(self._entries):
            size += len(self._entries[end].data)
            if size > bytes_max and end > start:
                break
            end += 1
        return tuple(self._entries[start:end])

    def bytes_between(self, after: int, last: int) -> int:
        """Bytes of data in the entries above `after` up to `last`."""
        at = after - self.base_index
        return sum(len(self._entries[i].data) for i in range(at, last - self.base_index))

    def append(self, entry: Entry) -> None:
        assert entry.index == self.last_index + 1, "the log has no gap"
        assert entry.term >= self.last_term, "terms never fall along the log"
        if not self._run_terms or self._run_terms[-1] != entry.term:
            self._run_terms.append(entry.term)
            self._run_starts.append(entry.index)
        self._entries.append(entry)
        if entry.kind is EntryKind.MEMBERSHIP:
            self.members.append(entry.index, Membership.decoded(entry.data))

    def merge(self, entries: Iterable[Entry]) -> None:
        """Take a leader's entries; the log already shares the entry before the first one. Entries that it has already
        stay, and so do those behind them: an old message says nothing about later entries."""
        for entry in entries:
            if entry.index <= self.last_index:
                if self.term_at(entry.index) == entry.term:
                    continue
                self._truncate(entry.index)
            self.append(entry)

    def _truncate(self, index: int) -> None:
        assert index > self.commit_index, "what is committed stays"
        del self._entries[index - self.base_index - 1 :]
        while self._run_starts and self._run_starts[-1] >= index:
            self._run_starts.pop()
            self._run_terms.pop()
        self.members.truncate(index)
        self._not_durable_from(index)

    def _not_durable_from(self, index: int) -> None:
        self.durable_index = min(self.durable_index, index - 1)
        self._next_to_save = min(self._next_to_save, index)
        self._writes = deque((write, min(last, index - 1)) for write, last in self._writes)

    def commit(self, index: int) -> None:
        """Mark everything up to `index` as committed. The commit index never falls."""
        assert index <= self.last_index, "only what is there is committed"
        self.commit_index = max(self.commit_index, index)

    def take_unsaved(self) -> tuple[Entry, ...]:
        """Entries that must be persisted and were not handed out before."""
        unsaved = tuple(self._entries[self._next_to_save - self.base_index - 1 :])
        self._next_to_save = self.last_index + 1
        return unsaved

    def on_write(self, write: int) -> None:
        """The whole present log is on its way to the disk with this write."""
        self._writes.append((write, self.last_index))

    def on_persisted(self, write: int) -> None:
        while self._writes and self._writes[0][0] <= write:
            self.durable_index = max(self.durable_index, self._writes.popleft()[1])

    def take_committed(self) -> tuple[Entry, ...]:
        """Committed and durable entries that must be applied and were not handed out before."""
        end = min(self.commit_index, self.durable_index)
        if end <= self.handed_index:
            return ()
        start, self.handed_index = self.handed_index, end
        return tuple(self._entries[start - self.base_index : end - self.base_index])

    def compact(self, index: int, keep: int) -> None:
        """A snapshot of the state after `index` is durable. Of the entries that it covers, the last `keep` stay for
        followers that are only slightly behind."""
        assert index <= self.handed_index, "only what was applied is in a snapshot"
        if index <= self.snapshot.index:
            return
        term = self.term_at(index)
        assert term is not None
        self.snapshot = SnapshotMark(index, term, self.members.at(index))
        base = max(self.base_index, index - keep)
        base_term = self.term_at(base)
        assert base_term is not None
        del self._entries[: base - self.base_index]
        self.base_index, self.base_term = base, base_term
        run = bisect_right(self._run_starts, base) - 1
        if run >= 0:  # the run that holds the base begins after it now
            del self._run_starts[:run], self._run_terms[:run]
            self._run_starts[0] = base + 1
        self._drop_empty_run()
        self.members.forget_before(base)

    def _drop_empty_run(self) -> None:
        following = self._run_starts[1] if len(self._run_starts) > 1 else self.last_index + 1
        if self._run_starts and self._run_starts[0] >= following:
            del self._run_starts[0], self._run_terms[0]

    def restore(self, mark: SnapshotMark) -> None:
        """Replace everything by a leader's snapshot. It is durable once the write that holds it is."""
        assert mark.index > self.commit_index, "a snapshot never takes anything back"
        self._not_durable_from(self.commit_index + 1)
        self.snapshot = mark
        self.base_index, self.base_term = mark.index, mark.term
        self.members = MembershipHistory(mark.index, mark.membership)
        self._entries.clear()
        self._run_terms.clear()
        self._run_starts.clear()
        self.commit_index = self.handed_index = mark.index
        self._next_to_save = mark.index + 1

    def validate(self) -> None:
        """Raises AssertionError where an invariant does not hold. Slow: for tests."""
        assert self.base_index <= self.snapshot.index <= self.handed_index <= self.commit_index <= self.last_index
        assert self.durable_index <= self.last_index
        runs: dict[int, int] = {}
        for entry in self._entries:
            runs.setdefault(entry.term, entry.index)
        assert (list(runs), list(runs.values())) == (self._run_terms, self._run_starts)
        assert [e.index for e in self._entries] == list(range(self.base_index + 1, self.last_index + 1))
