"""The controller's decisions that are not yet committed: its view of the state, and the callers that wait.

Invariants: it belongs to one leadership. `image` is the committed image and all proposals after it, in the order of the
log. Its index is that of the log's last entry, those included that are about to be proposed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from headrace.base.values import Value
from headrace.metadata.delta import ImageDelta
from headrace.metadata.events import MetadataEvent
from headrace.metadata.image import MetadataImage


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Proposal(Value):
    """One entry that is not yet committed: its changes, and the future that is done once it is."""

    delta: ImageDelta
    events: int
    done: asyncio.Future[None]

    @property
    def index(self) -> int:
        return self.delta.after.index

    def fail(self, error: Exception) -> None:
        if not self.done.done():
            self.done.set_exception(error)
            self.done.exception()  # not every submitter is still there to look


class Pending:
    """See the module."""

    def __init__(self, image: MetadataImage, term: int) -> None:
        self.image = image
        self.term = term
        self._proposals: deque[Proposal] = deque()
        self._unproposed: list[bytes] = []
        """The data of the last of `_proposals`: those that the core has not got yet."""

    def decide(self, events: tuple[MetadataEvent, ...], data: bytes) -> asyncio.Future[None]:
        """Add these events as the next entry."""
        self._unproposed.append(data)
        return self._add(events)

    def note_membership(self) -> asyncio.Future[None]:
        """Add an entry of the log that changes nothing here. Every earlier decision is in the log."""
        assert not self._unproposed, "in the order of the log"
        return self._add(())

    def _add(self, events: tuple[MetadataEvent, ...]) -> asyncio.Future[None]:
        delta = ImageDelta.of(self.image, events, index=self.image.index + 1)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._proposals.append(Proposal(delta, len(events), done))
        self.image = delta.after
        return done

    @property
    def last_done(self) -> asyncio.Future[None] | None:
        """The future to wait for before a result that rests on `image` may be told."""
        return self._proposals[-1].done if self._proposals else None

    def take_unproposed(self) -> tuple[bytes, ...]:
        data, self._unproposed = tuple(self._unproposed), []
        return data

    def take(self, index: int) -> Proposal | None:
        """Return the proposal of this committed entry."""
        if self._proposals and self._proposals[0].index == index:
            return self._proposals.popleft()
        return None

    def drop_last(self, count: int, error: Callable[[], Exception]) -> None:
        """Drop the last proposals, which were refused, and give their callers the error."""
        for _ in range(count):
            proposal = self._proposals.pop()
            self.image = proposal.delta.before
            proposal.fail(error())

    def drop_all(self, error: Callable[[], Exception], unproposed: Callable[[], Exception] | None = None) -> None:
        """Drop all proposals: the leadership is over, or the disk has failed. `unproposed`: the error for proposals
        that the core has not got; None: the same error."""
        if unproposed is not None:
            self.drop_last(len(self.take_unproposed()), unproposed)
        while self._proposals:
            self._proposals.popleft().fail(error())
