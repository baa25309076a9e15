"""The security of a client's connections, as one value. `properties` reads Kafka's client properties.

Promises: no repr shows a password, a key or a token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Self

from headrace.base.values import Value

if TYPE_CHECKING:
    from headrace.net.client.security.tls import ClientTls
    from headrace.net.client.security.tokens import TokenSource

PROTOCOL: Final = "security.protocol"
PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISM: Final = "sasl.mechanism"
JAAS: Final = "sasl.jaas.config"
USER: Final = "sasl.username"
PASSWORD: Final = "sasl.password"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ClientSasl(Value):
    """A way to log in."""

    mechanism: str
    user: str = ""
    password: str = field(default="", repr=False)
    token: TokenSource | None = field(default=None, repr=False)
    """For OAUTHBEARER. It is called in a thread, for each login."""
    extensions: tuple[tuple[str, str], ...] = ()
    """Of a token."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ClientSecurity(Value):
    """The steps of a client before its first request. It can be pickled, unless its token comes from a function."""

    tls: ClientTls | None = None
    """None: the connection is not encrypted."""
    sasl: ClientSasl | None = None
    """None: the client logs in nowhere, but may show a certificate."""

    @property
    def protocol(self) -> str:
        """By Kafka's name."""
        return PROTOCOLS[(self.tls is not None) + 2 * (self.sasl is not None)]

    @property
    def is_plain(self) -> bool:
        """Whether there is nothing to do."""
        return self.tls is None and self.sasl is None

    @classmethod
    def bearer(cls, token: str | Callable[[], str], *, tls: ClientTls | None = None) -> Self:
        """OAUTHBEARER with this token, or one that the function returns, which may block."""
        from headrace.security.sasl_client import OAUTHBEARER

        source = token if callable(token) else lambda: token
        return cls(tls=tls, sasl=ClientSasl(mechanism=OAUTHBEARER, token=source))

    @classmethod
    def from_properties(cls, properties: Mapping[str, str], *, prefix: str = "") -> Self:
        """The security that Kafka's client properties ask for; other settings are left alone. `prefix`: it stands
        before each name (`kafka.`), others are left alone. Raises UsageError.
        """
        from headrace.net.client.security.properties import read

        tls, sasl = read(properties, prefix)
        return cls(tls=tls, sasl=sasl)


PLAIN: Final = ClientSecurity()
"""No TLS and no login: the default of everything that connects."""
