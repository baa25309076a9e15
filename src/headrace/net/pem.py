"""Certificates and keys in PEM form, by Kafka's names and librdkafka's: files, or the texts themselves.

Promises: a text that is a secret is in no repr and in no error. Files are read when a TLS context is made, and `stamps`
tells when they have changed. Java's key stores (JKS, PKCS12) are refused, with the command that converts them.
"""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

from headrace.base.errors import UsageError

PEM: Final = "PEM"
TRUST_FILES: Final = ("ssl.truststore.location", "ssl.ca.location")
TRUST_TEXTS: Final = ("ssl.truststore.certificates", "ssl.ca.pem")
CHAIN_FILES: Final = ("ssl.keystore.location", "ssl.certificate.location")
CHAIN_TEXTS: Final = ("ssl.keystore.certificate.chain", "ssl.certificate.pem")
KEY_FILES: Final = ("ssl.key.location",)
KEY_TEXTS: Final = ("ssl.keystore.key", "ssl.key.pem")
PASSWORD: Final = "ssl.key.password"
TYPES: Final = ("ssl.truststore.type", "ssl.keystore.type")
NAMES: Final = frozenset(
    (*TRUST_FILES, *TRUST_TEXTS, *CHAIN_FILES, *CHAIN_TEXTS, *KEY_FILES, *KEY_TEXTS, PASSWORD, *TYPES)
)
"""The settings that are read here."""

Stamps: TypeAlias = tuple[tuple[str, int, int, int], ...]
"""It tells one state of the files from another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PemStores:
    """Whom this side trusts, and how it proves who it is. Empty texts: not given."""

    trust_file: str = ""
    trust_text: str = ""
    chain_file: str = ""
    """This side's certificate and those between it and the CA; the key, too, unless `key_file` names another."""
    key_file: str = ""
    chain_text: str = ""
    key_text: str = field(default="", repr=False)
    key_password: str = field(default="", repr=False)

    @property
    def has_identity(self) -> bool:
        """Whether there is a certificate that this side shows."""
        return bool(self.chain_file or self.chain_text)

    @property
    def has_trust(self) -> bool:
        """Whether it is said whom to trust. Otherwise it is whom the operating system trusts."""
        return bool(self.trust_file or self.trust_text)

    def stamps(self) -> Stamps:
        """The present state of the files. A missing one has a state, too."""
        return tuple(_stamp(path) for path in (self.trust_file, self.chain_file, self.key_file) if path)

    def certificate(self) -> bytes | None:
        """This side's own certificate, in DER; None: it has none. Raises UsageError."""
        if not self.has_identity:
            return None
        text = self.chain_text or _read(self.chain_file)
        begin = text.find(ssl.PEM_HEADER)
        end = text.find(ssl.PEM_FOOTER, begin)
        try:
            if begin >= 0 and end >= 0:
                return ssl.PEM_cert_to_DER_cert(text[begin : end + len(ssl.PEM_FOOTER)])
        except ValueError:
            pass
        raise UsageError(f"{_place(self.chain_file, CHAIN_TEXTS)} holds no certificate that can be read.")

    def load_trust(self, context: ssl.SSLContext) -> None:
        """Have the context trust these. Each certificate is trusted by itself, as in Java. Raises UsageError."""
        if not self.has_trust:
            context.load_default_certs()
            return
        text = self.trust_text or _read(self.trust_file)
        try:
            context.load_verify_locations(cadata=text)
        except (ssl.SSLError, ValueError) as error:
            raise UsageError(
                f"{_place(self.trust_file, TRUST_TEXTS)} holds no certificate that can be read."
            ) from error
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN

    def load_identity(self, context: ssl.SSLContext) -> None:
        """Have the context show this certificate, where there is one. Raises UsageError."""
        if not self.has_identity:
            return
        for path in (self.chain_file, self.key_file):
            if path:
                _read(path)
        text = f"{self.key_text}\n{self.chain_text}" if self.chain_text else ""
        place = _place(self.chain_file, CHAIN_TEXTS)
        try:
            with _as_file(text, self.chain_file) as chain:
                # with a password, and be it an empty one, OpenSSL asks for none on the terminal
                context.load_cert_chain(chain, self.key_file or None, password=lambda: self.key_password)
        except ssl.SSLError as error:
            raise UsageError(f"{place} and its key cannot be used ({_reason(error)}): see {PASSWORD}, too.") from error


NO_STORES: Final = PemStores()


def stores_of(properties: Mapping[str, str], named: str = "") -> PemStores:
    """The stores that the settings name. `named`: the prefix that stood before their names. Raises UsageError."""
    for name in TYPES:
        kind = properties.get(name, "").strip().upper()
        if kind not in ("", PEM, "JKS", "PKCS12"):
            raise UsageError(f"{named}{name} must be {PEM}, not '{kind:.20}'.")
        store = name.removesuffix(".type")
        if kind in ("JKS", "PKCS12") and properties.get(f"{store}.location"):
            raise UsageError(f"{named}{name}={kind} is not read here, only {PEM}: {_CONVERT}")
    stores = PemStores(
        trust_file=_first(properties, TRUST_FILES).strip(),
        trust_text=_first(properties, TRUST_TEXTS),
        chain_file=_first(properties, CHAIN_FILES).strip(),
        key_file=_first(properties, KEY_FILES).strip(),
        chain_text=_first(properties, CHAIN_TEXTS),
        key_text=_first(properties, KEY_TEXTS),
        key_password=properties.get(PASSWORD, ""),
    )
    for one, other, names in (
        (stores.trust_file, stores.trust_text, (TRUST_FILES[0], TRUST_TEXTS[0])),
        (stores.chain_file, stores.chain_text, (CHAIN_FILES[0], CHAIN_TEXTS[0])),
    ):
        if one and other:
            raise UsageError(f"{named}{names[0]} and {named}{names[1]} contradict each other: give one of them.")
    if bool(stores.chain_text) != bool(stores.key_text) or (stores.key_file and not stores.chain_file):
        raise UsageError(
            f"A certificate and its key come together: give {named}{CHAIN_TEXTS[0]} and {named}{KEY_TEXTS[0]}."
        )
    return stores


_CONVERT: Final = (
    "convert it with keytool -importkeystore -srckeystore FILE -destkeystore FILE.p12 -deststoretype PKCS12, "
    "then openssl pkcs12 -in FILE.p12 -out FILE.pem."
)


def _first(properties: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((value for name in names if (value := properties.get(name, ""))), "")


def _place(path: str, texts: tuple[str, ...]) -> str:
    return path or texts[0]


def _read(path: str) -> str:
    """The text of a PEM file. Raises UsageError."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}.") from error
    if b"-----BEGIN " not in data:
        raise UsageError(f"{path} is no PEM file: {_CONVERT}")
    return data.decode("ascii", "replace")


@contextmanager
def _as_file(text: str, path: str) -> Iterator[str]:
    """A path where OpenSSL finds the text. It reads keys from files alone. Only this user can read it, and it is gone
    afterwards; on Linux it was on no disk."""
    if not text:
        yield path
    elif hasattr(os, "memfd_create"):
        number = os.memfd_create("headrace-key", os.MFD_CLOEXEC)
        try:
            os.write(number, text.encode())
            yield f"/proc/self/fd/{number}"
        finally:
            os.close(number)
    else:
        with tempfile.NamedTemporaryFile("w", prefix="headrace-") as file:
            file.write(text)
            file.flush()
            yield file.name


def _stamp(path: str) -> tuple[str, int, int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return path, -1, -1, -1
    return path, found.st_mtime_ns, found.st_size, found.st_ino


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or "it is malformed").replace("_", " ").lower()
