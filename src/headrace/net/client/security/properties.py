"""Reads the security of a client's connections from Kafka's client properties.

Promises: Java's names work, and librdkafka's. A setting of security that is not honoured is refused by name: nothing is
less safe than its file says. No error shows a password, a key or a token.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from headrace.base.errors import UsageError
from headrace.net import pem
from headrace.net.client.security.settings import JAAS, MECHANISM, PASSWORD, PROTOCOL, PROTOCOLS, USER, ClientSasl
from headrace.net.client.security.tls import NAMES as TLS_NAMES
from headrace.net.client.security.tls import ClientTls, tls_of
from headrace.net.client.security.tokens import source_of
from headrace.security.jaas import LoginModule, read_jaas
from headrace.security.sasl_client import MECHANISMS, OAUTHBEARER
from headrace.security.sasl_client import PLAIN as PLAIN_MECHANISM

MODULES: Final = {"PlainLoginModule": (PLAIN_MECHANISM,), "OAuthBearerLoginModule": (OAUTHBEARER,)}
SCRAM_MODULE: Final = "ScramLoginModule"
BEARER_LOGIN: Final = "OAuthBearerLoginCallbackHandler"
_EXTENSION: Final = "extension_"

_READ: Final = frozenset((PROTOCOL, MECHANISM, "sasl.mechanisms", JAAS, USER, PASSWORD)) | pem.NAMES | TLS_NAMES
_HARMLESS: Final = re.compile(
    r"sasl\.oauthbearer\..*|sasl\.login\.(refresh|connect|read|retry)\..*|sasl\.kerberos\..*|sasl\.login\.class"
    r"|ssl\.(protocol|provider|keymanager\.algorithm|trustmanager\.algorithm|secure\.random\.implementation)"
    r"|ssl\.(truststore|keystore)\.password"
)
"""Settings that are read elsewhere, change nothing here, or are about Java."""


def read(properties: Mapping[str, str], prefix: str) -> tuple[ClientTls | None, ClientSasl | None]:
    """How to encrypt, and how to log in. `prefix`: as in `ClientSecurity.from_properties`. Raises UsageError."""
    given = {name.removeprefix(prefix): value for name, value in properties.items() if name.startswith(prefix)}
    _check_known(given, prefix)
    protocol = given.get(PROTOCOL, PROTOCOLS[0]).strip().upper()
    if protocol not in PROTOCOLS:
        raise UsageError(f"{prefix}{PROTOCOL} must be one of {', '.join(PROTOCOLS)}, not '{protocol:.30}'.")
    encrypted = tls_of(given, prefix) if protocol.endswith("SSL") else None
    if not protocol.startswith("SASL_"):
        return encrypted, None
    return encrypted, _sasl_of(given, encrypted or ClientTls(), prefix)


def _check_known(given: Mapping[str, str], named: str) -> None:
    handler = given.get("sasl.login.callback.handler.class", "").rpartition(".")[2]
    for name in sorted(given):
        if not name.startswith(("ssl.", "sasl.", "security.", "enable.ssl.")) or name in _READ:
            continue
        if name == "sasl.login.callback.handler.class" and handler in ("", BEARER_LOGIN):
            continue
        if _HARMLESS.fullmatch(name) is None and given[name].strip():
            raise UsageError(f"{named}{name} is not known here: leave it out, if the rest is safe without it.")


def _sasl_of(given: Mapping[str, str], trusting: ClientTls, named: str) -> ClientSasl:
    mechanism = (given.get(MECHANISM) or given.get("sasl.mechanisms") or "").strip().upper()
    if mechanism not in MECHANISMS:
        what = f"'{mechanism:.40}' is not known here" if mechanism else "is missing"
        raise UsageError(f"{named}{MECHANISM} {what}: choose {', '.join(MECHANISMS)}.")
    login = _login_of(given, mechanism, named)
    if mechanism == OAUTHBEARER:
        extensions = tuple(
            (name.removeprefix(_EXTENSION), value)
            for name, value in login.options.items()
            if name.startswith(_EXTENSION)
        )
        _check_extensions(extensions, named)
        source = source_of(given, login.options, trusting.stores, named)
        return ClientSasl(mechanism=mechanism, token=source, extensions=extensions)
    user, password = login.options.get("username", ""), login.options.get("password", "")
    if not user or not password:
        raise UsageError(f"{named}{JAAS} lacks username or password (or give {named}{USER} and {named}{PASSWORD}).")
    if "\0" in user or "\0" in password:
        raise UsageError(f"{named}{JAAS}: no user and no password can have a NUL character.")
    return ClientSasl(mechanism=mechanism, user=user, password=password)


def _login_of(given: Mapping[str, str], mechanism: str, named: str) -> LoginModule:
    """The login module and its options: as in JAAS, or as librdkafka has them."""
    text, user, password = given.get(JAAS, "").strip(), given.get(USER, ""), given.get(PASSWORD, "")
    if not text:
        return LoginModule("", {"username": user, "password": password})
    if user or password:
        raise UsageError(f"{named}{JAAS} and {named}{USER} contradict each other: give one of them.")
    try:
        login = read_jaas(text)
    except ValueError as error:
        raise UsageError(
            f'{named}{JAAS} is malformed ({error}): write LoginModule required username="NAME" password="PASSWORD";'
        ) from None
    module = login.name.rpartition(".")[2]
    if mechanism not in MODULES.get(module, ()) and (module, mechanism[:5]) != (SCRAM_MODULE, "SCRAM"):
        raise UsageError(f"{named}{JAAS} is for {module}, which does not do {mechanism}.")
    if login.options.get("tokenauth", "false").lower() == "true":
        raise UsageError(f"{named}{JAAS} has tokenauth: delegation tokens are not known here.")
    return login


def _check_extensions(extensions: tuple[tuple[str, str], ...], named: str) -> None:
    for name, value in extensions:
        if not re.fullmatch(r"[A-Za-z]+", name) or name == "auth" or not re.fullmatch(r"[\x21-\x7e \t\r\n]*", value):
            raise UsageError(f"{named}{JAAS} has an extension '{name:.40}' that cannot be sent.")
