"""Transactional ids whose clients are processes (`transacting`), and the history that these tell.

The history has the form that the simulator's judges take. A transactional id is a `Lane`. It has one client after
another: one that ends, or is killed, is followed by the next. One that is stopped may be, too, and is a zombie then.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from headrace.sim.cluster.transactions.history import (
    UNKNOWN,
    History,
    Look,
    Partition,
    Register,
    Taken,
    Transaction,
    Write,
)
from tests.promises.support import java, transacting
from tests.promises.support.transacting import INPUT, SESSIONS_MAX, Teller, Terms

PATIENCE_S: Final = 150.0
STUCK_S: Final = 15.0
"""A client that tells nothing for so long is stuck in a call that should have returned after `transacting.CALL_S`. In
librdkafka the call that adds offsets may never return once its group's coordinator has died (its issue 5456)."""
LOOKS_EVERY_S: Final = 1.0
OWN_SESSION: Final = 0
"""Moments of the test's own process have it."""


class Session:
    """One client process, from its start until all that it told is heard."""

    def __init__(self, terms: Terms, process: asyncio.subprocess.Process) -> None:
        self.terms = terms
        self.process = process
        self.is_ready = False
        self.is_over = False
        self.is_killed = False
        self.is_left = False
        """The test itself has the next one follow."""
        self.fenced: int | None = None
        """The moment when a later one was told that it has the id."""
        self.transactions: list[Transaction] = []
        self.said = ""
        """The last line."""
        self.heard_s = asyncio.get_running_loop().time()
        """When that was heard."""
        self.is_stopped = False

    def signal(self, number: int) -> None:
        if self.process.returncode is None:
            self.process.send_signal(number)

    def stop(self) -> None:
        """SIGSTOP."""
        self.is_stopped = True
        self.signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """SIGCONT."""
        self.heard_s = asyncio.get_running_loop().time()
        self.is_stopped = False
        self.signal(signal.SIGCONT)

    @property
    def is_stuck(self) -> bool:
        runs = not (self.is_over or self.is_stopped)
        return runs and asyncio.get_running_loop().time() - self.heard_s > STUCK_S

    def end(self) -> None:
        """Tell it to end. It finishes its transaction first."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def tell_fences(self) -> None:
        """Once all is heard, of this one and of later ones."""
        for each in self.transactions:
            if self.fenced is not None and (each.ended is None or each.ended > self.fenced):
                each.fenced = self.fenced


class Lane:
    """One transactional id."""

    def __init__(self, name: str, *, consumes: bool, timeout_ms: int, is_java: bool = False) -> None:
        """`consumes`: its transactions consume the topic's first partition for a group of its name. `is_java`: its
        clients are Kafka's own, of the new protocol (KIP-890), and else librdkafka's, of the old one."""
        self.name = name
        self.is_java = is_java
        self.consumes = consumes
        self.timeout_ms = timeout_ms
        self.sessions: list[Session] = []
        self.ended = 0
        """Transactions whose outcome is told."""
        self.hindered = 0
        """Calls that did not succeed."""

    @property
    def current(self) -> Session:
        return self.sessions[-1]

    def __str__(self) -> str:
        return f"{self.name}: {self.ended} transactions, {len(self.sessions)} clients, last: {self.current.said!r}"


class Transactors:
    """All lanes of one test. An async context manager's value (`transacting_in`)."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, directory: Path, lanes: Sequence[Lane]) -> None:
        self.history = History()
        self.lanes = lanes
        self.teller = Teller(OWN_SESSION)
        self.is_ending = False
        self.failures: list[str] = []
        self._bootstrap = bootstrap
        self._topic = topic
        self._partitions = partitions
        self._directory = directory
        self._sessions = OWN_SESSION
        self._changed = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()
        self._writes: dict[bytes, Write] = {}
        self.stuck = 0
        """Clients that were killed because they were."""

    @property
    def partitions(self) -> list[Partition]:
        return [Partition(self._topic, number) for number in range(self._partitions)]

    def register(self, lane: Lane) -> Register:
        return Register(lane.name, Partition(self._topic, INPUT))

    # clients

    async def begin(self, lane: Lane) -> Session:
        """Start the next client of the id, and wait until it has the id, or cannot have it."""
        self._sessions += 1
        assert self._sessions < SESSIONS_MAX
        about = (self._bootstrap, self._topic, self._partitions, lane.name, self._sessions)
        terms = Terms(*about, timeout_ms=lane.timeout_ms, consumes=lane.consumes)
        with (self._directory / f"{lane.name}.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *(java.transactor(terms) if lane.is_java else by_librdkafka(terms)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
            )
        session = Session(terms, process)
        lane.sessions.append(session)
        task = asyncio.ensure_future(self._listen(lane, session))
        self._tasks.add(task)
        task.add_done_callback(self._on_listened)
        await self.until(lambda: session.is_ready or session.is_over, f"{lane.name} is not ready")
        return session

    def _on_listened(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.failures.append(str(error))

    def start_watch(self) -> None:
        task = asyncio.ensure_future(self.watch())
        self._tasks.add(task)
        task.add_done_callback(self._on_listened)

    async def kill(self, session: Session) -> None:
        """SIGKILL. On return all that it told has been heard."""
        session.is_killed = True
        session.signal(signal.SIGKILL)
        await self.until(lambda: session.is_over, "a killed client does not end")

    async def _listen(self, lane: Lane, session: Session) -> None:
        assert session.process.stdout is not None
        while line := await session.process.stdout.readline():
            self._on_line(lane, session, line.decode())
            await self._notify()
        code = await session.process.wait()
        if code != (-signal.SIGKILL if session.is_killed else 0) and not self.is_ending:
            self.failures.append(f"a client of {lane.name} ended with {code}, after {session.said!r}")
        session.is_over = True
        await self._notify()
        if session is lane.current and not session.is_left and not self.is_ending:
            await self.begin(lane)

    async def watch(self) -> None:
        """Kill clients that are stuck, as an operator would. Their stacks are in their logs."""
        while True:
            await asyncio.sleep(LOOKS_EVERY_S)
            stuck = [(lane, session) for lane in self.lanes for session in lane.sessions if session.is_stuck]
            for lane, session in stuck:
                self.stuck += 1
                print(f"{lane.name} is stuck after {session.said!r}", flush=True)
                if not lane.is_java:  # there is nothing to read in its log
                    session.signal(signal.SIGUSR1)
                    await asyncio.sleep(LOOKS_EVERY_S)
                await self.kill(session)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def until(self, holds: Callable[[], bool], otherwise: str) -> None:
        """Wait until this is so. Fails after PATIENCE_S, or where a client has failed."""
        async with self._changed:
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await self._changed.wait_for(lambda: bool(self.failures) or holds())
            except TimeoutError:
                raise AssertionError(f"{otherwise}: {'; '.join(map(str, self.lanes))}") from None
        assert not self.failures, self.failures[:3]

    async def ended(self, more: int, *lanes: Lane) -> None:
        """Wait until so many more transactions of each lane have ended than now."""
        wanted = [(lane, lane.ended + more) for lane in lanes or self.lanes]
        await self.until(lambda: all(lane.ended >= count for lane, count in wanted), "too few transactions end")

    async def met(self, more: int) -> None:
        """Wait until each lane has ended so many more transactions than now, or so many of its calls have failed."""
        wanted = [(lane, lane.ended + more, lane.hindered + more) for lane in self.lanes]
        await self.until(
            lambda: all(lane.ended >= ended or lane.hindered >= hindered for lane, ended, hindered in wanted),
            "clients neither work nor fail",
        )

    async def hindered(self, lane: Lane) -> None:
        """Wait until a call of this lane does not succeed."""
        before = lane.hindered, len(lane.sessions)
        await self.until(lambda: (lane.hindered, len(lane.sessions)) > before, f"nothing hinders {lane.name}")

    async def finish(self) -> None:
        """Have all clients end their transactions and themselves."""
        self.is_ending = True
        sessions = [session for lane in self.lanes for session in lane.sessions]
        for session in sessions:
            session.go_on()
            session.end()
        await self.until(lambda: all(session.is_over for session in sessions), "not all clients end")
        for session in sessions:
            session.tell_fences()

    async def give_up(self) -> None:
        """Kill all of them."""
        self.is_ending = True
        for lane in self.lanes:
            for session in lane.sessions:
                session.signal(signal.SIGKILL)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # lines

    def _on_line(self, lane: Lane, session: Session, line: str) -> None:
        session.said, session.heard_s = line.strip(), asyncio.get_running_loop().time()
        moment, what, *words = line.split()
        at = int(moment)
        match what:
            case "ready":
                session.is_ready = True
                for earlier in lane.sessions[: lane.sessions.index(session)]:
                    earlier.fenced = at if earlier.fenced is None else earlier.fenced
            case "began":
                begun = Transaction(number=len(self.history.transactions), producer=lane.name, began=at)
                session.transactions.append(begun)
                self.history.transactions.append(begun)
            case "wrote":
                value = words[1].encode()
                write = self._writes[value] = Write(Partition(self._topic, int(words[0])), value, at)
                session.transactions[-1].writes.append(write)
            case "acknowledged":
                self._writes[words[0].encode()].offset = int(words[1])
            case "looked":
                self.history.looks.append(Look(self.register(lane), int(words[0]), at))
            case "taken":
                start, end, *offsets = map(int, words)
                session.transactions[-1].taken = Taken(self.register(lane), start, end, tuple(offsets))
            case "asked":
                session.transactions[-1].asked = at
            case "ended":
                ended = session.transactions[-1]
                ended.ended, ended.is_committed, ended.is_aborted = at, words[0] == "committed", words[0] == "aborted"
                lane.ended += 1
            case "again" | "over":
                lane.hindered += words != ["told"]
            case _:
                self.failures.append(f"{lane.name}: {line}")

    def counted(self) -> str:
        """How many transactions ended how."""
        transactions = self.history.transactions
        outcomes = Counter(each.outcome.value for each in transactions)
        consuming = sum(each.taken is not None for each in transactions)
        fenced = sum(each.fenced is not None for each in transactions)
        known = sum(write.offset not in (None, UNKNOWN) for write in self._writes.values())
        clients = sum(len(lane.sessions) for lane in self.lanes)
        return (
            f"{dict(outcomes)}, {consuming} consumed, {fenced} fenced, {known} offsets known, {clients} clients, "
            f"{len(self.history.polls)} polls, {len(self.history.looks)} looks, {self.stuck} clients were stuck"
        )


def by_librdkafka(terms: Terms) -> list[str]:
    return [sys.executable, transacting.__file__, json.dumps(terms._asdict())]


@asynccontextmanager
async def transacting_in(
    bootstrap: str, topic: str, partitions: int, directory: Path, lanes: Sequence[Lane]
) -> AsyncIterator[Transactors]:
    """Have the lanes at work. Leave it after `finish`, or the test has failed."""
    transactors = Transactors(bootstrap, topic, partitions, directory, lanes)
    try:
        await asyncio.gather(*(transactors.begin(lane) for lane in lanes))
        transactors.start_watch()
        yield transactors
    finally:
        await transactors.give_up()
