"""A certificate authority of a test, and PEM files by it, as Kafka's settings name them."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import trustme
from cryptography.hazmat.primitives import serialization

OVER: Final = (-30, -1)
NOT_YET: Final = (1, 30)
"""Days for which a certificate is valid, from now."""


@dataclass(frozen=True, slots=True)
class Authority:
    """One CA. Files go into `directory`."""

    directory: Path
    ca: trustme.CA

    @classmethod
    def made(cls, directory: Path) -> Authority:
        directory.mkdir(parents=True, exist_ok=True)
        made = cls(directory, trustme.CA())
        made.ca.cert_pem.write_to_path(str(made.trust))
        return made

    @property
    def trust(self) -> Path:
        """The CA's certificate."""
        return self.directory / "ca.pem"

    def issue(
        self, *names: str, common_name: str | None = None, password: str = "", valid: tuple[int, int] | None = None
    ) -> Path:
        """A key and its certificate for these hosts, in one file that has the first name. The key is in the only form
        that Kafka reads (PKCS8). `valid`: from and until so many days from now."""
        issued = self._issued(*names, common_name=common_name, valid=valid)
        path = self.directory / f"{names[0] if names else common_name}.pem"
        key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
        sealed = serialization.BestAvailableEncryption(password.encode()) if password else serialization.NoEncryption()
        form = serialization.PrivateFormat.PKCS8
        chain = (one.bytes() for one in issued.cert_chain_pems)
        path.write_bytes(b"".join((key.private_bytes(serialization.Encoding.PEM, form, sealed), *chain)))
        return path

    def server_context(
        self, *names: str, asks_for_certificate: bool = False, valid: tuple[int, int] | None = None
    ) -> ssl.SSLContext:
        """The context of a server with these names. `asks_for_certificate`: of this CA, too. `valid`: see `issue`."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._issued(*names, valid=valid).configure_cert(context)
        if asks_for_certificate:
            self.ca.configure_trust(context)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def _issued(
        self, *names: str, common_name: str | None = None, valid: tuple[int, int] | None = None
    ) -> trustme.LeafCert:
        begin, end = (datetime.now(UTC) + timedelta(days=days) for days in valid) if valid else (None, None)
        return self.ca.issue_cert(*names, common_name=common_name, not_before=begin, not_after=end)
