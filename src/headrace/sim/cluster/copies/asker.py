"""A client that asks the presumed leader, and another broker if that one does not answer."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from headrace.sim.client import Client, Lost
from headrace.sim.cluster.host import Host
from headrace.sim.cluster.world import PORT, address_of
from headrace.wire.apis import ApiKey


class Asker:
    """One client of one broker at a time."""

    def __init__(self, name: str, hosts: Sequence[Host], chance: random.Random) -> None:
        self._name, self._hosts, self._chance = name, hosts, chance
        self._client: Client | None = None
        self._node = -1

    @property
    def node(self) -> int:
        """The broker that is asked next."""
        if self._client is None:
            self._node = self._chance.choice(self._hosts).node
            self._client = Client(self._name, (address_of(self._node), PORT))
        return self._node

    async def ask(self, api: ApiKey, version: int, request: Any) -> Any:
        """The answer of the presumed leader; None: there is none."""
        assert self.node >= 0
        client = self._client
        assert client is not None
        try:
            return await client.call(api, version, request)
        except Lost:
            self.elsewhere()
            return None

    def elsewhere(self) -> None:
        """Another broker is asked next."""
        if self._client is not None:
            self._client.close()
        self._client = None
