"""How this broker opens connections to others: as the listener between brokers asks its clients to.

Promises: TLS and SASL as the configs of that listener say, by Kafka's names. The broker's own certificate is shown to
the others, where there is one. Configs by which no other broker would let this one in are refused at the start. A
broker without others may leave the login out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from headrace.base.errors import UsageError
from headrace.broker.listeners import INTER_BROKER, ListenerConfig, SecurityProtocol
from headrace.metadata.access.listener_configs import PREFIX, keys_of
from headrace.net.client.security.settings import JAAS, PLAIN, ClientSecurity

MECHANISM: Final = "sasl.mechanism.inter.broker.protocol"
LOGIN_KEYS: Final = (
    JAAS,
    "sasl.oauthbearer.client.credentials.client.id",
    "sasl.oauthbearer.client.credentials.client.secret",
    "sasl.oauthbearer.scope",
    "sasl.oauthbearer.token.endpoint.url",
)


def security_between_brokers(
    configs: Mapping[str, str], listener: ListenerConfig, *, has_others: bool
) -> ClientSecurity:
    """The security of this broker as the client of others, if it `has_others`. Raises UsageError."""
    if listener.protocol is SecurityProtocol.PLAINTEXT:
        return PLAIN
    from headrace.security.sasl_client import MECHANISMS

    given = {"security.protocol": str(listener.protocol)}
    if listener.protocol.has_tls:
        given |= _found(configs, listener.name, _tls_keys())
    mechanism = configs.get(MECHANISM, "").strip()
    if listener.protocol.has_sasl and not mechanism and not has_others:
        given["security.protocol"] = "SSL" if listener.protocol.has_tls else "PLAINTEXT"
    elif listener.protocol.has_sasl:
        if not mechanism:
            raise UsageError(
                f"{MECHANISM} is missing: brokers reach each other by listener {listener.name}, which is "
                f"{listener.protocol}; set it, or name another listener in {INTER_BROKER}."
            )
        if mechanism.upper() not in MECHANISMS:
            raise UsageError(
                f"{MECHANISM} is {mechanism:.40}, which is not known here: choose {', '.join(MECHANISMS)}."
            )
        given |= {"sasl.mechanism": mechanism, **_found(configs, listener.name, LOGIN_KEYS, mechanism)}
        if JAAS not in given:
            raise UsageError(
                f"{PREFIX}{listener.name.lower()}.{mechanism.lower()}.{JAAS} is missing, or has no username and "
                "password: brokers log in at each other with these."
            )
    try:
        return ClientSecurity.from_properties(given)
    except UsageError as error:
        raise UsageError(f"Listener {listener.name}, as other brokers use it: {error}") from error


def _tls_keys() -> tuple[str, ...]:
    from headrace.net import pem
    from headrace.net.client.security.tls import ENABLED, IDENTIFICATION

    return (*sorted(pem.NAMES), ENABLED, IDENTIFICATION)


def _found(
    configs: Mapping[str, str], listener: str, keys: tuple[str, ...], mechanism: str | None = None
) -> dict[str, str]:
    """The values for the listener, by their bare names."""
    named = {key: keys_of(listener, key, mechanism) for key in keys}
    return {
        key: configs[name] for key, names in named.items() if (name := next(filter(configs.__contains__, names), ""))
    }
