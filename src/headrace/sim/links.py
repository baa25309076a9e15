"""What lies between the hosts of a simulated network: directions that are cut, hosts without power, slow roads.

A byte stream neither loses nor reorders. So what is sent into a cut is kept and sent again until the cut is healed, or
until the kernel's patience ends: then that end of the connection is lost, and the other end hears of it only when it
sends something itself. What a host without power had in its buffers is gone, and nobody is told.
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
"""From a host to a host."""

PATIENCE_SECONDS_MIN: Final = 3.0
PATIENCE_SECONDS_MAX: Final = 12.0
"""How long a kernel sends again what nobody acknowledges (Linux: 15 minutes, or TCP_USER_TIMEOUT)."""
RESEND_SECONDS_MAX: Final = 0.4
"""From the end of a cut to the next try."""


@dataclass(slots=True, eq=False)
class _Held:
    """Something on its way into a cut."""

    sender: Transport
    victim: Transport
    """The end that is lost when patience ends: who waits for the acknowledgement."""
    deliver: Callable[[], object]
    is_over: bool = False


class Links:
    """See the module. Whole as long as nobody cuts anything."""

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
        """Whether nothing comes through in this direction. Within a host everything does, while it has power."""
        if not self._cut and not self._down:
            return False
        return (source, target) in self._cut or source in self._down or target in self._down

    def holds(self, source: str, target: str) -> bool:
        """Whether something from before still waits here: what comes later must not overtake it."""
        return bool(self._held) and (source, target) in self._held

    def is_down(self, host: str) -> bool:
        """Whether it has no power."""
        return host in self._down

    def slowness(self, source: str, target: str) -> float:
        """By how much a delay is longer here."""
        return self._slowness.get((source, target), 1.0) if self._slowness else 1.0

    def set_cut(self, links: Iterable[Link]) -> None:
        """These are cut from now on, and no others."""
        self._cut = frozenset(links)
        self._release()

    def set_slow(self, slowness: dict[Link, float]) -> None:
        """These are slower by these factors, and no others."""
        self._slowness = dict(slowness)

    def power_off(self, host: str) -> None:
        self._down.add(host)
        for link in [each for each in self._held if each[0] == host]:
            for held in self._held.pop(link):
                held.is_over = held.sender.vanished = True  # whatever else comes for it is told that it is unknown

    def power_on(self, host: str) -> None:
        self._down.discard(host)
        self._release()

    def patience(self) -> float:
        """Seconds."""
        return PATIENCE_SECONDS_MIN + self._random.random() * (PATIENCE_SECONDS_MAX - PATIENCE_SECONDS_MIN)

    def hold(self, sender: Transport, victim: Transport, deliver: Callable[[], object]) -> None:
        """Keep what cannot pass from `sender` to its peer now. In order."""
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
