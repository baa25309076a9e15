"""Lets voters stand for election one after the other, where no leader is to be waited for.

That is so after a start, and once the leader's process is plainly dead. The voters take turns, so that no two stand at
a time. An elected leader, or a later term, ends it. The core's own random timeouts stand behind it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headrace.base.limits import SUCCESSION_ATTEMPTS_MAX, SUCCESSION_STEP_MS
from headrace.raft.core import Raft
from headrace.raft.membership import Peer


class Succession:
    """`campaign` asks the core to stand."""

    def __init__(self, campaign: Callable[[], None]) -> None:
        self._campaign = campaign
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, core: Raft, dead: Peer | None) -> None:
        """Begin the turns. `dead`: the leader of this term that died."""
        self.stop()
        heirs = sorted(core.membership.voters - {dead})
        if core.me in heirs:
            self._stand(core, dead, core.term, heirs.index(core.me), len(heirs))

    def _stand(self, core: Raft, dead: Peer | None, term: int, steps: int, heirs: int) -> None:
        """Stand after `steps` steps, and then again each time that all others had their turn."""
        if steps >= SUCCESSION_ATTEMPTS_MAX * heirs:
            return

        def turn() -> None:
            self._timer = None
            if core.term != term or core.leads or core.leader not in (None, dead):
                return
            self._campaign()
            self._stand(core, dead, term, steps + heirs, heirs)

        if steps == 0:
            turn()
        else:
            wait = (steps if steps < heirs else heirs) * SUCCESSION_STEP_MS / 1000
            self._timer = asyncio.get_running_loop().call_later(wait, turn)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
