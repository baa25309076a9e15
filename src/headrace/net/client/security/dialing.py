"""Opens a connection for a protocol that is not our client's: TLS and login come first, then the protocol takes over.

Promises: without security it is one plain `create_connection`, and nothing more. Otherwise the protocol's
`connection_made` is called once the broker has let this side in. A session is not renewed behind the protocol's back.
The broker ends the connection when it is over. Its owner opens another, best before that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from headrace.base.addresses import Address
from headrace.net.client.errors import ClientError, ConnectionLostError
from headrace.net.client.security.settings import ClientSecurity

P = TypeVar("P", bound=asyncio.Protocol)
CLIENT_ID = "headrace-broker"


async def dial(
    address: Address, factory: Callable[[], P], *, security: ClientSecurity, timeout_ms: int
) -> tuple[P, float]:
    """Connect, and return the protocol that the factory makes, and the seconds after which another connection had best
    take its place; 0: the session has no end. Raises OSError, TimeoutError; with security also AuthenticationError,
    UnsupportedError."""
    if security.is_plain:
        async with asyncio.timeout(timeout_ms / 1000):
            _, protocol = await asyncio.get_running_loop().create_connection(factory, *address)
        return protocol, 0
    from headrace.net.client.connection import connect
    from headrace.net.client.security.login import renewal_s

    try:
        async with asyncio.timeout(timeout_ms / 1000):
            connection = await connect(address, client_id=CLIENT_ID, timeout_ms=timeout_ms, security=security)
        protocol = factory()
        connection.hand_over(protocol)
    except ConnectionLostError as error:
        raise _world_error(error) from error
    return protocol, renewal_s(connection.session_ms)


def _world_error(error: ClientError) -> OSError:
    """The failure as one of the system. A refused connection stays one: it may mean that a process is gone."""
    cause = error.__cause__
    return cause if isinstance(cause, ConnectionRefusedError) else ConnectionError(str(error))
