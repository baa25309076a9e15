"""One simulated Redis server: commands in the order in which they arrive, one at a time, over RESP3.

Promises, as the real one:
- A turn takes what has arrived. With `appendfsync always` its answers leave after the sync, and nothing else runs.
- Else the file is synced in the background, each SYNC_SECONDS.
- WAIT, WAITAOF and XREAD BLOCK hold back the later commands of their own connection alone.
- WAIT and WAITAOF wait for what that connection has written.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import hiredis

from headrace.sim.clock import BORN_MS
from headrace.sim.loop import VirtualLoop
from headrace.sim.network import Transport
from headrace.sim.redis.resp import encoded
from headrace.sim.redis.timelines import WRITES, ServerModel, Timeline, Write
from headrace.storage.redis.errors import RedisRefused, refusal

SYNC_SECONDS: Final = 0.2
"""The second of `everysec`."""
SYNC_TAKES_SECONDS_MAX: Final = 0.05
FSYNC_SECONDS_MAX: Final = 0.002
"""Longest that one of `always` takes."""
REPLICA_ANSWERS_SECONDS_MAX: Final = 0.002
LAG_SECONDS_MAX: Final = 0.002
VERSION: Final = b"9.1.0"
MEMORY_BYTES: Final = 1 << 33

Executed = Callable[[Timeline, ServerModel, Write, Any], object]
"""Called with each write that was executed, and its answer."""


class Replica:
    """The one replica of a master: how many of its writes it has, and how many the master knows it to have. None: it
    has another history, and copies everything first."""

    def __init__(self) -> None:
        self.has: int | None = None
        self.acknowledged = 0
        self.is_connected = False

    def connect(self, end: int) -> None:
        """It has everything now."""
        self.has = self.acknowledged = end
        self.is_connected = True


@dataclass(slots=True)
class Faults:
    """Probabilities for each exchange, and the longest time that a write takes to the replica."""

    lost_requests: float = 0.0
    lost_answers: float = 0.0
    lag_seconds_max: float = LAG_SECONDS_MAX


class Server:
    """One life of a server. Made in its process. `role` is `master`, or `slave` once another took its place."""

    def __init__(
        self,
        loop: VirtualLoop,
        timeline: Timeline,
        model: ServerModel,
        *,
        is_always: bool,
        replica: Replica | None,
        faults: Faults,
        chance: random.Random,
        on_executed: Executed,
    ) -> None:
        self.timeline: Final = timeline
        self.model: Final = model
        self.is_always: Final = is_always
        self.replica: Final = replica
        self.faults: Final = faults
        self.chance: Final = chance
        self.role = "master"
        self.is_loading = False
        self.synced = 0
        """Writes of the timeline that are in the file for good."""
        self.history: Final = f"{chance.getrandbits(160):040x}"
        model.history = timeline.base.history = self.history.encode()
        self.connections: dict[ServerConnection, None] = {}
        self._loop = loop
        self._on_executed = on_executed
        self._is_due = self._is_syncing = False
        if not is_always:
            loop.call_later(SYNC_SECONDS, self._sync)

    @property
    def copies(self) -> int:
        """Replicas that are connected."""
        return int(self.replica is not None and self.replica.is_connected and self.role == "master")

    def now_ms(self) -> int:
        return BORN_MS + int(self._loop.time() * 1000)

    # turns

    def arrived(self) -> None:
        """A connection has something to do."""
        if not self._is_due and not self._is_syncing:
            self._is_due = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._is_due = False
        if self._is_syncing:
            return
        before = self.timeline.end
        for connection in list(self.connections):
            connection.work()
        if self.timeline.end == before:
            self._answer()
            return
        for connection in list(self.connections):
            connection.look()
        self._replicate()
        if self.is_always:
            self._is_syncing = True
            self._loop.call_later(self.chance.random() * FSYNC_SECONDS_MAX, self._synced, self.timeline.end)
        else:
            self._answer()

    def _sync(self) -> None:
        takes = self.chance.random() * SYNC_TAKES_SECONDS_MAX
        self._loop.call_later(takes, self._synced, self.timeline.end)
        self._loop.call_later(takes + SYNC_SECONDS, self._sync)

    def _synced(self, end: int) -> None:
        self.synced = end
        self._is_syncing = False
        self._look_again()

    def _look_again(self) -> None:
        for connection in list(self.connections):
            connection.look()
        if not self._is_syncing:
            self._answer()
            self.arrived()

    def _answer(self) -> None:
        for connection in list(self.connections):
            connection.flush()

    def answer_soon(self, connection: ServerConnection) -> None:
        """Send the answers of a connection, unless all wait for a sync."""
        if not self._is_syncing:
            connection.flush()

    # the replica

    def _replicate(self) -> None:
        if self.copies:
            lag = self.chance.random() * self.faults.lag_seconds_max
            self._loop.call_later(lag, self._copied, self.timeline.end)

    def _copied(self, end: int) -> None:
        replica = self.replica
        if replica is None or replica.has is None or not self.copies or self.timeline.kept is not None:
            return
        replica.has = max(replica.has, end)
        self._loop.call_later(self.chance.random() * REPLICA_ANSWERS_SECONDS_MAX, self._acknowledged, end)

    def _acknowledged(self, end: int) -> None:
        if self.replica is not None and self.copies and self.timeline.kept is None:
            self.replica.acknowledged = max(self.replica.acknowledged, end)
            self._look_again()

    def copies_of(self, end: int) -> int:
        """How many replicas are known to have the first `end` writes."""
        return int(self.copies > 0 and self.replica is not None and self.replica.acknowledged >= end)

    def demote(self) -> None:
        """Another is the master: nothing is written here any more."""
        self.role = "slave"
        for connection in list(self.connections):
            connection.unblock(refusal("UNBLOCKED force unblock from blocking operation, instance state changed"))
            connection.flush()

    # commands

    def execute(self, command: Sequence[bytes]) -> Any:
        """The reply to a command that does not block. Raises RedisRefused."""
        name, *rest = command
        if self.is_loading and name not in (b"HELLO", b"INFO"):
            raise refusal("LOADING Redis is loading the dataset in memory")
        match name, rest:
            case b"HELLO", _:
                return {b"server": b"valkey", b"version": VERSION, b"proto": 3, b"mode": b"standalone"} | {
                    b"role": b"master" if self.role == "master" else b"replica"
                }
            case b"SELECT", _:
                return "OK"
            case b"INFO", _:
                return self._info()
            case b"CONFIG", [b"GET", b"appendfsync"]:
                return {b"appendfsync": b"always" if self.is_always else b"everysec"}
        if name not in WRITES:
            return self.model.execute(command, now_ms=self.now_ms())
        if self.role != "master":
            raise refusal("READONLY You can't write against a read only replica.")
        write = Write(command, self.now_ms())
        reply = self.model.execute(command, now_ms=write.now_ms)
        self.timeline.writes.append(write)
        self._on_executed(self.timeline, self.model, write, reply)
        return reply

    def _info(self) -> bytes:
        fields = {
            "role": self.role,
            "connected_slaves": self.copies,
            "maxmemory": 0,
            "total_system_memory": MEMORY_BYTES,
            "used_memory": 1 << 20,
            "maxmemory_policy": "noeviction",
            "aof_enabled": 1,
            "master_replid": self.history,
            "master_repl_offset": self.timeline.end,
        }
        return "".join(f"{name}:{value}\r\n" for name, value in fields.items()).encode()


class _Blocked:
    """A command that waits. `look` returns its reply, or None where it waits on."""

    def __init__(self, look: Callable[[], Any], otherwise: Callable[[], Any]) -> None:
        self.look = look
        self.otherwise = otherwise
        self.timer: asyncio.TimerHandle | None = None


class ServerConnection(asyncio.Protocol):
    """A client's connection, on the server's side."""

    def __init__(self, server: Server, loop: VirtualLoop) -> None:
        self._server = server
        self._loop = loop
        self._reader = hiredis.Reader()
        self._queue: deque[list[bytes]] = deque()
        self._out: list[bytes] = []
        self._blocked: _Blocked | None = None
        self._written = 0
        """The end of the timeline behind the last write of this connection."""
        self._transport: Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("Transport", transport)
        self._server.connections[self] = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.connections.pop(self, None)
        self._queue.clear()
        self._forget()

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        while (command := self._reader.gets()) is not False:
            self._queue.append(command)
        if self._queue and self._happens(self._server.faults.lost_requests):
            self._abort()
        elif self._queue:
            self._server.arrived()

    def work(self) -> None:
        """Execute what has arrived, up to a command that blocks."""
        while self._queue and self._blocked is None:
            self._out += self._begun(self._queue.popleft())

    def _begun(self, command: list[bytes]) -> list[bytes]:
        """The answer, or none where the command waits."""
        server, before = self._server, self._server.timeline.end
        try:
            match command:
                case [b"WAIT", count, ms]:
                    self._wait(int(ms), int(count))
                    return []
                case [b"WAITAOF", local, count, ms]:
                    self._wait_for_file(int(ms), int(local), int(count))
                    return []
                case [b"XREAD", *rest] if b"BLOCK" in rest:
                    self._read(rest)
                    return []
            reply = server.execute(command)
        except RedisRefused as error:
            reply = error
        if server.timeline.end > before:
            self._written = server.timeline.end
        return [encoded(reply)]

    # commands that wait

    def _wait(self, ms: int, wanted: int) -> None:
        self._check_is_master("WAIT")
        server = self._server

        def look() -> Any:
            found = server.copies_of(self._written)
            return found if found >= wanted else None

        self._block(look, lambda: server.copies_of(self._written), ms)

    def _wait_for_file(self, ms: int, local: int, wanted: int) -> None:
        self._check_is_master("WAITAOF")
        server = self._server

        def found() -> list[int]:
            return [int(server.synced >= self._written), server.copies_of(self._written)]

        def look() -> Any:
            has, copies = found()
            return [has, copies] if has >= local and copies >= wanted else None

        self._block(look, found, ms)

    def _check_is_master(self, name: str) -> None:
        if self._server.is_loading:
            raise refusal("LOADING Redis is loading the dataset in memory")
        if self._server.role != "master":
            raise refusal(f"ERR {name} cannot be used with replica instances.")

    def _read(self, rest: list[bytes]) -> None:
        at = rest.index(b"BLOCK")
        command = [b"XREAD", *rest[:at], *rest[at + 2 :]]
        self._block(lambda: self._server.execute(command), lambda: None, int(rest[at + 1]))

    def _block(self, look: Callable[[], Any], otherwise: Callable[[], Any], ms: int) -> None:
        if (reply := look()) is not None:
            self._out.append(encoded(reply))
            return
        self._blocked = blocked = _Blocked(look, otherwise)
        if ms:
            blocked.timer = self._loop.call_later(ms / 1000, self._on_time, blocked)

    def _on_time(self, blocked: _Blocked) -> None:
        if self._blocked is blocked:
            self.unblock(blocked.otherwise())
            self._server.answer_soon(self)

    def look(self) -> None:
        """Something was written, synced or copied: answer a command that has waited for it."""
        if (blocked := self._blocked) is not None and (reply := blocked.look()) is not None:
            self.unblock(reply)

    def unblock(self, reply: Any) -> None:
        """Answer the command that waits, if there is one."""
        if self._blocked is not None:
            self._forget()
            self._out.append(encoded(reply))
            self._server.arrived()

    def _forget(self) -> None:
        if self._blocked is not None and self._blocked.timer is not None:
            self._blocked.timer.cancel()
        self._blocked = None

    # answers

    def flush(self) -> None:
        """Send the answers that are there."""
        if not self._out:
            return
        answers, self._out = self._out, []
        if self._happens(self._server.faults.lost_answers):
            self._abort()
        else:
            self._transport.write(b"".join(answers))

    def _happens(self, probability: float) -> bool:
        return probability > 0 and self._server.chance.random() < probability

    def _abort(self) -> None:
        self._queue.clear()
        self._transport.abort()
