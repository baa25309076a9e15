"""Bugs to plant in the shipped core, one at a time, to show that the quorum in memory finds them.

Each is what a plausible mistake in one function would do, and is taken out again at the end of the `with`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from typing import Final
from unittest.mock import patch

from headrace.base.ids import NO_LEADER
from headrace.raft.core import Raft
from headrace.raft.events import Ready
from headrace.raft.leading import Leadership
from headrace.raft.log import Log
from headrace.raft.membership import Peer
from headrace.raft.messages import AppendAnswer, Entry, HardState, Message
from headrace.raft.state import Outbox
from tests.raft.chaos import Chaos
from tests.raft.member import Disk, peer


@contextmanager
def vote_not_persisted() -> Iterator[None]:
    """The term survives a crash, for whom it voted in it does not."""
    write_next = Disk.write_next

    def forgetful(self: Disk) -> Ready:
        ready = write_next(self)
        self.hard_state = HardState(self.hard_state.term, NO_LEADER)
        return ready

    with patch.object(Disk, "write_next", forgetful):
        yield


@contextmanager
def answered_before_persisted() -> Iterator[None]:
    """An append is answered when it is in memory; the disk comes when it comes."""

    def hasty(self: Outbox, message: Message) -> None:
        (self.send if isinstance(message, AppendAnswer) else self.send_after_state)(message)

    with patch.object(Outbox, "send_after_all", hasty):
        yield


@contextmanager
def older_term_committed_by_count() -> Iterator[None]:
    """An entry on a quorum is committed, whichever term it is of (Raft paper, figure 8)."""

    def may_commit(self: Leadership, reached: int) -> bool:
        return reached > self._state.log.commit_index

    with patch.object(Leadership, "_may_commit", may_commit):
        yield


@contextmanager
def stale_acknowledgement_counts() -> Iterator[None]:
    """An acknowledgement is taken for what it says, whichever leadership it was given to."""
    on_stale = Raft._on_stale

    def believe(self: Raft, message: Message) -> None:
        if isinstance(self._role, Leadership) and isinstance(message, AppendAnswer):
            self._role.on_append_answer(message)
        else:
            on_stale(self, message)

    with patch.object(Raft, "_on_stale", believe):
        yield


@contextmanager
def two_changes_pending() -> Iterator[None]:
    """A change of the membership does not wait for the one before it."""
    with patch.object(Leadership, "change_is_pending", False):
        yield


@contextmanager
def change_before_own_commit() -> Iterator[None]:
    """A leader changes the membership before it has committed anything (Ongaro's correction of 2015)."""
    with patch.object(Leadership, "_knows_commits", True):
        yield


@contextmanager
def wiped_voter_votes() -> Iterator[None]:
    """A member is known by its broker's id alone: who comes back with an empty disk is still the voter it was."""

    def same_peer(self: Chaos, old: Peer) -> Peer:
        return peer(old.node)

    with patch.object(Chaos, "_wiped", same_peer):
        yield


@contextmanager
def truncates_without_conflict() -> Iterator[None]:
    """A late message with fewer entries cuts off those after it."""
    merge = Log.merge

    def cutting(self: Log, entries: Sequence[Entry]) -> None:
        merge(self, entries)
        if entries and self.last_index > entries[-1].index >= self.commit_index:
            self._truncate(entries[-1].index + 1)

    with patch.object(Log, "merge", cutting):
        yield


@contextmanager
def own_write_counted_early() -> Iterator[None]:
    """A leader counts itself for what it has only in memory."""

    class Hasty:
        def __get__(self, log: Log, _: type[Log]) -> int:
            return log.last_index

        def __set__(self, log: Log, value: int) -> None:
            pass

    with patch.object(Log, "durable_index", Hasty(), create=True):
        yield


STEPS: Final = 4_000
SEEDS_MAX: Final = 500

PLANTS: Final[dict[str, Callable[[], AbstractContextManager[None]]]] = {
    "vote-not-persisted": vote_not_persisted,
    "answered-before-persisted": answered_before_persisted,
    "own-write-counted-early": own_write_counted_early,
    "older-term-committed-by-count": older_term_committed_by_count,
    "stale-acknowledgement-counts": stale_acknowledgement_counts,
    "truncates-without-conflict": truncates_without_conflict,
    "two-changes-pending": two_changes_pending,
    "change-before-own-commit": change_before_own_commit,
    "wiped-voter-votes": wiped_voter_votes,
}


def found_by(plant: Callable[[], AbstractContextManager[None]], seed: int, *, paper_only: bool = False) -> str | None:
    """This seed's verdict on the planted bug: a checker's sentence, or the core's own assertion."""
    with plant():
        try:
            Chaos(seed, paper_only=paper_only).run(STEPS)
        except AssertionError as error:
            return str(error)
    return None


def main() -> None:
    """The table of decision 0016: the first seed that finds each, with all checkers and with the paper's alone."""
    for paper_only in (False, True):
        for name, plant in PLANTS.items():
            for seed in count():
                if (story := found_by(plant, seed, paper_only=paper_only)) is not None or seed >= SEEDS_MAX:
                    print("paper" if paper_only else "all", name, seed, story, flush=True)
                    break


if __name__ == "__main__":
    main()
