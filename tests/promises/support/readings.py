"""Reports of the members of one group about their work, and their judge.

Every record is read, and none is read again once a commit beyond it was acknowledged. The oracle is on the clients'
side only: their own log of processed records, and what the producer was told. Times are nanoseconds of the machine's
one clock, so that the logs of several processes can be merged.
"""

from __future__ import annotations

import threading
import zlib
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tests.promises.support.load import PartitionLogs

DEADLINE_S: Final = 240.0
"""Members are Java clients, and several processes of them begin at a time. In the short tier the test ends before."""


@dataclass(slots=True)
class Batch:
    """Some records of a partition that one member processed at once. Both offsets inclusive."""

    at_ns: int
    reader: str
    generation: int
    first: int
    last: int
    crc: int
    tenure: int
    """How often its reader had been assigned the partition by then."""
    kept: bool = False
    """A commit beyond it was answered with success to the reader, before it lost the partition."""


class Verdict(NamedTuple):
    """The counts of a run without faults."""

    records: int
    again: int
    """Records that were read more than once, all of them not committed."""
    generations: int
    refused: int
    """Commits that were."""


@dataclass(slots=True)
class Readings:
    """Of one group. Lines come in the order of each process, from the threads that read them."""

    partitions: int
    one_reader: bool
    """In each generation a partition has one reader: the classic protocol's rule. An epoch of the new one has not."""
    batches: dict[int, list[Batch]] = field(default_factory=lambda: defaultdict(list))
    """By partition."""
    committed: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    """The highest by partition."""
    owned: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    """By member that lives, as its client says."""
    generation: dict[str, int] = field(default_factory=dict)
    """Of each such member's last batch."""
    failures: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    assignments: int = 0
    """Assignments with new partitions. Others only say that a member has given partitions up. Their lines may come
    after those of the next owner where the two come from different processes."""
    closed: int = 0
    read: int = 0
    _tenures: dict[tuple[str, int], int] = field(default_factory=lambda: defaultdict(int))
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def on_line(self, process: str, line: str) -> None:
        """One whole line of a process (`Members` in tests/interop/java)."""
        at_ns, number, what, *words = line.split()
        reader = f"{process}.{number}"
        with self._changed:
            match what:
                case "read":
                    self._on_read(int(at_ns), reader, *map(int, words))
                case "committed":
                    self._on_committed(reader, *map(int, words))
                case "assigned":
                    self.assignments += bool(words)
                    self.owned[reader] |= {*map(int, words)}
                    for partition in words:
                        self._tenures[reader, int(partition)] += 1
                case "revoked" | "lost":
                    self.owned[reader] -= {*map(int, words)}
                case "refused":
                    self.refused.append(line)
                case "closed":
                    self.closed += 1
                    self._on_gone(reader)
                case _:
                    self.failures.append(f"{process}: {line}")
            self._changed.notify_all()

    def _on_read(
        self, at_ns: int, reader: str, generation: int, partition: int, first: int, last: int, crc: int
    ) -> None:
        tenure = self._tenures[reader, partition]
        self.batches[partition].append(Batch(at_ns, reader, generation, first, last, crc, tenure))
        self.generation[reader] = generation
        self.read += last - first + 1

    def _on_committed(self, reader: str, partition: int, end: int) -> None:
        tenure = self._tenures[reader, partition]
        for batch in reversed(self.batches[partition]):
            if batch.reader == reader:
                if batch.tenure != tenure or batch.kept:
                    break
                batch.kept = batch.last < end
        self.committed[partition] = max(self.committed[partition], end)

    def on_killed(self, process: str) -> None:
        """Once all of its lines have come."""
        with self._changed:
            for reader in [*self.owned, *self.generation]:
                if reader.startswith(f"{process}."):
                    self._on_gone(reader)

    def _on_gone(self, reader: str) -> None:
        self.owned.pop(reader, None)
        self.generation.pop(reader, None)

    # waiting

    def wait_for(self, holds: Callable[[], bool], what: str) -> None:
        """Until this is so, or a member has failed. Fails after DEADLINE_S."""
        with self._changed:
            done = self._changed.wait_for(lambda: bool(self.failures) or holds(), DEADLINE_S)
            assert not self.failures, self.failures[:3]
            assert done, f"{what}: not within {DEADLINE_S:.0f} s; {self._state()}"

    def wait_for_records(self, more: int) -> None:
        """Until so many more records than now are read."""
        wanted = self.read + more
        self.wait_for(lambda: self.read >= wanted, f"{more} more records")

    def wait_until_shared(self, members: int) -> int:
        """Until so many members, and no others, read everything in one generation; its number."""
        self.wait_for(lambda: self._is_shared(members), f"{members} members share {self.partitions} partitions")
        return max(self.generation.values())

    def _is_shared(self, members: int) -> bool:
        shares = [share for share in self.owned.values() if share]
        return (
            len(shares) == members == len(self.generation)
            and len(set(self.generation.values())) == 1
            and sum(map(len, shares)) == self.partitions == len(set().union(*shares))
        )

    def wait_until_committed(self, ends: PartitionLogs) -> None:
        """Until all that was acknowledged is."""
        self.wait_for(
            lambda: all(self.committed[partition] >= len(log) for partition, log in ends.items()),
            "everything is committed",
        )

    def _state(self) -> str:
        generations = sorted(set(self.generation.values()))
        return f"{self.read} read, {len(self.owned)} members, generations {generations}, {self.refused[-2:]}"

    # judging

    def check(self, log: PartitionLogs) -> Verdict:
        """Against what was acknowledged, which is all that was sent."""
        assert not self.failures, self.failures[:3]
        again = 0
        for partition in range(self.partitions):
            batches = sorted(self.batches[partition], key=lambda batch: batch.at_ns)
            again += _check_partition(partition, batches, log[partition])
            if self.one_reader:
                _check_one_reader(partition, batches)
        found = {batch.generation for batches in self.batches.values() for batch in batches}
        return Verdict(sum(map(len, log.values())), again, len(found), len(self.refused))


def _check_one_reader(partition: int, batches: list[Batch]) -> None:
    """By number: a static member goes on in the generation of its former life."""
    readers: dict[int, str] = {}
    for batch in batches:
        number = batch.reader.partition(".")[2]
        first = readers.setdefault(batch.generation, number)
        assert first == number, f"{partition} has two readers in one generation, {first} and {batch}"


def _check_partition(partition: int, batches: list[Batch], log: dict[int, bytes]) -> int:
    """How many of its records were read again."""
    end = floor = again = 0
    """All below `end` is read; below `floor` it is kept, and nobody may read it any more."""
    nexts: dict[tuple[str, int], int] = {}
    for batch in batches:
        where = f"partition {partition}: {batch}"
        assert batch.first <= end, f"{end} to {batch.first - 1} left out; {where}"
        assert batch.first >= floor, f"read again, and committed up to {floor}; {where}"
        tenure = (batch.reader, batch.tenure)
        assert nexts.get(tenure, batch.first) == batch.first, f"not where it was: {nexts[tenure]}; {where}"
        assert zlib.crc32(b"".join(log[at] for at in range(batch.first, batch.last + 1))) == batch.crc, where
        nexts[tenure] = batch.last + 1
        again += max(0, min(end, batch.last + 1) - batch.first)
        end = max(end, batch.last + 1)
        if batch.kept:
            floor = max(floor, batch.last + 1)
    assert end == len(log), f"partition {partition}: {end} to {len(log) - 1} never read"
    return again
