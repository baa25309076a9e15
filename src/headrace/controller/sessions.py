"""The sessions of brokers: which are to be fenced for silence, and which at once because they are plainly dead.

They are in the memory of the active controller alone. A new controller gives every broker a full session, except the
controller that it replaces, which it has heard itself.

Promises:
- No broker is fenced for a time in which this node itself was not at work.
- A broker that was fenced at once twice in a minute waits out its session.
- A broker's present incarnation is never taken for an earlier one.

Sans-IO: the caller gives the time, in monotonic seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from headrace.base.ids import BrokerEpoch, BrokerId
from headrace.metadata.image import MetadataImage

HASTY_FENCINGS_MAX: Final = 2
"""Times in HASTY_WINDOW_S that a broker is fenced without waiting for its session to end."""
HASTY_WINDOW_S: Final = 60.0


@dataclass(slots=True)
class _Session:
    """One incarnation of a broker, and when it was heard last."""

    epoch: BrokerEpoch
    heard_at: float


@dataclass(slots=True)
class Sessions:
    """The sessions of one leadership. `timeout_s` of silence ends a session; `tick` is to be called several times in
    that."""

    timeout_s: float
    me: BrokerId
    """This node's own broker needs no session: it is here."""
    now: float
    _sessions: dict[BrokerId, _Session] = field(default_factory=dict)
    _hasty: dict[BrokerId, list[float]] = field(default_factory=dict)
    """When each broker was fenced at once, within the window."""

    def heard(self, broker: BrokerId, epoch: BrokerEpoch, now: float) -> None:
        """Note a heartbeat or a registration of that incarnation."""
        self._sessions[broker] = _Session(epoch, now)

    def has(self, broker: BrokerId, now: float) -> bool:
        """Whether the broker's session goes on. This node's own needs none, and always does."""
        session = self._sessions.get(broker)
        return broker == self.me or (session is not None and now - session.heard_at < self.timeout_s)

    def tick(self, image: MetadataImage, now: float) -> list[tuple[BrokerId, BrokerEpoch]]:
        """Return the unfenced brokers whose sessions are over, by id. Time beyond half a session that passes in one
        step was a pause of this node. It counts for no broker: their heartbeats may lie unread."""
        pause = now - self.now - self.timeout_s / 2
        if pause > 0:
            for session in self._sessions.values():
                session.heard_at += pause
        self.now = now
        live = {broker.id: broker.epoch for broker in image.live_brokers() if broker.id != self.me}
        for gone in self._sessions.keys() - live.keys():
            del self._sessions[gone]
        over = []
        for broker, epoch in live.items():
            known = self._sessions.get(broker)
            if known is None or known.epoch != epoch:
                self.heard(broker, epoch, now)  # new to this leadership
            elif now - known.heard_at >= self.timeout_s:
                over.append((broker, epoch))
        return over

    def wait_s(self, now: float, most: float) -> float:
        """Return the seconds until the next session may be over, at most `most`. A session that is over and was not
        ended is looked at again after that."""
        ends = [left for known in self._sessions.values() if (left := known.heard_at + self.timeout_s - now) > 0]
        return min([most, *ends])

    def died(self, image: MetadataImage, broker: BrokerId, now: float) -> tuple[BrokerId, BrokerEpoch] | None:
        """Return the broker to fence at once, if any, as its process is plainly dead (connections reset, and new ones
        refused)."""
        known = image.brokers.get(broker)
        if known is None or known.fenced or broker == self.me:
            return None
        recent = [at for at in self._hasty.get(broker, ()) if now - at < HASTY_WINDOW_S]
        self._hasty[broker] = recent
        if len(recent) >= HASTY_FENCINGS_MAX:
            return None
        recent.append(now)
        return broker, known.epoch
