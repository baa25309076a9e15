"""The doors of a broker: its listeners, bound, each with what it asks of a client before it is served.

Promises: a listener whose configs do not fit is refused when the broker starts, in one sentence that shows no secret. A
broker without TLS loads nothing of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from headrace.base.addresses import Address
from headrace.base.errors import UsageError
from headrace.broker.core import Core
from headrace.broker.listeners import ListenerConfig
from headrace.net.server.greeting import Greet, Witness
from headrace.net.server.listener import Door, Listener
from headrace.security.authorizer import ANONYMOUS

if TYPE_CHECKING:
    from headrace.broker.requests.authentication import Authentication
    from headrace.broker.requests.certificates import Certificates
    from headrace.net.server.tls import Tls

CERTIFICATE: Final = "TLS"
"""The mechanism of clients that show a certificate, in the audit log."""


class Doors:
    """One per broker."""

    def __init__(self, core: Core, listener: Listener, logins: Authentication | None, witness: Witness | None) -> None:
        """`logins`: None: no listener has SASL. `witness`: None: nobody hears of clients."""
        self._core = core
        self._listener = listener
        self._logins = logins
        self._witness = witness
        listener.handshakes.on_refused = self._refused
        self._certificates: Certificates | None = None

    async def bind(self, listeners: Iterable[ListenerConfig]) -> dict[str, Address]:
        """Bind every listener. Returns their bound addresses, by name. Raises UsageError."""
        bound: dict[str, Address] = {}
        for each in listeners:
            door = await self._door(each)
            host, port = each.bound
            try:
                bound[each.name] = Address(host, await self._listener.bind(host, port, door))
            except OSError as error:
                raise UsageError(
                    f"Cannot listen on {each.bound} ({error.strerror or error}): "
                    "stop what listens there, or choose another address."
                ) from error
        return bound

    def stop(self) -> None:
        """Read no certificates any more."""
        if self._certificates is not None:
            self._certificates.stop()

    def _refused(self, host: str, listener: str, reason: str) -> None:
        if self._witness is not None:
            self._witness.authenticated(ANONYMOUS, host, listener, CERTIFICATE, reason)

    async def _door(self, listener: ListenerConfig) -> Door:
        tls: Tls | None = None
        greet: Greet | None = None
        if listener.protocol.has_tls:
            tls, greet = await self.certificates.of_listener(listener, self._witness)
        if listener.protocol.has_sasl:
            assert self._logins is not None, "a listener has SASL"
            greet = self._logins.greet(listener.name)
        return Door(name=listener.name, tls=tls, greet=greet)

    @property
    def certificates(self) -> Certificates:
        """Return the certificates of this broker's endpoints. They are loaded on first use."""
        if self._certificates is None:
            from headrace.broker.requests.certificates import Certificates

            self._certificates = Certificates(self._core)
        return self._certificates
