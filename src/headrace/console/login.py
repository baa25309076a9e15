"""Logs viewers in as users of the cluster: a client is opened with their name and password, and the brokers judge. Or a
client is opened with the token that an identity provider gave them.

Promises: a password or token is in the client's settings and nowhere else, in no text and no log. It goes in clear text
only over TLS, unless the file of settings names PLAIN or OAUTHBEARER.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from headrace.base.addresses import parse_bootstrap
from headrace.base.errors import UsageError
from headrace.base.limits import LOOK_MS_MAX
from headrace.console.state import PATIENCE
from headrace.net.client.cluster import Cluster
from headrace.net.client.errors import AuthenticationError, ClientError, NoBrokerError, WrongCredentialsError
from headrace.net.client.security.offering import offered
from headrace.net.client.security.settings import JAAS, MECHANISM, PASSWORD, PROTOCOL, PROTOCOLS, USER, ClientSecurity
from headrace.operations.reaching import Reach
from headrace.security.sasl_client import OAUTHBEARER, PLAIN, SCRAM

if TYPE_CHECKING:
    from headrace.console.oidc import Provider, Ticket

BY_PASSWORD: Final = (*reversed(SCRAM), PLAIN)
"""The best first."""
NAME_CHARS_MAX: Final = 256
PASSWORD_CHARS_MAX: Final = 1_024
MECHANISMS: Final = "sasl.mechanisms"
NO_TOKENS: Final = (
    f"The brokers let nobody in by a token: add {OAUTHBEARER} to sasl.enabled.mechanisms of their listener, with its "
    "sasl.oauthbearer.* configs, or start the console with --login for names and passwords."
)
TOKEN_REFUSED: Final = (
    "The brokers do not let this token in: sasl.oauthbearer.expected.issuer, .expected.audience and .jwks.endpoint.url "
    "of their listener have to fit the identity provider's tokens."
)


class Admission(NamedTuple):
    """A viewer whom the brokers let in."""

    user: str
    reach: Reach
    """The cluster as this user."""
    expires_at_s: float | None = None
    """Seconds since 1970, when the token expires; None: there is none."""


@dataclass(frozen=True, slots=True)
class Login:
    """The door of a cluster."""

    bootstrap: str
    properties: Mapping[str, str]
    """A client's, without a user."""
    mechanism: str
    """The only one that is tried; empty: those that the brokers offer."""
    takes_passwords: bool = True
    provider: Provider | None = field(default=None, compare=False)
    """Where viewers log in for a token; None: nowhere."""

    @classmethod
    def of(
        cls,
        bootstrap: str,
        properties: Mapping[str, str],
        *,
        takes_passwords: bool = True,
        provider: Provider | None = None,
    ) -> Self:
        """`properties`: a client's; a user in them is left out. Raises UsageError where nobody could log in."""
        left = {
            name: value
            for name, value in properties.items()
            if name not in (JAAS, USER, PASSWORD, MECHANISM, MECHANISMS)
        }
        protocol = left.get(PROTOCOL, PROTOCOLS[0]).strip().upper()
        if not protocol.startswith("SASL_"):
            option = "--login" if takes_passwords else "--oidc-issuer"
            raise UsageError(
                f"{option} asks viewers for a user of the cluster, and {PROTOCOL} is {protocol}: give --command-config "
                f"a file with {PROTOCOL}=SASL_SSL."
            )
        mechanism = (properties.get(MECHANISM) or properties.get(MECHANISMS) or "").strip().upper()
        if takes_passwords and mechanism not in ("", *BY_PASSWORD):
            raise UsageError(f"--login takes names and passwords: {MECHANISM}={mechanism} is not for these.")
        if not takes_passwords and mechanism not in ("", OAUTHBEARER):
            raise UsageError(
                f"--oidc-issuer passes tokens on by {OAUTHBEARER}: {MECHANISM}={mechanism} is not for these."
            )
        if provider is not None and protocol != PROTOCOLS[-1] and mechanism != OAUTHBEARER:
            raise UsageError(
                f"--oidc-issuer sends tokens to the brokers, in clear text by {protocol}: use {PROTOCOLS[-1]}, or "
                f"accept that by {MECHANISM}={OAUTHBEARER}."
            )
        made = cls(bootstrap, left, mechanism, takes_passwords, provider)
        made._security("nobody", "nothing", PLAIN)  # it raises where the other settings are wrong
        return made

    def _security(self, user: str, password: str, mechanism: str) -> ClientSecurity:
        named = {MECHANISM: mechanism, USER: user, PASSWORD: password}
        return ClientSecurity.from_properties({**self.properties, **named})

    async def by_password(self, user: str, password: str) -> Admission:
        """Raises WrongCredentialsError, ClientError."""
        if not _may_be(user, NAME_CHARS_MAX) or not _may_be(password, PASSWORD_CHARS_MAX):
            raise WrongCredentialsError("A name and a password are needed.")
        refused: WrongCredentialsError | None = None
        for mechanism in await self._mechanisms():
            try:
                return Admission(user, await self._tried(self._security(user, password, mechanism)))
            except WrongCredentialsError as error:
                refused = error
        raise refused or AuthenticationError("The brokers offer no login by name and password.")

    async def by_token(self, ticket: Ticket) -> Admission:
        """Raises WrongCredentialsError, ClientError."""
        if OAUTHBEARER not in await self._offered():
            raise AuthenticationError(NO_TOKENS)
        tls = self._security("nobody", "nothing", PLAIN).tls
        try:
            reach = await self._tried(ClientSecurity.bearer(ticket.token, tls=tls))
        except WrongCredentialsError as error:
            raise WrongCredentialsError(TOKEN_REFUSED) from error
        return Admission(ticket.user, reach, ticket.expires_at_s)

    async def _tried(self, security: ClientSecurity) -> Reach:
        """A way to the cluster with this. Raises WrongCredentialsError, ClientError."""
        found: Reach = partial(Cluster, self.bootstrap, security=security)
        async with found(backoff=PATIENCE, request_timeout_ms=LOOK_MS_MAX) as cluster:
            await cluster.metadata(())
        return found

    async def _mechanisms(self) -> list[str]:
        """Those that are tried with a password, in this order. Raises ClientError."""
        if self.mechanism:
            return [self.mechanism]
        theirs = await self._offered()
        is_encrypted = self._security("nobody", "nothing", PLAIN).tls is not None
        return [each for each in (BY_PASSWORD if is_encrypted else BY_PASSWORD[:-1]) if each in theirs]

    async def _offered(self) -> tuple[str, ...]:
        """The mechanisms of the brokers. Raises ClientError."""
        security = self._security("nobody", "nothing", PLAIN)
        addresses, last = parse_bootstrap(self.bootstrap), None
        for address in addresses:
            try:
                return await offered(address, security.tls)
            except AuthenticationError:
                raise
            except ClientError as error:
                last = error
        raise NoBrokerError(addresses, last, retriable=False)


def _may_be(text: str, most: int) -> bool:
    return 0 < len(text) <= most and "\0" not in text
