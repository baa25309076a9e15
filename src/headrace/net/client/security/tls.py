"""TLS as a client: whom to trust, how the broker's name is checked, and this side's own certificate, if any.

Promises: a broker is believed only with a certificate that a trusted one has signed. It must be for the name or address
that this side has connected to, unless `ssl.endpoint.identification.algorithm` is empty. TLS 1.2 is the oldest. Files
are read again when they have changed; while new ones cannot be read, the former serve.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from headrace.base.errors import UsageError
from headrace.base.limits import TLS_CONTEXTS_MAX
from headrace.net.pem import NO_STORES, PemStores, Stamps, stores_of

IDENTIFICATION: Final = "ssl.endpoint.identification.algorithm"
ENABLED: Final = "ssl.enabled.protocols"
VERIFICATION: Final = "enable.ssl.certificate.verification"
NAMES: Final = frozenset((IDENTIFICATION, ENABLED, VERIFICATION))
"""The settings that are read here."""
VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTls:
    """The settings of TLS for a client."""

    stores: PemStores = NO_STORES
    checks_names: bool = True
    versions: tuple[str, ...] = tuple(VERSIONS)


def tls_of(properties: Mapping[str, str], named: str = "") -> ClientTls:
    """The settings in these properties. `named`: the prefix that stood before their names. Raises UsageError."""
    algorithm = properties.get(IDENTIFICATION, "https").strip().lower()
    if algorithm not in ("https", "", "none"):
        raise UsageError(f"{named}{IDENTIFICATION} must be https, or empty, not '{algorithm:.20}'.")
    if properties.get(VERIFICATION, "true").strip().lower() != "true":
        raise UsageError(f"{named}{VERIFICATION} must be true: name the CA to trust in {named}ssl.truststore.location.")
    versions = tuple(part.strip() for part in properties.get(ENABLED, ",".join(VERSIONS)).split(",") if part.strip())
    if not versions or any(one not in VERSIONS for one in versions):
        raise UsageError(f"{named}{ENABLED} must be of {', '.join(VERSIONS)}: older versions are not safe.")
    return ClientTls(stores=stores_of(properties, named), checks_names=algorithm == "https", versions=versions)


_made: dict[ClientTls, tuple[Stamps, ssl.SSLContext]] = {}


def context_of(tls: ClientTls) -> ssl.SSLContext:
    """The context for a new connection, made again where its files have changed. Raises UsageError."""
    stamps = tls.stores.stamps()
    known = _made.get(tls)
    if known is not None and known[0] == stamps:
        return known[1]
    try:
        made = _context(tls)
    except UsageError:
        if known is None:
            raise
        return known[1]  # the files are just being replaced: looked at again for the next connection
    while len(_made) >= TLS_CONTEXTS_MAX:
        del _made[next(iter(_made))]
    _made[tls] = stamps, made
    return made


def _context(tls: ClientTls) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = tls.checks_names
    context.minimum_version = min(VERSIONS[one] for one in tls.versions)
    context.maximum_version = max(VERSIONS[one] for one in tls.versions)
    tls.stores.load_trust(context)
    tls.stores.load_identity(context)
    return context
