"""Applies committed entries to the image: in order, each once, a little in each turn of the event loop.

Promises: `image` is swapped by one assignment, and the deltas of a subscriber add up to it. An entry that would hold
the loop for long is decoded in a worker thread, and later ones wait. A subscriber that raises, or an entry that is no
metadata, is a bug or damage: it is reported once, and nothing more is applied.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeAlias

from headrace.base.errors import StorageFailure
from headrace.base.limits import APPLIED_PER_TURN_BYTES_MAX
from headrace.broker.cluster.quorum.pending import Proposal
from headrace.metadata.codec import decode_events
from headrace.metadata.delta import ImageDelta
from headrace.metadata.events import MetadataEvent
from headrace.metadata.image import EMPTY_IMAGE, MetadataImage
from headrace.storage.commit_log import Committed

Subscriber: TypeAlias = Callable[[ImageDelta], None]


class Applier:
    """Used on the event loop. `own` returns the proposal of an entry, where it was made here and its maker still waits.
    `on_progress` is called after entries were applied, `on_failure` once."""

    def __init__(
        self,
        *,
        own: Callable[[Committed], Proposal | None],
        on_progress: Callable[[], None],
        on_failure: Callable[[Exception], None],
    ) -> None:
        self.image: MetadataImage = EMPTY_IMAGE
        self.events_applied = 0
        """Events applied since the process began; an entry without any counts as one."""
        self._own = own
        self._on_progress = on_progress
        self._on_failure = on_failure
        self._subscribers: list[Subscriber] = []
        self._waiting: deque[Committed] = deque()
        self._decoding = False
        self._turn: asyncio.Handle | None = None
        self._failed = False

    def subscribe(self, subscriber: Subscriber) -> None:
        self._subscribers.append(subscriber)

    def begin(self, image: MetadataImage, events: int) -> None:
        """Start from this image, with one delta from the empty one."""
        self.events_applied = events
        self._publish(ImageDelta(self.image, image))

    def apply(self, entries: Iterable[Committed]) -> None:
        """Apply these committed entries."""
        self._waiting.extend(entries)
        if self._waiting and self._turn is None:
            self._go_on()

    def restore(self, image: MetadataImage) -> None:
        """Install a snapshot as one delta. Older entries that wait are skipped in their turn. Behind one that goes
        back, they are of a log that is over."""
        if image.index < self.image.index:
            self._waiting.clear()
        if not self._failed:
            try:
                self._publish(ImageDelta(self.image, image))
                self._on_progress()
            except Exception as error:
                self._fail(error)

    def stop(self) -> None:
        """Apply nothing more."""
        self._failed = True
        self._waiting.clear()
        if self._turn is not None:
            self._turn.cancel()

    def _go_on(self) -> None:
        self._turn = None
        try:
            self._apply_some()
        except Exception as error:
            self._fail(error)

    def _apply_some(self) -> None:
        size = 0
        while self._waiting and not (self._decoding or self._failed):
            entry = self._waiting[0]
            proposal = self._own(entry)
            if proposal is not None:
                self._waiting.popleft()
                self._apply_own(entry, proposal)
                continue
            size += len(entry.data)
            if len(entry.data) > APPLIED_PER_TURN_BYTES_MAX:
                self._decode_beside(entry)
            elif size > APPLIED_PER_TURN_BYTES_MAX:
                self._turn = asyncio.get_running_loop().call_soon(self._go_on)
                break
            else:
                self._waiting.popleft()
                self._apply(entry, decode_events(entry.data))
        if not self._failed:
            self._on_progress()

    def _decode_beside(self, entry: Committed) -> None:
        self._decoding = True
        work = asyncio.get_running_loop().run_in_executor(None, decode_events, entry.data)
        work.add_done_callback(lambda work: self._on_decoded(entry, work))

    def _on_decoded(self, entry: Committed, work: asyncio.Future[tuple[MetadataEvent, ...]]) -> None:
        self._decoding = False
        if work.cancelled() or self._failed:
            return
        try:
            events = work.result()
            if self._waiting and self._waiting[0] is entry:
                self._waiting.popleft()
                self._apply(entry, events)
        except Exception as error:
            self._fail(error)
            return
        self._go_on()

    def _apply(self, entry: Committed, events: tuple[MetadataEvent, ...]) -> None:
        if entry.index <= self.image.index:
            return  # a snapshot was faster
        behind = entry.index - 1 if entry.behind is None else entry.behind
        assert behind == self.image.index, "entries are applied in order"
        self.events_applied += max(1, len(events))
        self._publish(ImageDelta.of(self.image, events, index=entry.index))

    def _apply_own(self, entry: Committed, proposal: Proposal) -> None:
        """Apply an entry of this node, whose delta is known from its decision."""
        assert entry.index == self.image.index + 1, "entries are applied in order"
        delta = proposal.delta
        assert delta.after.index == entry.index, "entries are committed in the order of the decisions"
        self.events_applied += max(1, proposal.events)
        try:
            self._publish(replace(delta, before=self.image))
        except Exception as error:
            proposal.fail(StorageFailure(f"The metadata can not be changed any more: {error!r}"))
            raise
        if not proposal.done.done():
            proposal.done.set_result(None)

    def _publish(self, delta: ImageDelta) -> None:
        assert delta.before is self.image, "a delta starts at the published image"
        self.image = delta.after
        for subscriber in self._subscribers:
            subscriber(delta)

    def _fail(self, error: Exception) -> None:
        if not self._failed:
            self.stop()
            self._on_failure(error)
