"""The certificates of listeners with TLS, and clients that are known by theirs.

Promises: certificates whose files change are used for new connections within TLS_REFRESH_MS.
"""

from __future__ import annotations

import asyncio
from typing import Final

from headrace.base.errors import CorruptData, UsageError
from headrace.base.limits import TLS_REFRESH_MS
from headrace.broker.core import Core
from headrace.broker.kit.tasks import started
from headrace.broker.listeners import ListenerConfig
from headrace.broker.requests.doors import CERTIFICATE
from headrace.logs import get_logger
from headrace.metadata.access.listener_configs import keys_of
from headrace.metadata.access.tls_configs import TLS_DEFS
from headrace.metadata.configs import ConfigValue, listener_value
from headrace.net.pem import NAMES, stores_of
from headrace.net.server.connection import Connection
from headrace.net.server.greeting import Greet, Witness
from headrace.net.server.tls import ClientAuth, Tls, TlsSettings
from headrace.security.authorizer import ANONYMOUS
from headrace.security.principals import PrincipalMapper
from headrace.security.x500 import name_of, subject_of

log = get_logger(__name__)

CLIENT_AUTH: Final = "ssl.client.auth"
STORES: Final = tuple(each.key for each in TLS_DEFS if each.key in NAMES)
"""The configs that name keys and certificates."""


class Certificates:
    """Those of one broker."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._tls: list[Tls] = []
        self._refreshing: asyncio.Task[None] | None = None

    def stop(self) -> None:
        """Read no certificates any more."""
        if self._refreshing is not None:
            self._refreshing.cancel()

    async def of_listener(self, listener: ListenerConfig, witness: Witness | None) -> tuple[Tls, Greet | None]:
        """Return TLS of a listener, and what names its clients where they are asked for a certificate. `witness`: see
        `by_certificate`. Raises UsageError."""
        settings = self._settings(listener.name, self._client_auth(listener))
        tls = await self._made(settings)
        if settings.client_auth is ClientAuth.NONE:
            return tls, None
        mapper = PrincipalMapper(self._value(listener.name, "ssl.principal.mapping.rules").text())
        return tls, by_certificate(mapper, witness)

    async def of_endpoint(self, name: str) -> Tls:
        """Return TLS of an endpoint that is no listener, with the certificates that are set for all, or for this name.
        It asks nobody for a certificate. Raises UsageError."""
        return await self._made(self._settings(name, ClientAuth.NONE))

    async def _made(self, settings: TlsSettings) -> Tls:
        """Return TLS whose certificates are read again when they change."""
        made = await asyncio.get_running_loop().run_in_executor(None, Tls, settings)
        self._tls.append(made)
        if self._refreshing is None:
            self._refreshing = started(self._refresh(), "certificates", self._core.on_bug)
        return made

    def _settings(self, listener: str, client_auth: ClientAuth) -> TlsSettings:
        values = {key: self._value(listener, key) for key in STORES}
        given = {key: value.value for key, value in values.items() if value.value is not None and not value.is_default}
        return TlsSettings(
            listener=listener,
            stores=stores_of(given),
            client_auth=client_auth,
            versions=self._list(listener, "ssl.enabled.protocols"),
            suites=self._list(listener, "ssl.cipher.suites"),
        )

    def _client_auth(self, listener: ListenerConfig) -> ClientAuth:
        """Whether clients show a certificate. As in Kafka, a SASL_SSL listener asks only where it is set for it."""
        is_own = any(key in self._core.config.configs for key in keys_of(listener.name, CLIENT_AUTH)[:-1])
        if listener.protocol.has_sasl and not is_own:
            return ClientAuth.NONE
        return ClientAuth(self._value(listener.name, CLIENT_AUTH).text())

    def _list(self, listener: str, key: str) -> list[str]:
        return [item for item in self._value(listener, key).text().split(",") if item]

    def _value(self, listener: str, key: str) -> ConfigValue:
        core = self._core
        return listener_value(core.image(), core.config.configs, listener, key, node=core.node)

    async def _refresh(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(TLS_REFRESH_MS / 1000)
            changed = [await loop.run_in_executor(None, tls.refresh) for tls in self._tls]
            if any(changed) and len(self._core.image().brokers) > 1:
                self._check_own_rights()

    def _check_own_rights(self) -> None:
        """Say so where other brokers will refuse the new certificate's name."""
        try:
            self._core.config.check_own_rights()
        except UsageError as error:
            log.error("other brokers will refuse this one", reason=str(error))


def by_certificate(mapper: PrincipalMapper, witness: Witness | None = None) -> Greet:
    """Return what names a client by its certificate. One that shows none stays anonymous. `witness`: None: nobody hears
    of clients."""

    def greet(connection: Connection) -> None:
        certificate = connection.certificate()
        if certificate is None:
            return
        problem, name = None, None
        try:
            name = mapper.name(name_of(subject_of(certificate)))
        except CorruptData as error:
            problem = str(error)
        if name is None and problem is None:
            problem = "no rule of ssl.principal.mapping.rules fits the name of its certificate"
        principal = ANONYMOUS if name is None else f"User:{name}"
        if witness is not None:
            witness.authenticated(principal, connection.peer_host, connection.listener_name, CERTIFICATE, problem)
        if problem is not None:
            connection.end(problem)
            return
        connection.principal = principal

    return greet
