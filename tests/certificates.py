"""A certificate authority of a test, and PEM files by it, as Kafka's settings name them."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

import trustme


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

    def issue(self, *names: str, common_name: str | None = None) -> Path:
        """A key and its certificate for these hosts, in one file that has the first name."""
        issued = self.ca.issue_cert(*names, common_name=common_name)
        path = self.directory / f"{names[0] if names else common_name}.pem"
        path.unlink(missing_ok=True)
        issued.private_key_and_cert_chain_pem.write_to_path(str(path))
        return path

    def server_context(self, *names: str, asks_for_certificate: bool = False) -> ssl.SSLContext:
        """The context of a server with these names. `asks_for_certificate`: of this CA, too."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.ca.issue_cert(*names).configure_cert(context)
        if asks_for_certificate:
            self.ca.configure_trust(context)
            context.verify_mode = ssl.CERT_REQUIRED
        return context
