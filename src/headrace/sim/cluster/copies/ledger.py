"""The known facts about a table (`copies.table`): its acknowledged records, and those that may be lost.

An unclean election loses acknowledged records that are not in history yet, because history wins. So does the loss of a
log's directory without another copy. If the log of the new leader is as long as history and differs from it, it is kept
(decision 0033). Then records of brokers below the end of history are not judged. Retention, or a request, may delete
all records below an offset, and none above it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple


class Written(NamedTuple):
    """A record; its offset is -1 where it is unknown."""

    offset: int
    key: bytes
    value: bytes | None


class Ledger:
    """The ledger, as the module says. `accuse` is called for a broken promise."""

    def __init__(self, accuse: Callable[[str, str], object]) -> None:
        self._accuse = accuse
        self._acked: dict[int, Written] = {}
        """Acknowledged records that must not be lost, in order of arrival."""
        self._doubted: list[Written] = []
        """Records that were never acknowledged, or that were and may be lost."""
        self._numbers = 0
        self.losses = 0
        """Times that records may have been lost."""
        self.parted_below = 0
        """Below this offset brokers may have other records than history."""
        self.outruns = False
        """Whether logs may have been compacted above the end of history. Then a replacing record may be lost, while
        only the store has the replaced one, as in Kafka."""
        self.gone_below = 0
        """Records below this offset may have been deleted."""
        self.reads = self.lacking = 0
        """Reads that were judged, and offsets that they lacked."""

    def acked(self, written: Written) -> None:
        self._numbers += 1
        self._acked[self._numbers] = written

    def doubt(self, written: Written) -> None:
        self._doubted.append(written)

    def now(self) -> dict[int, Written]:
        """The acknowledged records, for a caller that is about to read."""
        return dict(self._acked)

    @property
    def end(self) -> int:
        """The end of the acknowledged records."""
        return max((each.offset + 1 for each in self._acked.values()), default=0)

    def lose(self, frontier: int, *, parted: bool) -> None:
        """Records outside history may be lost now. `parted`: the kept log differs from history."""
        self.losses += 1
        self.parted_below = frontier if parted else 0
        for number in [number for number, each in self._acked.items() if each.offset >= frontier]:
            self._doubted.append(self._acked.pop(number))

    def judge(
        self, what: str, before: Mapping[int, Written], found: Sequence[Written], *, floor: int, whole: bool
    ) -> None:
        """Judge a read. `before` is `now` from before the read. Records below `floor` are not judged. `whole`: deleted
        keys are judged, too."""
        acked = [each for number, each in before.items() if number in self._acked]
        self.reads += 1
        self.lacking += max(0, len(acked) - len(found))
        last = {each.key: each for each in found}
        known = {each.offset: each for each in self._acked.values()}
        for each in found:
            if each.offset >= floor and known.get(each.offset, each) != each:
                text = f"{what} has {named([each])}, acknowledged is {named([known[each.offset]])}"
                self._accuse("table-differs", text)
        due = {each.key: each for each in sorted(acked, key=lambda each: each.offset)}
        for key, wanted in due.items():
            there = last.get(key)
            if wanted.offset < floor or (there is not None and there.offset >= wanted.offset):
                continue
            if whole and wanted.value is None and there is not None and there.value is not None:
                text = f"{what} has {named([there])}, deleted at {wanted.offset}"
                self._accuse("deleted-key-back", text)
            if wanted.value is not None and wanted.offset >= self.gone_below and not self._may_be_deleted(wanted):
                text = f"{what} has {'nothing' if there is None else there.offset} of {key!r}"
                self._accuse("last-value-lost", f"{text}, whose last record is {wanted.offset}")

    def compare(self, log: Sequence[Written], stored: Sequence[Written]) -> None:
        """Check that log and store agree at rest, except for records that may have been deleted."""
        if self.parted_below:
            return
        unsure = {each.key for each in self._doubted} if self.losses and self.outruns else set()
        one, other = (
            {key: value for key, value in self._table(found).items() if key not in unsure} for found in (log, stored)
        )
        if one != other:
            keys = {key for key in one.keys() | other.keys() if one.get(key) != other.get(key)}
            ours, theirs = (named([each for each in found if each.key in keys]) for found in (log, stored))
            text = f"the log has {ours or 'nothing'}, the store with what is behind it {theirs or 'nothing'}"
            self._accuse("table-apart", text)

    def _table(self, found: Sequence[Written]) -> dict[bytes, bytes]:
        last = {each.key: each for each in found}
        left = (each for each in last.values() if each.offset >= self.gone_below)
        return {each.key: each.value for each in left if each.value is not None}

    def _may_be_deleted(self, wanted: Written) -> bool:
        """Whether a later or doubtful tombstone may have deleted it, or a lost record replaced it."""
        later = (each for each in self._acked.values() if each.offset > wanted.offset)
        replaced = self.losses > 0 and self.outruns
        of_key = (each for each in (*later, *self._doubted) if each.key == wanted.key)
        return any(each.value is None or (replaced and each in self._doubted) for each in of_key)


def named(found: Sequence[Written]) -> str:
    return ", ".join(f"{each.key!r} {(each.value or b'deleted')[:8]!r} at {each.offset}" for each in found)
