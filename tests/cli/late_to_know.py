"""The brokers of `headrace up --nodes 3`, where broker 3 serves first, and is late to know that the others do.

It replays nothing more once it serves, until somebody waits for that. It never leads the quorum, as nothing could be
changed then. It is a process of its own: `late_to_know broker --id 3 ...` runs the command with these arguments.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable
from typing import Any, Final

from headrace.base import limits

LATE: Final = "3"
IS_LATE: Final = sys.argv[sys.argv.index("--id") + 1] == LATE
if IS_LATE:  # before it is imported: it stands for no election by its own clock
    setattr(limits, "RAFT_ELECTION_TICKS", 1_000_000)  # noqa: B010

from headrace.broker.cluster.driver import MetadataDriver  # noqa: E402
from headrace.broker.cluster.membership import Membership  # noqa: E402
from headrace.broker.cluster.quorum.applying import Applier  # noqa: E402
from headrace.broker.cluster.quorum.succession import Succession  # noqa: E402
from headrace.cli.main import main  # noqa: E402
from headrace.storage.commit_log import Committed  # noqa: E402

become_ready, apply, reached = Membership.become_ready, Applier.apply, MetadataDriver.reached


def be_late() -> None:
    """Hold back what is committed once this broker serves, until it is waited for."""
    held: list[tuple[Applier, Iterable[Committed]]] = []
    serves = False

    async def noted(self: Membership) -> None:
        nonlocal serves
        await become_ready(self)
        serves = True

    def hold(self: Applier, entries: Iterable[Committed]) -> None:
        if serves:
            held.append((self, entries))
        else:
            apply(self, entries)

    async def let_go(self: MetadataDriver, index: int) -> None:
        nonlocal serves
        serves = False
        while held:
            apply(*held.pop(0))
        await reached(self, index)

    put(Succession, "begin", lambda *_: None)
    put(Membership, "become_ready", noted)
    put(Applier, "apply", hold)
    put(MetadataDriver, "reached", let_go)


def let_it_go_first() -> None:
    """Become ready after the late broker."""

    async def waited(self: Membership) -> None:
        metadata, changed = self._metadata, asyncio.Event()
        metadata.subscribe(lambda _: changed.set())
        while LATE not in {str(broker.id) for broker in metadata.image.live_brokers()}:
            changed.clear()
            await changed.wait()
        await become_ready(self)

    put(Membership, "become_ready", waited)


def put(into: type[object], name: str, work: Any) -> None:
    setattr(into, name, work)


(be_late if IS_LATE else let_it_go_first)()
sys.exit(main(sys.argv[1:]))
