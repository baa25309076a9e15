"""Connections to other brokers, for requests that this broker makes as their client: one for each, opened on demand.

Promises:
- An answer that does not come in time is lost to the one who waits for it, and to no other. A request with little time
  shares its connection with those that have more.
- Brokers of two releases work side by side. Each connection begins with one ApiVersions, and a request goes out in the
  highest version that both brokers know. Where they have none in common, nothing is sent, and one log line for each
  connection says so.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from headrace.base.addresses import Address
from headrace.base.errors import HeadraceError
from headrace.logs import get_logger
from headrace.net.client.errors import AuthenticationError, UnsupportedError
from headrace.net.client.security.settings import PLAIN, ClientSecurity
from headrace.wire.apis import ApiKey

if TYPE_CHECKING:
    from headrace.net.client.connection import Connection

log = get_logger(__name__)

UNLISTED: Final = frozenset({ApiKey.ENVELOPE})
"""APIs for brokers alone. ApiVersions does not list them, and each broker knows the lowest version."""


class NotSent(HeadraceError):  # noqa: N818 - a state
    """The request did not reach the other broker."""


class NotOffered(NotSent):
    """The other broker knows no version of the request that this one can send. That is logged already."""


class Links:
    """A connection to each broker that was asked lately, opened on demand. Requests are pipelined."""

    def __init__(self, most: int, security: ClientSecurity = PLAIN) -> None:
        """`most`: of the connections; the one that was used the longest ago is closed for one more."""
        self._most: Final = most
        self._security: Final = security
        self._links: dict[Address, asyncio.Task[Connection]] = {}
        self._asking: Counter[Connection] = Counter()
        """Requests that wait for each connection. One that takes no more of them ends with the last of those."""
        self._told: set[tuple[Address, ApiKey]] = set()
        """Requests that were not offered, of the present connections."""
        self._strangers: set[Address] = set()
        """Addresses where this broker was not let in, or did not trust the other, for one log line each."""

    async def ask(
        self,
        address: Address,
        key: ApiKey,
        request: Any,
        *,
        versions: tuple[int, int],
        deadline: float,
        answer_s_min: float = 0.0,
    ) -> Any:
        """Send a request, and return the response. `versions`: the lowest and the highest in which it says what it has
        to. `deadline`: in the loop's time. With less than `answer_s_min` left for the response, nothing is sent. Raises
        NotSent, and ClientError where it is not known whether it was received."""
        try:
            connection = await asyncio.shield(self._connecting(address, deadline))
        except AuthenticationError as error:
            self._tell(address, error)
            raise NotSent(str(error)) from error
        except HeadraceError as error:
            raise NotSent(str(error)) from error
        self._strangers.discard(address)
        version = self._version(connection, key, versions)
        answer_ms_min = int(answer_s_min * 1000)
        if (left_ms := _left_ms(deadline)) < answer_ms_min:
            raise NotSent(f"{address} was reached too late to answer in time.")
        # This process may stand still between the look at the clock and here: then the deadline gives way.
        self._asking[connection] += 1
        try:
            return await connection.request(key, request, version=version, timeout_ms=left_ms, shared=True)
        finally:
            self._asking[connection] -= 1
            if not self._asking[connection]:
                del self._asking[connection]
                if not connection.is_open:
                    connection.abort()

    def _tell(self, address: Address, error: AuthenticationError) -> None:
        """Log, once until it succeeds, that the two brokers do not accept each other."""
        if address not in self._strangers:
            self._strangers.add(address)
            log.warning("a broker and this one do not let each other in", address=str(address), reason=str(error))

    def _version(self, connection: Connection, key: ApiKey, versions: tuple[int, int]) -> int:
        if key in UNLISTED and key not in connection.versions:
            return versions[0]
        try:
            return connection.version(key, versions[1], lowest=versions[0])
        except UnsupportedError as error:
            if (connection.address, key) not in self._told:
                self._told.add((connection.address, key))
                log.warning("a broker of another release does not take a request", reason=str(error))
            raise NotOffered(str(error)) from error

    def _connecting(self, address: Address, deadline: float) -> asyncio.Task[Connection]:
        known = self._links.pop(address, None)
        if known is None or (known.done() and not _is_open(known)):
            from headrace.net.client.connection import connect

            self._told = {told for told in self._told if told[0] != address}
            opening = connect(
                address, client_id="headrace-broker", timeout_ms=_left_ms(deadline), security=self._security
            )
            known = asyncio.ensure_future(opening)
            known.add_done_callback(_is_open)  # its error is read, though nobody may wait for it any more
            while len(self._strangers) > self._most:
                self._strangers.pop()
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
        for connection in self._asking:
            connection.abort()
        links = list(self._links.values())
        for address in list(self._links):
            self._drop(address)
        await asyncio.gather(*links, return_exceptions=True)


def _left_ms(deadline: float) -> int:
    return max(1, int((deadline - asyncio.get_running_loop().time()) * 1000))


def _is_open(link: asyncio.Task[Connection]) -> bool:
    return link.done() and not link.cancelled() and link.exception() is None and link.result().is_open
