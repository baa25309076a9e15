"""Redis for worker threads, whatever its topology: each command goes to the server of its key, and the caller waits.

Promises: the client of the event loop knows where the servers are, and learns what threads hear. MOVED and ASK are
followed at most REDIS_REDIRECTS_MAX times. Nothing is sent twice by itself, but where it was not executed.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Final

from headrace.base.limits import REDIS_CLUSTER_NODES_MAX, REDIS_REDIRECTS_MAX
from headrace.base.ports import Buffer
from headrace.storage.redis.errors import RedisAsk, RedisElsewhere, RedisMoved, RedisNoFunction, RedisUnreachable
from headrace.storage.redis.links.address import RedisAddress
from headrace.storage.redis.links.blocking import BlockingConnection
from headrace.storage.redis.links.client import Redis
from headrace.storage.redis.links.connection import Argument, Place, Reply
from headrace.storage.redis.server_side.functions import Answer, Call, answer_of


class ThreadsRedis:
    """Any thread may call it, but for the event loop's, on which it is made."""

    def __init__(self, redis: Redis, address: RedisAddress) -> None:
        self._redis: Final = redis
        self._address = address
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._connections: dict[str, BlockingConnection] = {}
        self._is_closed = False

    def call(self, *command: Argument, payload: Sequence[Buffer] = (), key: str = "") -> Reply:
        """Send one command to the server of `key` and return its reply. Raises RedisFailure."""
        place, is_asking = self._redis.place_of(key), False
        for left in reversed(range(REDIS_REDIRECTS_MAX + 1)):
            try:
                return self._to(place).call(*command, payload=payload, is_asking=is_asking)
            except RedisElsewhere as elsewhere:
                if isinstance(elsewhere, RedisMoved):
                    self._loop.call_soon_threadsafe(self._redis.hear, elsewhere)
                if not left:
                    raise
                place = Place(host=elsewhere.host or place.host, port=elsewhere.port, tls=place.tls)
                is_asking = isinstance(elsewhere, RedisAsk)
        raise AssertionError

    def run(self, call: Call) -> Answer:
        """Call a function; a missing library is loaded first. Raises RedisFailure."""
        key = call.keys[0]
        try:
            reply = self.call(*call.command, payload=call.buffers, key=key)
        except RedisNoFunction:
            self.load_functions()
            reply = self.call(*call.command, payload=call.buffers, key=key)
        return answer_of(reply)

    def load_functions(self) -> None:
        """Load the library into every server that may run it. Raises RedisFailure."""
        for each in self.servers().values():
            each.load_functions()

    def servers(self) -> dict[str, BlockingConnection]:
        """Connections to all masters, by their places. Raises RedisUnreachable where it is not known where they are."""
        return {str(place): self._to(place) for place in self._redis.places()}

    def close(self) -> None:
        """Idempotent."""
        with self._lock:
            self._is_closed = True
            self._drop()

    def _to(self, place: Place) -> BlockingConnection:
        with self._lock:
            if (known := self._connections.get(str(place))) is not None:
                return known
            if self._is_closed:
                raise RedisUnreachable(f"The connections to Redis at {self._address} were closed by this side.")
            if len(self._connections) >= REDIS_CLUSTER_NODES_MAX:
                self._drop()
            address = self._address
            made = BlockingConnection(place, address.credentials, database=address.database)
            self._connections[str(place)] = made
            return made

    def _drop(self) -> None:
        for each in self._connections.values():
            each.close()
        self._connections.clear()
