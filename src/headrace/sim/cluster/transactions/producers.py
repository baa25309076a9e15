"""The producing half of the workload: transactional ids, each with one client after another.

A client dies in mid-transaction, and another takes its id over. Some only hang: they go on when the other has the id,
and must be refused. Copies of requests arrive long after their answers. Clients of the old
protocol (TV1) add partitions themselves. The epoch of the new ones (TV2) rises with every transaction.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from headrace.sim.client import Lost
from headrace.sim.cluster.transactions.history import Register
from headrace.sim.cluster.transactions.session import Session, Terms
from headrace.sim.cluster.transactions.stage import INPUT, Stage, Ways

TRANSACTIONS_MAX: Final = 8
"""Transactions of one client, after which another follows."""
TIMEOUTS_MS: Final = (1_500, 4_000, 10_000)
NEW_PROTOCOL: Final = 0.6
CHANGES_PROTOCOL: Final = 0.15
COPIES: Final = (0.0, 0.1, 0.4)
"""Probability that a copy of a request arrives later."""
LATE_SECONDS_MAX: Final = 2.0
ASLEEP_SECONDS_MAX: Final = 1.0
LEFT_ALONE: Final = 0.3
"""Probability that the last client dies in mid-transaction and nobody takes over, so that only time ends that."""


class Lane:
    """One transactional id."""

    def __init__(self, stage: Stage, name: str, *, consumes: bool) -> None:
        """`consumes`: its transactions consume a partition for a group of their own."""
        self._stage = stage
        self.name = name
        self._chance = stage.world.chance(f"lane {name}")
        self._is_new = self._chance.random() < NEW_PROTOCOL
        self._timeout_ms = self._chance.choice(TIMEOUTS_MS)
        self._copies = self._chance.choice(COPIES)
        self._register = Register(name, INPUT) if consumes else None
        if self._register is not None:
            stage.registers.append(self._register)
        self._late: set[asyncio.Task[None]] = set()
        self._asleep: list[asyncio.Task[bool]] = []
        self._earlier: list[Session] = []
        """Clients that had the id before, and are not fenced yet."""
        self._sessions = 0
        self.waits_for = ""
        """The last error, for a reader of a stuck run."""

    async def run(self) -> None:
        """Have clients work until the world winds down; then the last one commits, or is left alone."""
        while not self._stage.winding_down:
            await self._live(self._session(self._chance.randrange(1, TRANSACTIONS_MAX + 1)))
        left_alone = self._chance.random() < LEFT_ALONE
        while not await self._live(self._session(1, is_last=True, dies=left_alone)) and not left_alone:
            pass
        for hanging in self._asleep:
            await hanging
        for task in self._late:
            task.cancel()

    def _session(self, transactions: int, *, is_last: bool = False, dies: bool = False) -> Session:
        self._sessions += 1
        is_new = self._is_new != (self._chance.random() < CHANGES_PROTOCOL)
        terms = Terms(is_new, self._timeout_ms, transactions, self._register, is_last=is_last, dies=dies)
        return Session(self._stage, self, f"{self.name}.{self._sessions}", terms)

    async def _live(self, session: Session) -> bool:
        """One client, until it has ended or hangs. Returns whether it has met its terms."""
        loop = self._stage.world.loop
        task = loop.create_task(session.run())
        hangs = loop.create_task(session.hangs.wait())
        await asyncio.wait({task, hangs}, return_when=asyncio.FIRST_COMPLETED)
        self._earlier.append(session)
        if task.done():
            hangs.cancel()
            return task.result()
        self._asleep.append(task)
        return False

    def on_ready(self) -> None:
        """A client has its id, so those before it are fenced. One that hangs goes on some time later."""
        moment = self._stage.history.now()
        earlier, self._earlier = self._earlier, []
        for each in earlier:
            each.fence(moment)
            self._stage.world.loop.call_later(self._chance.random() * ASLEEP_SECONDS_MAX, each.go_on.set)

    def on_sent(self, to_coordinator: tuple[int, str] | None, session: Session, request: tuple[Any, ...]) -> None:
        """A request was sent. Sometimes a copy of it arrives later. In the old protocol that is only once its epoch is
        over: Kafka itself takes a copy in the same epoch for a new request."""
        if self._chance.random() >= self._copies:
            return
        seconds = self._chance.random() * LATE_SECONDS_MAX
        producer = session.producer

        async def haunt() -> None:
            await asyncio.sleep(seconds)
            if not session.is_new and session.fenced is None and session.producer == producer:
                return
            ways = Ways(self._stage, f"{session.name} copies", self._chance)
            try:
                if to_coordinator is not None:
                    await ways.ask_coordinator(*to_coordinator, *request)
                else:
                    await ways.ask_leader(*request)
            except Lost:
                pass
            ways.close()

        self._keep(haunt())

    def _keep(self, work: Any) -> None:
        task = self._stage.world.loop.create_task(work)
        self._late.add(task)
        task.add_done_callback(self._late.discard)
