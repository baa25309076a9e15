"""TLS on the server's side. Certificates are in PEM, and read again when their files change.

Promises:
- Only TLS 1.2 and 1.3. No session is resumed, so a client whose CA was taken away does not come in by an old ticket.
- New connections get the newest certificate that can be used. Those that are open go on with theirs.
- While changed files cannot be used, the old certificates stay in place. One log line says so.

The texts are read from files: `Tls` is made, and refreshed, in a worker thread. Source: KIP-651.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, cast

from headrace.base.errors import UsageError
from headrace.logs import get_logger
from headrace.net.pem import PemStores

log = get_logger(__name__)

VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
SUITES_OF_13: Final = frozenset({"TLS_AES_256_GCM_SHA384", "TLS_AES_128_GCM_SHA256", "TLS_CHACHA20_POLY1305_SHA256"})
ALERT: Final = "TLS alert: "
_SUITES: Final = {
    f"TLS_{exchange}_{key}_WITH_{cipher}": f"{exchange}-{key}-{name}"
    for exchange, key in (("ECDHE", "ECDSA"), ("ECDHE", "RSA"), ("DHE", "RSA"))
    for cipher, name in (
        ("AES_256_GCM_SHA384", "AES256-GCM-SHA384"),
        ("AES_128_GCM_SHA256", "AES128-GCM-SHA256"),
        ("CHACHA20_POLY1305_SHA256", "CHACHA20-POLY1305"),
    )
}
"""OpenSSL's names, by Java's, of suites of TLS 1.2 that encrypt and authenticate in one."""


class ClientAuth(StrEnum):
    """Whether clients show a certificate, under Kafka's names."""

    NONE = "none"
    REQUESTED = "requested"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """The settings of one listener."""

    listener: str
    """Its name, for messages."""
    stores: PemStores
    client_auth: ClientAuth = ClientAuth.NONE
    versions: Sequence[str] = tuple(VERSIONS)
    suites: Sequence[str] = ()
    """Cipher suites by the names of Java or OpenSSL; none: OpenSSL's own choice."""


class Tls:
    """The certificates of one listener."""

    def __init__(self, settings: TlsSettings) -> None:
        """Raises UsageError where the certificates cannot be used."""
        self._settings = settings
        self._stamps = settings.stores.stamps()
        self.context = make_context(settings)
        """The context of the next handshake."""

    @property
    def listener(self) -> str:
        """The name of the listener."""
        return self._settings.listener

    def refresh(self) -> bool:
        """Read the files again where they have changed. Returns whether their certificates are used from now on."""
        stamps = self._settings.stores.stamps()
        if stamps == self._stamps:
            return False
        self._stamps = stamps
        try:
            self.context = make_context(self._settings)
        except (UsageError, OSError, ValueError) as error:  # a file may go while it is read
            log.error("changed certificates cannot be used; the old ones stay", reason=str(error))
            return False
        log.info("changed certificates are used from now on", listener=self._settings.listener)
        return True


def make_context(settings: TlsSettings) -> ssl.SSLContext:
    """Return a context of the present certificates. Raises UsageError."""
    name, stores = settings.listener, settings.stores
    context = _Context(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    context.num_tickets = 0
    _restrict(context, settings)
    if not stores.has_identity:
        raise UsageError(f"Listener {name} has TLS and no certificate: set ssl.keystore.location to a PEM file.")
    stores.load_identity(context)
    if settings.client_auth is ClientAuth.NONE:
        return context
    if not stores.has_trust:
        raise UsageError(
            f"Listener {name} asks clients for certificates, and has none to check them by: set "
            "ssl.truststore.location."
        )
    stores.load_trust(context)
    is_required = settings.client_auth is ClientAuth.REQUIRED
    context.verify_mode = ssl.CERT_REQUIRED if is_required else ssl.CERT_OPTIONAL
    return context


class _Session(ssl.SSLObject):
    """A session whose failure can be told: event loops drop the alert that OpenSSL has written of it."""

    outgoing: ssl.MemoryBIO

    def do_handshake(self) -> None:
        """Adds to the error of a failed handshake the alert for the client."""
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            error.add_note(ALERT + self.outgoing.read().hex())
            raise


class _Context(ssl.SSLContext):
    sslobject_class = _Session

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *more: Any, **named: Any) -> _Session:
        made = cast("_Session", super().wrap_bio(incoming, outgoing, *more, **named))
        made.outgoing = outgoing
        return made


def alert_of(error: BaseException) -> bytes:
    """Return the bytes that tell a client why its handshake failed; none where there is nothing to tell."""
    notes = [note.removeprefix(ALERT) for note in getattr(error, "__notes__", ()) if note.startswith(ALERT)]
    return bytes.fromhex("".join(notes))


def _restrict(context: ssl.SSLContext, settings: TlsSettings) -> None:
    """Allow only the versions and suites of the settings."""
    name, suites = settings.listener, settings.suites
    versions = {VERSIONS[each] for each in settings.versions}
    if suites:
        of_13 = SUITES_OF_13.intersection(suites)
        older = [_SUITES.get(each, each) for each in suites if each not in SUITES_OF_13]
        if of_13 and of_13 != SUITES_OF_13:
            raise UsageError(
                f"ssl.cipher.suites of listener {name} has to name all suites of TLS 1.3 or none of them: "
                f"{', '.join(sorted(SUITES_OF_13))}."
            )
        versions -= set() if of_13 else {ssl.TLSVersion.TLSv1_3}
        versions -= set() if older else {ssl.TLSVersion.TLSv1_2}
        _choose(context, older, name)
    if not versions:
        raise UsageError(
            f"ssl.enabled.protocols and ssl.cipher.suites leave listener {name} no version of TLS: change one of them."
        )
    context.minimum_version, context.maximum_version = min(versions), max(versions)


def _choose(context: ssl.SSLContext, suites: Sequence[str], listener: str) -> None:
    for suite in suites:
        try:
            context.set_ciphers(suite)
        except ssl.SSLError:
            raise UsageError(f"ssl.cipher.suites of listener {listener} names {suite:.60}, which is unknown.") from None
    if suites:
        context.set_ciphers(":".join(suites))
