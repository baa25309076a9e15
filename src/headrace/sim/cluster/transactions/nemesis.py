"""Faults for transactions: those of the records' part, and faults aimed at the moment when a transaction ends.

The decision, the markers and the end are written by different brokers, milliseconds apart. Soon after a client has
asked for an end, the coordinator dies, or all power is lost. Sometimes copies of partitions go to other brokers and
back, those of coordinators among them. A partition with one copy is handed over to another broker through the durable
store, in the middle of transactions.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from headrace.sim.cluster.host import Host
from headrace.sim.cluster.nemesis import Act
from headrace.sim.cluster.records.assigning import AssigningNemesis
from headrace.sim.history import PartitionKey

TRANSACTIONS: Final = "__transaction_state"
TEMPI: Final = (0.3, 0.7, 1.5, 3.0)
"""Factors on its times."""
REST_SECONDS_MAX: Final = 1.0
AT_ENDS: Final = (0.0, 0.0, 0.1, 0.3)
"""Probability of a fault at the end of a transaction."""
AT_ONCE_SECONDS_MAX: Final = 0.03
REASSIGNS: Final = 0.4
"""Share of the runs in which copies go away and back."""


class TransactionsNemesis(AssigningNemesis):
    """The nemesis, as the module says."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._tempo = self._random.choice(TEMPI)
        self._reassigns = self._random.random() < REASSIGNS
        self._at_ends = 0.0
        self.handed_over = 0
        """Moves that the controller agreed to."""

    def _mood(self) -> list[tuple[Act, float]]:
        mood = super()._mood()
        self._at_ends = self._random.choice(AT_ENDS)
        mood = [(act, weight) for act, weight in mood if self._reassigns or act != self.away_and_back]
        if self._handed_over():
            mood.append((self.hand_over, self._random.choice((4.0, 16.0))))
        return [*mood, (self.rest, self._random.choice((2.0, 6.0, 20.0)))]

    def _handed_over(self) -> list[PartitionKey]:
        """The partitions with one copy."""
        states = {key: self._records.state(key) for key in self._partitions}
        return [key for key, state in states.items() if state is not None and state.replication_factor == 1]

    async def hand_over(self) -> None:
        """Move a partition with one copy to some broker, or aim its move at another one."""
        key, host = self._random.choice(self._handed_over()), self._random.choice(self._hosts)
        self.handed_over += await self._place(key, (host.node,))

    async def rest(self) -> None:
        """Let the network be whole for a while, so that there are transactions for the next fault."""
        self.heal()
        await asyncio.sleep(self._random.random() * REST_SECONDS_MAX)

    def on_end(self) -> None:
        """A client asks for the end of its transaction now."""
        if not self.is_over and self._random.random() < self._at_ends:
            self._later(self._random.random() * AT_ONCE_SECONDS_MAX, self._strike_coordinator)

    def _strike_coordinator(self) -> None:
        key = next((key for key, topic in self._partitions.items() if topic == TRANSACTIONS), None)
        host = None if key is None else self._leader_of(key)
        if host is None or host.is_paused:
            return
        self.acts += 1
        roll = self._random.random()
        if roll < 0.3:
            self.all_power_cut()
        elif roll < 0.9:
            self._random.choice((Host.kill, Host.power_cut))(host)
            self._boot_later(host)
        else:
            self._cut_off(host)
