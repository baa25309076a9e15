"""The links between hosts of a simulated network: they can be cut in one direction, slow, or end at a host without
power.

A byte stream neither loses nor reorders. So data sent into a cut is kept and sent again until the cut is healed, or
until the kernel's patience ends. Then that end of the connection is lost, and the other end learns of it only when it
sends something. Data in the buffers of a host without power is lost, without notice to anybody.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headrace.base.ports import Random

if TYPE_CHECKING:
    from headrace.sim.loop import VirtualLoop
    from headrace.sim.network import Transport

Link = tuple[str, str]
"""From one host to another."""

PATIENCE_SECONDS_MIN: Final = 3.0
PATIENCE_SECONDS_MAX: Final = 12.0
"""Time for which a kernel resends unacknowledged data (Linux: 15 minutes, or TCP_USER_TIMEOUT)."""
RESEND_SECONDS_MAX: Final = 0.4
"""Time from the end of a cut to the next try."""


@dataclass(slots=True, eq=False)
class _Held:
    """Data on its way into a cut."""

    sender: Transport
    victim: Transport
    """The end that is lost when patience ends: the one that waits for the acknowledgement."""
    deliver: Callable[[], object]
    is_over: bool = False


class Links:
    """The links, as the module says. They are whole until they are cut."""

    def __init__(self, loop: VirtualLoop, random: Random) -> None:
        self._loop = loop
        self._random = random
        self._cut: frozenset[Link] = frozenset()
        self._down: set[str] = set()
        self._slowness: dict[Link, float] = {}
        self._held: dict[Link, deque[_Held]] = {}
        self.resend_seconds_max = RESEND_SECONDS_MAX

    @property
    def cut(self) -> frozenset[Link]:
        return self._cut

    def blocks(self, source: str, target: str) -> bool:
        """Whether nothing passes in this direction. Within a host everything passes while it has power."""
        if not self._cut and not self._down:
            return False
        return (source, target) in self._cut or source in self._down or target in self._down

    def holds(self, source: str, target: str) -> bool:
        """Whether earlier data still waits here, which later data must not overtake."""
        return bool(self._held) and (source, target) in self._held

    def is_down(self, host: str) -> bool:
        """Whether it has no power."""
        return host in self._down

    def slowness(self, source: str, target: str) -> float:
        """Factor by which a delay is longer here."""
        return self._slowness.get((source, target), 1.0) if self._slowness else 1.0

    def set_cut(self, links: Iterable[Link]) -> None:
        """Cut exactly these links from now on."""
        self._cut = frozenset(links)
        self._release()

    def set_slow(self, slowness: dict[Link, float]) -> None:
        """Slow down exactly these links by these factors."""
        self._slowness = dict(slowness)

    def power_off(self, host: str) -> None:
        self._down.add(host)
        for link in [each for each in self._held if each[0] == host]:
            for held in self._held.pop(link):
                # later data for it is answered that the connection is unknown
                held.is_over = held.sender.vanished = True

    def power_on(self, host: str) -> None:
        self._down.discard(host)
        self._release()

    def patience(self) -> float:
        """The kernel's patience in seconds."""
        return PATIENCE_SECONDS_MIN + self._random.random() * (PATIENCE_SECONDS_MAX - PATIENCE_SECONDS_MIN)

    def hold(self, sender: Transport, victim: Transport, deliver: Callable[[], object]) -> None:
        """Keep, in order, data that cannot pass from `sender` to its peer now."""
        held = _Held(sender, victim, deliver)
        self._held.setdefault((sender.host, sender.peer.host), deque()).append(held)
        self._loop.call_later(self.patience(), self._give_up, held, context=self._loop.no_process)

    def _give_up(self, held: _Held) -> None:
        if not held.is_over:
            held.is_over = True
            held.victim.vanish(TimeoutError(errno.ETIMEDOUT, "nothing was acknowledged for long"))

    def _release(self) -> None:
        for (source, target), held in self._held.items():
            if held and not self.blocks(source, target):
                self._loop.call_later(
                    self._random.random() * self.resend_seconds_max,
                    self._resend,
                    (source, target),
                    context=self._loop.no_process,
                )

    def _resend(self, link: Link) -> None:
        if self.blocks(*link):
            return
        held = self._held.pop(link, deque())
        for each in held:
            if not each.is_over and not each.sender.forgotten:
                each.is_over = True
                each.deliver()
