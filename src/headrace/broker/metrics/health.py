"""Whether this broker lives, and whether it is ready for clients: for whoever restarts it, or sends clients to it.

Promises:
- An answer at all says that the event loop turns; nothing else is asked for `/livez`.
- A broker is ready where it is registered and unfenced, and has opened its partitions. The controller has answered it
  within a session, and it has replayed all that was decided by that answer.
- Reading it costs nothing that grows with the number of partitions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from headrace.broker.cluster.membership import Membership
from headrace.broker.partitions.condition import Condition
from headrace.broker.partitions.partitions import Partitions
from headrace.wire.ailments import IN_REDIS

LIVE: Final = "/livez"
READY: Final = "/readyz"
HEALTHY: Final = "/healthz"


class Health(NamedTuple):
    """The rooms that know."""

    membership: Membership
    partitions: Partitions
    condition: Condition

    def reasons(self, path: str) -> Sequence[str] | None:
        """Return why not, one sentence each; empty: all is well. None: the path is of no such question."""
        asked: Mapping[str, Sequence[str]] = {LIVE: ()}
        if path in (READY, HEALTHY):
            asked = {READY: self._unready(), HEALTHY: [*self._unready(), *self._unwell()]}
        return asked.get(path)

    def _unready(self) -> list[str]:
        found = []
        if not self.membership.is_unfenced:
            found.append("It is not registered, or fenced: the controller does not let it serve yet.")
        elif not self.membership.is_heard:
            found.append("The controller has not answered it for a session: see 'headrace quorum'.")
        if self.partitions.work.is_busy:
            found.append("It is opening or closing partitions.")
        return found

    def _unwell(self) -> list[str]:
        states = [state for state in self.condition.states if state.kind != IN_REDIS]
        return [f"{state.kind}: {state.text}; {state.todo}." for state in states]
