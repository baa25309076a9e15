"""The work of `headrace quorum recover` and `rejoin` on a stopped broker's directory, and their output."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from headrace.base.addresses import parse_bootstrap
from headrace.base.errors import UsageError
from headrace.broker.cluster.lost_quorum import Recovered, Remains, check_lost, examine, go_on, longest, probe
from headrace.broker.home import identity, lineage
from headrace.broker.system import SystemClock, system_random
from headrace.cli.command_config import security
from headrace.net.loops import run
from headrace.storage.disk import LocalDisk


class Told(NamedTuple):
    """The logs that were found, and the result where the recovery was carried out."""

    best: Remains
    remains: Sequence[Remains]
    done: Recovered | None

    @property
    def fields(self) -> dict[str, Any]:
        return {
            "broker": self.best.identity.broker_id,
            "data": str(self.best.data),
            "voters": sorted(peer.node for peer in self.best.membership.voters),
            "logs": [
                {"broker": one.identity.broker_id, "data": str(one.data), "term": one.term, "index": one.index}
                for one in self.remains
            ],
            "done": self.done is not None,
            "lineage": None if self.done is None else str(self.done.lineage),
            "kept": None if self.done is None else str(self.done.kept),
            "left": None if self.done is None else {str(data): why for data, why in self.done.left.items()},
            "offline_partitions": None if self.done is None else self.done.offline,
        }

    def sentences(self) -> Iterator[str]:
        best, done = self.best, self.done
        voters = ", ".join(map(str, sorted(peer.node for peer in best.membership.voters)))
        for one in self.remains:
            end = f"term {one.term}, entry {one.index}"
            yield f"broker {one.identity.broker_id} ({one.data}): its log ends with {end}"
        broker = best.identity.broker_id
        yield f"broker {broker} {'votes' if done else 'would vote'} alone, in place of the voters {voters}"
        if done is None:
            yield "what only the lost voters knew is given up: topics, elections, and records that nobody else holds"
            yield "a voter that is only cut off goes on to decide: see first that each is stopped for good"
            return
        yield f"the metadata of before lies in {done.kept}"
        for data, why in done.left.items():
            yield f"{data} could not be changed ({why.rstrip('.')}): its broker is told, with --join, how it comes back"
        yield f"start broker {broker} first, then the others with --join; 'headrace doctor' says what is lacking"
        if done.offline:
            yield (
                f"{done.offline} partitions have no in-sync copy on these brokers: where no broker brings one back, "
                "'headrace topic elect --unclean' or 'headrace durable recover' goes on without"
            )


@contextmanager
def recovered(directories: Sequence[Path], bootstrap: str, *, execute: bool) -> Iterator[Told]:
    """Examine the directories, and recover with `execute`. Claims all of them while the block runs. Raises UsageError,
    CorruptData, StorageFailure.
    """
    disk = LocalDisk()
    if len(set(directories)) != len(directories):
        raise UsageError("One directory is named twice: name each once.")
    with ExitStack() as stack:
        for data in directories:
            identity.read(disk, data)  # before anything is made there
            stack.callback(identity.claim(disk, data).release)
        remains = [examine(disk, data) for data in directories]
        best = longest(remains)
        check_lost(best, remains, *run(probe(best, parse_bootstrap(bootstrap), security())))
        done = None
        if execute:
            done = go_on(disk, best, remains, random=system_random(), now_ms=SystemClock().now_ms())
        yield Told(best, remains, done)


def rejoined(data: Path) -> Path | None:
    """As `lineage.rejoin`."""
    disk = LocalDisk()
    identity.read(disk, data)
    lock = identity.claim(disk, data)
    try:
        return lineage.rejoin(disk, data)
    finally:
        lock.release()
