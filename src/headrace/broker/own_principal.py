"""The principal by which other brokers know this one, and whether they will serve it by that.

ACLs are in the metadata, which brokers have only once a majority of them has come together. So no ACL lets a broker in
at that time, and each has to be a super user.

Promises: a broker that others would refuse is refused at its start, in one sentence. Where nobody knows its principal
before it logs in, the sentence is a warning. Source: Kafka's DefaultKafkaPrincipalBuilder.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any, Final

from headrace.base.errors import CorruptData, UsageError
from headrace.broker.listeners import CLIENT_AUTH, ListenerConfig
from headrace.metadata.access.listener_configs import keys_of
from headrace.net.client.errors import ClientError
from headrace.net.client.security.settings import ClientSasl, ClientSecurity
from headrace.security.authorizer import ANONYMOUS

AUTHORIZER: Final = "authorizer.class.name"
SUPER_USERS: Final = "super.users"
MAPPING: Final = "ssl.principal.mapping.rules"
SUBJECT_CLAIM: Final = "sasl.oauthbearer.sub.claim.name"
SHOWN_CHARACTERS_MAX: Final = 200


def super_users(text: str) -> frozenset[str]:
    """The principals in the config. Raises UsageError for one that could never be a client's."""
    found = frozenset(each.strip() for each in text.split(";")) - {""}
    for each in sorted(found):
        kind, _, name = each.partition(":")
        if not kind or not name:
            raise UsageError(
                f"{SUPER_USERS} has '{each:.{SHOWN_CHARACTERS_MAX}}', which is no principal: write User:NAME for each, "
                "with a semicolon between two."
            )
    return found


def check_own_rights(configs: Mapping[str, str], listener: ListenerConfig, security: ClientSecurity) -> str | None:
    """Raises UsageError where the authorizer of other brokers would refuse this one. `listener`: that between brokers;
    `security`: of this broker as their client. Returns what is to be said where its principal is not known."""
    supers = super_users(configs.get(SUPER_USERS, ""))
    principal = own_principal(configs, listener, security)
    if principal is None:
        return (
            "brokers know no ACLs before they have come together, and this one learns its principal only as it logs in "
            f"at another; see that the principal is in {SUPER_USERS} of every broker"
        )
    if principal in supers:
        return None
    if principal == ANONYMOUS:
        raise UsageError(
            f"Brokers reach each other by listener {listener.name}, which asks nobody who it is, so that the "
            f"authorizer would refuse them: give it SASL, or SSL with {CLIENT_AUTH}=required, and name the principal "
            f"of every broker in {SUPER_USERS}."
        )
    raise UsageError(
        f"This broker is {principal:.{SHOWN_CHARACTERS_MAX}} to the others, which is not in {SUPER_USERS}, and they "
        f"know no ACLs before they have come together: add the principal of every broker to {SUPER_USERS} of each."
    )


def own_principal(configs: Mapping[str, str], listener: ListenerConfig, security: ClientSecurity) -> str | None:
    """The principal of this broker at the others. None: nobody knows it before it logs in. Raises UsageError where its
    certificate gives none."""
    if security.sasl is not None:
        return _of_login(configs, listener.name, security.sasl)
    asks = _value(configs, listener.name, CLIENT_AUTH).strip() in ("required", "requested")
    certificate = security.tls.stores.certificate() if security.tls is not None and asks else None
    if certificate is None:
        return ANONYMOUS
    from headrace.security.principals import PrincipalMapper
    from headrace.security.x500 import name_of, subject_of

    try:
        name = name_of(subject_of(certificate))
    except CorruptData as error:
        raise UsageError(f"The certificate of this broker cannot be read ({error}): set another one.") from error
    mapped = PrincipalMapper(_value(configs, listener.name, MAPPING)).name(name)
    if mapped is None:
        raise UsageError(
            f"No rule of {MAPPING} fits {name:.{SHOWN_CHARACTERS_MAX}}, the name of this broker's certificate, and so "
            "no other broker would serve it: add a rule, or DEFAULT."
        )
    return f"User:{mapped}"


def _of_login(configs: Mapping[str, str], listener: str, sasl: ClientSasl) -> str | None:
    from headrace.net.client.security.tokens import TokenFile
    from headrace.security.sasl_client import OAUTHBEARER

    if sasl.mechanism != OAUTHBEARER:
        return f"User:{sasl.user}"
    if not isinstance(sasl.token, TokenFile):
        return None
    try:
        token = sasl.token()
    except ClientError:
        return None  # it may come later
    subject = _claim(token, _value(configs, listener, SUBJECT_CLAIM, OAUTHBEARER) or "sub")
    return None if subject is None else f"User:{subject}"


def _claim(token: str, claim: str) -> str | None:
    """A claim of this side's own token, whose signature is for others to check."""
    try:
        body = token.split(".")[1]
        claims: Any = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    except (IndexError, ValueError, RecursionError):
        return None
    found = claims.get(claim) if isinstance(claims, dict) else None
    return found if isinstance(found, str) and found else None


def _value(configs: Mapping[str, str], listener: str, key: str, mechanism: str | None = None) -> str:
    """The value for the listener; empty: none is set."""
    return next((configs[name] for name in keys_of(listener, key, mechanism) if name in configs), "")
