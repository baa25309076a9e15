"""Connections to other brokers, for requests that this broker makes as their client: one for each, opened on demand."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from headrace.base.addresses import Address
from headrace.base.errors import HeadraceError
from headrace.net.client.connection import Connection, connect
from headrace.net.client.errors import ClientError
from headrace.wire.apis import ApiKey


class NotSent(HeadraceError):  # noqa: N818 - a state
    """The request did not reach the other broker."""


class Links:
    """A connection to each broker that was asked lately, opened on demand. Requests are pipelined."""

    def __init__(self, most: int) -> None:
        """`most`: of the connections; the one that was used the longest ago is closed for one more."""
        self._most: Final = most
        self._links: dict[Address, asyncio.Task[Connection]] = {}

    async def ask(self, address: Address, key: ApiKey, request: Any, *, version: int, deadline: float) -> Any:
        """Send a request, and return the response. `deadline`: in the loop's time. Raises NotSent, and ClientError
        where it is not known whether it was received."""
        try:
            connection = await asyncio.shield(self._connecting(address, deadline))
        except ClientError as error:
            raise NotSent(str(error)) from error
        return await connection.request(key, request, version=version, timeout_ms=_left_ms(deadline))

    def _connecting(self, address: Address, deadline: float) -> asyncio.Task[Connection]:
        known = self._links.pop(address, None)
        if known is None or (known.done() and not _is_open(known)):
            opening = connect(address, client_id="headrace-broker", timeout_ms=_left_ms(deadline))
            known = asyncio.ensure_future(opening)
            known.add_done_callback(_is_open)  # its error is read, though nobody may wait for it any more
            while len(self._links) >= self._most:
                self._drop(next(iter(self._links)))
        self._links[address] = known
        return known

    def _drop(self, address: Address) -> None:
        link = self._links.pop(address)
        if not link.done():
            link.cancel()
        elif _is_open(link):
            link.result().abort()

    async def close(self) -> None:
        links = list(self._links.values())
        for address in list(self._links):
            self._drop(address)
        await asyncio.gather(*links, return_exceptions=True)


def _left_ms(deadline: float) -> int:
    return max(1, int((deadline - asyncio.get_running_loop().time()) * 1000))


def _is_open(link: asyncio.Task[Connection]) -> bool:
    return link.done() and not link.cancelled() and link.exception() is None and link.result().is_open
