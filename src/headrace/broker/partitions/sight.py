"""How far readers may see a copy of a partition: as far as its leader has reported records to be committed.

Promises: readers see nothing here before all that the first report covers is flushed. This broker has then shown no
more in this epoch, even from a disk that it has lost. Loop-only.
"""

from __future__ import annotations

from typing import Final

from headrace.base.ids import Offset

NOWHERE: Final = Offset(-1)


class Sight:
    """The sight of one copy."""

    __slots__ = ("_shown", "_shown_bytes", "is_level", "reported")

    def __init__(self) -> None:
        self.reported: Offset | None = None
        """The high watermark that the leader reported for the copy's present position; None: not yet, or that position
        is lost."""
        self.is_level = False
        """Everything below the first such report has been flushed here since this position was given."""
        self._shown = NOWHERE
        """The end of the records that waiting readers have heard of."""
        self._shown_bytes = 0
        """The appended bytes when that end last rose."""

    def on_report(self, high_watermark: Offset) -> None:
        """Note a high watermark of the leader. It never falls while the position is held."""
        self.reported = high_watermark if self.reported is None else max(self.reported, high_watermark)

    def end(self, log_start: Offset, flushed_end: Offset) -> Offset:
        """Return the end of the records that readers may see."""
        return log_start if self.reported is None else min(self.reported, flushed_end)

    def show(self, flushed_end: Offset, appended_bytes: int) -> int:
        """Return about how many more bytes readers may see than when this was last asked; 0: none."""
        if self.reported is None:
            return 0
        self.is_level = self.is_level or flushed_end >= self.reported
        if not self.is_level or (end := min(self.reported, flushed_end)) <= self._shown:
            return 0
        self._shown = end
        more, self._shown_bytes = appended_bytes - self._shown_bytes, appended_bytes
        return max(more, 1)

    def lose(self) -> bool:
        """Forget the position. Returns whether readers could see anything at it."""
        was_level, self.reported = self.is_level, None
        self.is_level, self._shown = False, NOWHERE
        return was_level
