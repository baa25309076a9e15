"""How a driver ends one batch of prepared transactions, as a core: an event in, the next state and effect out.

Promises, whichever drivers and tasks die or come late, at any step:

- A batch is committed by one durable decision, which names its transactions. No other decision about it follows.
- A transaction is committed only if a durable decision names it. A named one is never aborted.
- A transaction is aborted only if it can never be named. Its batch is decided without it, or its run has durably
  abandoned the batch.

Never does IO and never reads a clock. `headrace.spark.write.exactly.driving` carries the effects out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple, TypeAlias

from headrace.net.client.two_phase import Prepared
from headrace.spark.write.exactly.names import Abandoned, Decision, TaskName

# --- events: the outcomes of effects ---


class Claimed(NamedTuple):
    """The claim is written, and no other driver of the query can decide any more."""

    newest: Decision | None
    """The last decision before it."""
    is_abandoned: bool = False
    """Whether this run has abandoned this batch before it."""
    is_finished: bool = False
    """Whether all transactions of the last decision are known to be committed."""


class Listed(NamedTuple):
    """Open transactions of the query's tasks; a coordinator that is loading may have kept some back."""

    open: frozenset[str]


class Checked(NamedTuple):
    lost: tuple[str, ...]
    """Those that are not open."""


class Settled(NamedTuple):
    """The claim was confirmed or dropped, as was asked."""


class Committed(NamedTuple):
    lost: tuple[str, ...]
    """Those that somebody else has aborted."""
    unknown: tuple[str, ...] = ()
    """Those that were ended, and nobody knows how."""


class Noted(NamedTuple):
    """It is durable that the decision is carried out."""


class Aborted(NamedTuple):
    """All are aborted."""


Event: TypeAlias = Claimed | Listed | Checked | Settled | Committed | Noted | Aborted

# --- effects ---


class Claim(NamedTuple):
    """Fence the query's other drivers, and write this where it does not count before `Confirm`."""

    claim: Decision | Abandoned


class ListOpen(NamedTuple):
    """List the open transactions of the query's tasks."""


class CheckOpen(NamedTuple):
    """Ask their coordinators for these."""

    names: tuple[str, ...]


class Confirm(NamedTuple):
    """Make the claim count. This is the moment at which the batch is committed, or abandoned by its run."""


class Drop(NamedTuple):
    """Take the claim back."""


class CommitAll(NamedTuple):
    transactions: tuple[Prepared, ...]


class Note(NamedTuple):
    """Make it durable that all transactions of this decision are committed: coordinators will forget that."""

    followed: Decision


class AbortAll(NamedTuple):
    names: tuple[str, ...]


class Done(NamedTuple):
    """The end."""

    followed: Decision | None
    """The decision that was carried out; None: the batch is not committed."""
    lost: tuple[str, ...]
    """Transactions of the batch that somebody else has ended: not committed, nothing of it is, or its rows are lost."""
    unknown: tuple[str, ...] = ()
    """Transactions of the decision whose rows may be there or not: nobody can tell any more how they ended."""


Effect: TypeAlias = Claim | ListOpen | CheckOpen | Confirm | Drop | CommitAll | Note | AbortAll | Done


class Phase(Enum):
    CLAIMING = 1
    LISTING = 2
    CHECKING = 3
    CONFIRMING = 4
    DROPPING = 5
    COMMITTING = 6
    NOTING = 7
    ABORTING = 8
    DONE = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The end of one batch in one run. `winners` None: the run gives the batch up."""

    batch: int
    run: str
    winners: tuple[Prepared, ...] | None
    phase: Phase = Phase.CLAIMING
    newest: Decision | None = None
    """The last decision before this one's."""
    is_abandoned: bool = False
    is_finished: bool = False
    open: frozenset[str] = frozenset()
    followed: Decision | None = None
    lost: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()

    @property
    def own(self) -> Decision | None:
        """The decision that this driver asks for."""
        return None if self.winners is None else Decision(self.batch, self.run, self.winners)

    def begin(self) -> Effect:
        return Claim(self.own or Abandoned(self.batch, self.run))

    def step(self, event: Event) -> tuple[Ending, Effect]:
        match event, self.phase:
            case Claimed(newest, is_abandoned, is_finished), Phase.CLAIMING:
                claimed = replace(self, newest=newest, is_abandoned=is_abandoned, is_finished=is_finished)
                return replace(claimed, phase=Phase.LISTING), ListOpen()
            case Listed(open_), Phase.LISTING:
                return replace(self, open=open_)._listed()
            case Checked(lost), Phase.CHECKING:
                return replace(self, lost=lost)._settled_on(commit=not lost)
            case Settled(), Phase.CONFIRMING:
                return replace(self, followed=self.own)._committing()
            case Settled(), Phase.DROPPING:
                return replace(self, followed=self.newest if self._is_decided else None)._committing()
            case Committed(lost, unknown), Phase.COMMITTING:
                return replace(self, lost=self.lost + lost, unknown=unknown)._committed()
            case Noted(), Phase.NOTING:
                return self._aborting()
            case Aborted(), Phase.ABORTING:
                return replace(self, phase=Phase.DONE), Done(self.followed, self.lost, self.unknown)
            case _:
                raise AssertionError(f"{event} in {self.phase}")

    def _listed(self) -> tuple[Ending, Effect]:
        """A decision about this batch, or a later one, stands: it is followed. Else all winners must be open still."""
        if self._is_decided:
            return self._settled_on(commit=False)
        if self.winners is None:
            return self._settled_on(commit=True)
        if self.is_abandoned:
            lost = tuple(each.name for each in self.winners)
            return replace(self, lost=lost)._settled_on(commit=False)
        missing = tuple(each.name for each in self.winners if each.name not in self.open)
        if missing:
            return replace(self, phase=Phase.CHECKING), CheckOpen(missing)
        return self._settled_on(commit=True)

    @property
    def _is_decided(self) -> bool:
        return self.newest is not None and self.newest.batch >= self.batch

    def _settled_on(self, *, commit: bool) -> tuple[Ending, Effect]:
        if commit:
            return replace(self, phase=Phase.CONFIRMING), Confirm()
        return replace(self, phase=Phase.DROPPING), Drop()

    def _committing(self) -> tuple[Ending, Effect]:
        """Commit what the decision names, and what the one before has left open."""
        followed = () if self.followed is None or self._is_noted else self.followed.winners
        before = () if self.newest is None or self.newest is self.followed else self.newest.winners
        left = tuple(each for each in before if each.name in self.open)
        return replace(self, phase=Phase.COMMITTING), CommitAll(left + followed)

    @property
    def _is_noted(self) -> bool:
        """Whether the decision that is followed was carried out before."""
        return self.is_finished and self.followed is self.newest

    def _committed(self) -> tuple[Ending, Effect]:
        if self.followed is None or self._is_noted or self.lost or self.unknown:
            return self._aborting()
        return replace(self, phase=Phase.NOTING), Note(self.followed)

    def _aborting(self) -> tuple[Ending, Effect]:
        return replace(self, phase=Phase.ABORTING), AbortAll(tuple(sorted(self._rubbish())))

    def _rubbish(self) -> Iterable[str]:
        """Open transactions that no decision names or will ever name."""
        named = {
            each.name for decision in (self.newest, self.followed) if decision is not None for each in decision.winners
        }
        for text in self.open - named:
            name = TaskName.parse(text)
            assert name is not None, text
            if self.followed is not None:
                if name.batch <= self.followed.batch:
                    yield text
            elif (name.run, name.batch) == (self.run, self.batch):
                yield text
