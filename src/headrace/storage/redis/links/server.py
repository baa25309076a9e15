"""Looks at a Redis server, and says what an acknowledgement by it is worth.

Promises: a server that may evict records is refused. Nothing is promised that the server does not do: where it cannot
wait for its disk, that is told in one line.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from headrace.base.errors import UsageError
from headrace.base.ports import Space
from headrace.logs import get_logger
from headrace.storage.redis.errors import RedisRefused
from headrace.storage.redis.links.blocking import BlockingConnection
from headrace.storage.redis.links.connection import Reply

log = get_logger(__name__)

SURVIVES: Final = "records survive a crash of Redis"
LOSES: Final = "a crash of Redis loses records"
WEAKER: Final = "a crash of its machine or process may lose the last second: this Redis has no WAITAOF"
NOT_AWAITED: Final = "a crash of its machine or process may lose the last second: redis.durability is none"
AOF: Final = "aof"
"""The value of `redis.durability` for which an acknowledgement waits until Redis's append-only file is synced."""


class Look(NamedTuple):
    """A server, as INFO tells of it."""

    replicas: int
    """Connected replicas."""
    memory_max: int
    """Bytes: the limit that is set, or all memory of its machine."""
    memory_used: int
    policy: str
    has_aof: bool
    history: str
    """The id of its replication history. Another one: the server has failed over, or was restarted."""
    history_offset: int
    """Bytes of that history. It falls only where writes were lost."""

    @property
    def space(self) -> Space:
        """The room in its memory."""
        return Space(self.memory_max, max(0, self.memory_max - self.memory_used))

    def has_lost(self, before: Look) -> bool:
        """Whether it may have lost writes since it was looked at before."""
        return self.history != before.history or self.history_offset < before.history_offset


class Seen(NamedTuple):
    """A server, as the engine knows it."""

    look: Look = Look(0, 0, 0, "", False, "", 0)
    waits_for_aof: bool = False
    """A round sends WAITAOF behind its appends."""
    worth: str = ""
    """The worth of an acknowledgement, as a clause."""

    def forgotten(self) -> Seen:
        """As one that is to be looked at again, and its logs too."""
        return self._replace(look=self.look._replace(history=""))


class Worth(NamedTuple):
    """The worth of an acknowledgement."""

    waits_for_aof: bool
    """A round sends WAITAOF behind its appends."""
    text: str


def look_at(server: BlockingConnection) -> Look:
    """Ask the server. Blocks. Raises RedisFailure."""
    fields = told_in(server.call("INFO", "memory", "persistence", "replication"))
    return Look(
        replicas=int(fields.get("connected_slaves", 0)),
        memory_max=int(fields.get("maxmemory", 0)) or int(fields.get("total_system_memory", 0)),
        memory_used=int(fields.get("used_memory", 0)),
        policy=fields.get("maxmemory_policy", ""),
        has_aof=fields.get("aof_enabled") == "1",
        history=fields.get("master_replid", ""),
        history_offset=int(fields.get("master_repl_offset", 0)),
    )


def told_in(reply: Reply) -> dict[str, str]:
    """The fields of an answer to INFO."""
    text = reply.decode() if isinstance(reply, bytes) else str(reply)
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)


def checked(server: BlockingConnection, place: str, durability: str) -> Look:
    """Look at a server that is to keep records, and refuse one that would not. Raises UsageError, RedisFailure."""
    found = look_at(server)
    check(found, place, durability)
    return found


def check(found: Look, place: str, durability: str) -> None:
    """Raises UsageError where a server would not keep records."""
    if found.policy.startswith("allkeys"):
        raise UsageError(f"The Redis at {place} evicts records ({found.policy}): set maxmemory-policy noeviction.")
    if durability == AOF and not found.has_aof:
        raise UsageError(
            f"redis.durability is {AOF}, but the Redis at {place} has no append-only file: set appendonly yes there."
        )


def worth_of(server: BlockingConnection, place: str, found: Look, durability: str) -> Worth:
    """Say what an acknowledgement is worth, and log it in one line. Raises RedisFailure."""
    fsync = _fsync(server) if found.has_aof else ""
    worth = _worth(server, found, fsync, durability)
    log.info(
        "Redis has the logs",
        at=place,
        version=str(server.server.get("version")),
        appendonly="yes" if found.has_aof else "no",
        appendfsync=fsync,
        maxmemory_policy=found.policy,
        replicas=found.replicas,
        acknowledged=worth.text,
    )
    return worth


def _worth(server: BlockingConnection, found: Look, fsync: str, durability: str) -> Worth:
    """With `always` the server's answers come after the sync."""
    if not found.has_aof or fsync == "no":
        return Worth(False, LOSES)
    if fsync == "always":
        return Worth(False, SURVIVES)
    if durability not in ("", AOF):
        return Worth(False, NOT_AWAITED)
    try:
        server.call("WAITAOF", 0, 0, 0)
    except RedisRefused as error:
        if "unknown command" not in error.text.lower():
            raise
        return Worth(False, WEAKER)
    return Worth(True, SURVIVES)


def _fsync(server: BlockingConnection) -> str:
    """The server's `appendfsync`; empty where it keeps its configuration to itself, as hosted ones do."""
    try:
        found = server.call("CONFIG", "GET", "appendfsync")
    except RedisRefused:
        return ""
    return str(found.get(b"appendfsync", b"").decode())
