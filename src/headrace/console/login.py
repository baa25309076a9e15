"""Logs viewers in as users of the cluster: a client is opened with their name and password, and the brokers judge.

Promises: a password is in the client's settings and nowhere else, in no text and no log. It goes in clear text only
over TLS, unless the file of settings names PLAIN.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, Self

from headrace.base.addresses import parse_bootstrap
from headrace.base.errors import UsageError
from headrace.base.limits import LOOK_MS_MAX
from headrace.console.state import PATIENCE
from headrace.net.client.cluster import Cluster
from headrace.net.client.errors import AuthenticationError, ClientError, NoBrokerError, WrongCredentialsError
from headrace.net.client.security.offering import offered
from headrace.net.client.security.settings import JAAS, MECHANISM, PASSWORD, PROTOCOL, PROTOCOLS, USER, ClientSecurity
from headrace.operations.reaching import Reach
from headrace.security.sasl_client import PLAIN, SCRAM

BY_PASSWORD: Final = (*reversed(SCRAM), PLAIN)
"""The best first."""
NAME_CHARS_MAX: Final = 256
PASSWORD_CHARS_MAX: Final = 1_024
MECHANISMS: Final = "sasl.mechanisms"


@dataclass(frozen=True, slots=True)
class Login:
    """The door of a cluster."""

    bootstrap: str
    properties: Mapping[str, str]
    """A client's, without a user."""
    mechanism: str
    """The only one that is tried; empty: those that the brokers offer."""

    @classmethod
    def of(cls, bootstrap: str, properties: Mapping[str, str]) -> Self:
        """`properties`: a client's; a user in them is left out. Raises UsageError where nobody could log in."""
        left = {
            name: value
            for name, value in properties.items()
            if name not in (JAAS, USER, PASSWORD, MECHANISM, MECHANISMS)
        }
        protocol = left.get(PROTOCOL, PROTOCOLS[0]).strip().upper()
        if not protocol.startswith("SASL_"):
            raise UsageError(
                f"--login asks viewers for a user of the cluster, and {PROTOCOL} is {protocol}: give --command-config "
                f"a file with {PROTOCOL}=SASL_SSL."
            )
        mechanism = (properties.get(MECHANISM) or properties.get(MECHANISMS) or "").strip().upper()
        if mechanism not in ("", *BY_PASSWORD):
            raise UsageError(f"--login takes names and passwords: {MECHANISM}={mechanism} is not for these.")
        made = cls(bootstrap, left, mechanism)
        made._security("nobody", "nothing", PLAIN)  # it raises where the other settings are wrong
        return made

    def _security(self, user: str, password: str, mechanism: str) -> ClientSecurity:
        named = {MECHANISM: mechanism, USER: user, PASSWORD: password}
        return ClientSecurity.from_properties({**self.properties, **named})

    async def reach(self, user: str, password: str) -> Reach:
        """A way to the cluster as this user. Raises WrongCredentialsError, ClientError."""
        if not _may_be(user, NAME_CHARS_MAX) or not _may_be(password, PASSWORD_CHARS_MAX):
            raise WrongCredentialsError("A name and a password are needed.")
        refused: WrongCredentialsError | None = None
        for mechanism in await self._mechanisms():
            security = self._security(user, password, mechanism)
            found: Reach = partial(Cluster, self.bootstrap, security=security)
            try:
                async with found(backoff=PATIENCE, request_timeout_ms=LOOK_MS_MAX) as cluster:
                    await cluster.metadata(())
            except WrongCredentialsError as error:
                refused = error
            else:
                return found
        raise refused or AuthenticationError("The brokers offer no login by name and password.")

    async def _mechanisms(self) -> list[str]:
        """Those that are tried, in this order. Raises ClientError."""
        if self.mechanism:
            return [self.mechanism]
        security = self._security("nobody", "nothing", PLAIN)
        addresses, last = parse_bootstrap(self.bootstrap), None
        for address in addresses:
            try:
                theirs = await offered(address, security.tls)
            except AuthenticationError:
                raise
            except ClientError as error:
                last = error
            else:
                ours = BY_PASSWORD if security.tls is not None else BY_PASSWORD[:-1]
                return [each for each in ours if each in theirs]
        raise NoBrokerError(addresses, last, retriable=False)


def _may_be(text: str, most: int) -> bool:
    return 0 < len(text) <= most and "\0" not in text
