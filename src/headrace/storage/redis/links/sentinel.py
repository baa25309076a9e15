"""Sentinels name the master of a service.

Promises: all Sentinels of the address are asked at once, and the answer of the newest failover counts. An answer that
is older than one before counts only where most Sentinels give such answers: they were set up again.

Source: redis.io/docs/latest/develop/reference/sentinel-clients.
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from headrace.base.addresses import Address
from headrace.base.errors import HeadraceError
from headrace.base.limits import REDIS_CONNECT_MS_MAX
from headrace.storage.redis.errors import RedisGarbled, RedisRefused, RedisUnreachable
from headrace.storage.redis.links.address import RedisAddress
from headrace.storage.redis.links.connection import Place, connect


class _Named(NamedTuple):
    epoch: int
    """The failover of which this Sentinel knows; it only rises."""
    place: Place


class Sentinels:
    """The Sentinels of one address. Raises UsageError where TLS files cannot be read."""

    def __init__(self, address: RedisAddress) -> None:
        self._address: Final = address
        self._tls: Final = None if address.tls is None else address.tls.context()
        self._epoch = -1

    async def master(self) -> Place:
        """Where the master is now. Raises RedisUnreachable where no Sentinel knows it."""
        asking = [asyncio.ensure_future(self._ask(host)) for host in self._address.hosts]
        named: list[_Named] = []
        reasons: list[str] = []
        try:
            for answer in asyncio.as_completed(asking):
                try:
                    named.append(await answer)
                except HeadraceError as error:
                    reasons.append(str(error))
                if self._are_most(named) and max(each.epoch for each in named) >= self._epoch:
                    break
        finally:
            for each in asking:
                each.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
        return self._chosen(named, reasons)

    def _are_most(self, named: list[_Named]) -> bool:
        return 2 * len(named) > len(self._address.hosts)

    def _chosen(self, named: list[_Named], reasons: list[str]) -> Place:
        if not named:
            raise RedisUnreachable(" ".join(reasons))
        newest = max(named, key=lambda each: each.epoch)
        if newest.epoch < self._epoch and not self._are_most(named):
            raise RedisUnreachable(" ".join(["The Sentinels that answer name a master of the past.", *reasons]))
        self._epoch = newest.epoch
        return newest.place

    async def _ask(self, at: Address) -> _Named:
        host, port = at
        sentinel = await connect(
            Place(host=host, port=port, tls=self._tls),
            self._address.sentinel_credentials,
            timeout_ms=REDIS_CONNECT_MS_MAX,
        )
        service = self._address.service
        try:
            # The first is right during a failover too; the second alone tells its number.
            place, about = await asyncio.gather(
                sentinel.call("SENTINEL", "GET-MASTER-ADDR-BY-NAME", service),
                sentinel.call("SENTINEL", "MASTER", service),
            )
            return _Named(int(about[b"config-epoch"]), Place(host=place[0].decode(), port=int(place[1]), tls=self._tls))
        except RedisRefused as error:
            if "No such master" not in error.text:
                raise
            raise RedisUnreachable(f"The Sentinel at {at} knows no master '{service}'.") from None
        except (TypeError, LookupError, ValueError):
            raise RedisGarbled(f"The Sentinel at {at} names the master in a way that is not known.") from None
        finally:
            sentinel.abort()
