"""A Redis Cluster: each command goes to the server of its key's slot, and follows where the slot moves.

Promises: MOVED and ASK are followed at most REDIS_REDIRECTS_MAX times; the command was not executed before. Commands
for keys of one slot leave in the order of the calls, but for those that are redirected. The slots are learnt again as
soon as a server is lost, or refuses a command for the Cluster's sake. While a slot is on its way, servers refuse
functions that name a key which does not exist (TRYAGAIN). Such a call passes once the slot has moved.

Source: the Redis Cluster specification (redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeAlias

from headrace.base.errors import HeadraceError, UsageError
from headrace.base.limits import (
    REDIS_BACKOFF_MS_MAX,
    REDIS_BACKOFF_MS_MIN,
    REDIS_CLUSTER_LOOK_MS,
    REDIS_CLUSTER_NODES_MAX,
    REDIS_CONNECT_MS_MAX,
    REDIS_REDIRECTS_MAX,
)
from headrace.base.ports import Buffer, Random
from headrace.storage.redis.errors import (
    RedisAsk,
    RedisClusterDown,
    RedisDenied,
    RedisElsewhere,
    RedisFailure,
    RedisGarbled,
    RedisMoved,
    RedisReadOnly,
    RedisRefused,
    RedisUnreachable,
)
from headrace.storage.redis.links.address import RedisAddress
from headrace.storage.redis.links.client import Fixed, Redis, RedisNode
from headrace.storage.redis.links.connection import Argument, Done, Place, Reply, connect
from headrace.storage.redis.server_side.keys import SLOTS, slot_of

Node: TypeAlias = tuple[str, int]
"""Host and port of a server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Command:
    """A command on its way through the Cluster."""

    command: tuple[Argument, ...]
    payload: Sequence[Buffer]
    done: Done
    left: int = REDIS_REDIRECTS_MAX
    """How often it may still be redirected."""


class RedisCluster(Redis):
    """All masters of one Cluster. Raises UsageError where TLS files cannot be read."""

    is_clustered = True

    def __init__(self, address: RedisAddress, random: Random) -> None:
        if address.database:
            raise UsageError("A Redis Cluster has database 0 only.")
        self.failure: HeadraceError | None = None
        """Why the slots are not known, or were not when they were last asked for."""
        self._address: Final = address
        self._random = random
        self._tls = None if address.tls is None else address.tls.context()
        self._nodes: dict[Node, RedisNode] = {}
        self._owners: list[Node | None] = [None] * SLOTS
        self._later: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._stale = asyncio.Event()
        self._stale.set()
        self._keeping = asyncio.get_running_loop().create_task(self._keep())

    # a Redis

    def post(self, command: tuple[Argument, ...], done: Done, payload: Sequence[Buffer] = (), *, key: str = "") -> None:
        self._send(self._owner(key), _Command(command=command, payload=payload, done=done))

    def node_of(self, key: str) -> RedisNode:
        return self._node(self._owner(key))

    def place_of(self, key: str) -> Place:
        if (owner := self._owners[_slot(key)]) is None:
            raise self._unserved(key)
        return self._place(owner)

    def places(self) -> list[Place]:
        if None in (owners := self._owners):
            raise RedisUnreachable(str(self.failure or f"The Redis Cluster at {self._address} lacks slots."))
        return [self._place(owner) for owner in set(owners) if owner is not None]

    def hear(self, refusal: RedisRefused) -> None:
        self._on_refused(None, refusal)

    @property
    def nodes(self) -> Sequence[RedisNode]:
        return [self._nodes[owner] for owner in self._masters if owner in self._nodes]

    async def ready(self, timeout_ms: int) -> None:
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while not self.is_connected:
                    if isinstance(self.failure, UsageError | RedisDenied):
                        raise self.failure
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise self._missing() or RedisUnreachable(f"No Redis Cluster within {timeout_ms} ms.") from None

    async def load_functions(self) -> None:
        loaded = await asyncio.gather(*(node.load_functions() for node in self.nodes), return_exceptions=True)
        for failure in filter(None, loaded):
            raise failure

    def beside(self, key: str, *, timeout_ms: int) -> RedisNode:
        async def locate() -> Place:
            return self._place(self._owner(key))

        node = RedisNode(
            locate,
            self._address.credentials,
            self._random,
            timeout_ms=timeout_ms,
            leaves_on=(RedisReadOnly, RedisMoved, RedisClusterDown),
            look_ms=REDIS_CLUSTER_LOOK_MS,
        )
        node.on_refused = lambda refusal: self._on_refused(self._owners[_slot(key)], refusal)
        return node

    async def close(self) -> None:
        self._keeping.cancel()
        tasks = [self._keeping, *self._later]
        for task in self._later:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(node.close() for node in self._nodes.values()))

    # sending

    def _owner(self, key: str) -> Node:
        if (owner := self._owners[_slot(key)]) is None:
            self._stale.set()
            raise self._unserved(key)
        return owner

    def _unserved(self, key: str) -> RedisUnreachable:
        unserved = f"No server of the Redis Cluster at {self._address} serves slot {_slot(key)}."
        return RedisUnreachable(str(self.failure or unserved))

    def _send(self, owner: Node, command: _Command, *, is_asking: bool = False) -> None:
        def on_reply(reply: Reply) -> None:
            if isinstance(reply, RedisElsewhere) and command.left > 0:
                self._follow(reply, owner, replace(command, left=command.left - 1))
            else:
                command.done(reply)

        node = self._node(owner)
        if is_asking:
            node.post(("ASKING",), _ignore)
        node.post(command.command, on_reply, command.payload)

    def _follow(self, reply: RedisElsewhere, asked: Node, command: _Command) -> None:
        owner = (reply.host or asked[0], reply.port)
        is_asking = isinstance(reply, RedisAsk)
        try:
            if self._node(owner).connection is not None:
                self._send(owner, command, is_asking=is_asking)
                return
        except RedisFailure as error:
            command.done(error)
            return
        task = asyncio.get_running_loop().create_task(self._send_later(owner, command, is_asking=is_asking))
        self._later.add(task)
        task.add_done_callback(self._later.discard)

    async def _send_later(self, owner: Node, command: _Command, *, is_asking: bool) -> None:
        """Send a redirected command once there is a connection to its new server."""
        try:
            await self._node(owner).ready(REDIS_CONNECT_MS_MAX)
            self._send(owner, command, is_asking=is_asking)
        except RedisFailure as error:
            command.done(error)
        except UsageError as error:
            command.done(RedisUnreachable(str(error)))
        except asyncio.CancelledError:
            command.done(RedisUnreachable(f"The Redis Cluster at {self._address} was closed by this side."))
            raise

    def _on_refused(self, asked: Node | None, refusal: RedisRefused) -> None:
        host = refusal.host or (asked[0] if asked is not None else "") if isinstance(refusal, RedisMoved) else ""
        if isinstance(refusal, RedisMoved) and host and 0 <= refusal.slot < SLOTS:
            self._owners[refusal.slot] = (host, refusal.port)
        if isinstance(refusal, RedisMoved | RedisClusterDown):
            self._stale.set()

    # servers and slots

    @property
    def _masters(self) -> set[Node]:
        return {owner for owner in self._owners if owner is not None}

    @property
    def is_connected(self) -> bool:
        known = (self._nodes.get(owner) for owner in self._masters)
        return None not in self._owners and all(node is not None and node.connection is not None for node in known)

    @property
    def has_tried(self) -> bool:
        return self.failure is not None or any(node.has_tried for node in self._nodes.values())

    def leave(self, reason: RedisFailure) -> None:
        for node in self._nodes.values():
            node.leave(reason)

    def _missing(self) -> HeadraceError | None:
        """Why the Cluster is not whole."""
        return next((node.failure for node in self.nodes if node.failure is not None), self.failure)

    def _place(self, node: Node) -> Place:
        return Place(host=node[0], port=node[1], tls=self._tls)

    def _node(self, owner: Node) -> RedisNode:
        if (known := self._nodes.get(owner)) is not None:
            return known
        if len(self._nodes) >= REDIS_CLUSTER_NODES_MAX:
            raise RedisUnreachable(f"The Cluster {self._address} has more than {REDIS_CLUSTER_NODES_MAX} servers.")
        made = self._nodes[owner] = RedisNode(Fixed(self._place(owner)), self._address.credentials, self._random)
        made.on_change = partial(self._on_node, made)
        made.on_refused = partial(self._on_refused, owner)
        return made

    def _on_node(self, node: RedisNode) -> None:
        if node.connection is None:
            self._stale.set()
        self._tell()

    async def _keep(self) -> None:
        """Learn the slots whenever they may have changed, and until the Cluster is whole."""
        pause_ms = REDIS_BACKOFF_MS_MIN
        while True:
            await self._stale.wait()
            self._stale.clear()
            try:
                await self._learn()
            except HeadraceError as error:
                self.failure = error
            self._tell()
            if self.is_connected:
                pause_ms = REDIS_BACKOFF_MS_MIN
            else:
                self._stale.set()
            await asyncio.sleep(pause_ms * (0.5 + self._random.random() / 2) / 1000)
            pause_ms = min(2 * pause_ms, REDIS_BACKOFF_MS_MAX)

    async def _learn(self) -> None:
        """Learn the slots from the first server that tells them. Raises RedisFailure or UsageError."""
        known = [(owner[0], partial(node.call, "CLUSTER", "SLOTS")) for owner, node in self._connected()]
        named = [Place(path=self._address.path)] if self._address.path else map(self._place, self._address.hosts)
        seeds = [(place.host, partial(self._ask_seed, place)) for place in named]
        failure: HeadraceError = RedisUnreachable(f"No server of the Redis Cluster at {self._address} answered.")
        for host, ask in (*known, *seeds):
            try:
                async with asyncio.timeout(REDIS_CLUSTER_LOOK_MS / 1000):
                    owners = _owners(await ask(), host)
            except HeadraceError as error:
                failure = error
            except TimeoutError:
                continue
            else:
                await self._take(owners)
                return
        raise failure

    def _connected(self) -> list[tuple[Node, RedisNode]]:
        """Servers with a connection, from a random one on."""
        found = [(owner, node) for owner, node in self._nodes.items() if node.connection is not None]
        at = self._random.randrange(0, max(1, len(found)))
        return found[at:] + found[:at]

    async def _ask_seed(self, place: Place) -> Reply:
        seed = await connect(place, self._address.credentials)
        try:
            return await seed.call("CLUSTER", "SLOTS")
        finally:
            seed.abort()

    async def _take(self, owners: list[Node | None]) -> None:
        """These servers have the slots now. Connections to others end."""
        self._owners = owners
        self.failure = None
        masters = self._masters
        for owner in masters:
            self._node(owner)
        gone = [owner for owner, node in self._nodes.items() if owner not in masters and not node.in_flight]
        await asyncio.gather(*(self._nodes.pop(owner).close() for owner in gone))

    def _tell(self) -> None:
        self._changed.set()
        super()._tell()


def _ignore(reply: Reply) -> None:
    """ASKING cannot fail alone."""


def _slot(key: str) -> int:
    return slot_of(key.encode())


def _owners(slots: Any, host: str) -> list[Node | None]:
    """The master of each slot, as CLUSTER SLOTS tells them. `host`: where a server without a name is. Raises
    RedisGarbled, and RedisClusterDown where no slot has a server."""
    owners: list[Node | None] = [None] * SLOTS
    try:
        for first, last, master, *_ in slots:
            owner = ((master[0] or b"").decode() or host, int(master[1]))
            owners[first : last + 1] = [owner] * (last + 1 - first)
    except (TypeError, ValueError, IndexError, AttributeError):
        raise RedisGarbled("A server of a Redis Cluster answers CLUSTER SLOTS in a way that is not known.") from None
    if not any(owners):
        raise RedisClusterDown("CLUSTERDOWN no slot of the Redis Cluster has a server")
    return owners
