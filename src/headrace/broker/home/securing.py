"""The work of `headrace up --secure`: all that a cluster on one machine needs to let nobody in who does not belong.

In the directory `security` of the data directory it makes a CA, a certificate of the brokers, their own user and an
administrator, each once. A certificate that is about to end, or lacks a name, is made again.

Promises: every file with a secret is readable by its owner alone. No secret is an argument of a process, or is logged.
"""

from __future__ import annotations

import ipaddress
import os
import secrets
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from headrace.base.addresses import Address
from headrace.base.errors import UsageError
from headrace.base.properties import encode_properties, parse_properties
from headrace.metadata.access.scram import ScramMechanism
from headrace.metadata.config_table import STANDARD_AUTHORIZER
from headrace.net.client.access.users import set_password, users
from headrace.net.client.cluster import Cluster
from headrace.net.client.security.settings import ClientSecurity

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ModuleNotFoundError as error:
    raise UsageError(
        "--secure makes certificates with the package cryptography: pip install 'headrace[security]'."
    ) from error

ADMINISTRATOR: Final = "admin"
BROKER: Final = "broker"
"""The user as whom brokers speak to each other."""
MECHANISM: Final = "SCRAM-SHA-512"
"""For clients. Brokers use PLAIN among themselves: their credential is there before any cluster."""
BOOTSTRAP: Final = "bootstrap.servers"
JAAS: Final = "sasl.jaas.config"
ITERATIONS: Final = 8192
CA_DAYS: Final = 3650
CERTIFICATE_DAYS: Final = 398
RENEWED_DAYS_BEFORE: Final = 30
PASSWORD_BYTES: Final = 24


@dataclass(frozen=True, slots=True)
class Secured:
    """The files that were made, or were there."""

    configs: Path
    """Configs of the brokers, as a file of properties."""
    client: Path
    """Kafka's client properties of the administrator."""
    password: str
    """The administrator's."""

    @property
    def user(self) -> str:
        """The administrator."""
        return ADMINISTRATOR

    @property
    def ca(self) -> Path:
        """The certificate that clients trust."""
        return self.configs.with_name("ca.pem")

    def of_brokers(self) -> dict[str, str]:
        """Read the configs of the brokers."""
        return dict(parse_properties(self.configs.read_text()))

    def __repr__(self) -> str:
        return f"Secured({self.configs}, {self.client})"


def secure(directory: Path, addresses: Iterable[Address]) -> Secured:
    """Make what is missing. `addresses`: where the brokers listen, and what clients are told. Raises UsageError."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory.chmod(0o700)
    ca, certificate = directory / "ca.pem", directory / "broker.pem"
    _make_certificates(ca, directory / "ca-key.pem", certificate, _names(addresses))
    client = directory / "client.properties"
    password = _known(client, "sasl.jaas.config", "password") or secrets.token_urlsafe(PASSWORD_BYTES)
    configs = directory / "broker.properties"
    own = _known(configs, f"listener.name.sasl_ssl.plain.{JAAS}", "password") or secrets.token_urlsafe(PASSWORD_BYTES)
    _write(configs, encode_properties(_broker_configs(certificate, ca, own)))
    _write(client, encode_properties(_client_configs(ca, password)))
    return Secured(configs, client, password)


async def enrol(secured: Secured, brokers: Sequence[Address], *, advertised: Address | None = None) -> None:
    """Give the administrator a credential, unless it has one: its password may have been changed since. Write where the
    brokers are into the client file. `advertised`: what clients are told of the only one; port 0: its own. Raises
    HeadraceError."""
    security = ClientSecurity.from_properties(
        {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            JAAS: secured.of_brokers()[f"listener.name.sasl_ssl.plain.{JAAS}"],
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(secured.ca),
        }
    )
    async with Cluster(brokers, security=security) as cluster:
        if ADMINISTRATOR not in await users(cluster, [ADMINISTRATOR]):
            mechanisms = [ScramMechanism.SCRAM_SHA_512]
            await set_password(cluster, ADMINISTRATOR, secured.password, mechanisms, iterations=ITERATIONS)
    found = parse_properties(secured.client.read_text())
    at = [Address(advertised.host, advertised.port or brokers[0].port)] if advertised is not None else brokers
    _write(secured.client, encode_properties({**found, BOOTSTRAP: ",".join(map(str, at))}))


def _broker_configs(certificate: Path, ca: Path, password: str) -> Mapping[str, str]:
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    return {
        "security.inter.broker.protocol": "SASL_SSL",
        "sasl.enabled.mechanisms": f"PLAIN,{MECHANISM}",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        f"listener.name.sasl_ssl.plain.{JAAS}": (
            f'{module} required username="{BROKER}" password="{password}" user_{BROKER}="{password}";'
        ),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(certificate),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(ca),
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "super.users": f"User:{ADMINISTRATOR};User:{BROKER}",
    }


def _client_configs(ca: Path, password: str) -> Mapping[str, str]:
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    return {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": MECHANISM,
        JAAS: f'{module} required username="{ADMINISTRATOR}" password="{password}";',
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(ca),
    }


def _known(path: Path, key: str, option: str) -> str | None:
    """The option of the login module that a file has; None: there is no such file. Raises UsageError."""
    from headrace.security.jaas import read_jaas

    try:
        text = path.read_text()
    except FileNotFoundError:
        return None
    login = parse_properties(text).get(key, "")
    return read_jaas(login).options.get(option) if login else None


def _names(addresses: Iterable[Address]) -> Sequence[str]:
    hosts = [address.host for address in addresses if not address.is_wildcard]
    return list(dict.fromkeys(("localhost", "127.0.0.1", "::1", socket.gethostname(), *hosts)))


# certificates


def _make_certificates(ca_path: Path, key_path: Path, path: Path, names: Sequence[str]) -> None:
    try:
        ca = x509.load_pem_x509_certificate(ca_path.read_bytes())
        key = serialization.load_pem_private_key(key_path.read_bytes(), None)
    except FileNotFoundError:
        ca, key = _new_ca()
        _write(key_path, _pem_of_key(key))
        _write(ca_path, ca.public_bytes(serialization.Encoding.PEM), mode=0o644)
        path.unlink(missing_ok=True)
    except ValueError as error:
        raise UsageError(
            f"{ca_path} or {key_path} is no PEM file of a CA: move both away, and others are made."
        ) from error
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    if not _is_good(path, names):
        own, certificate = _new_certificate(ca, key, names)
        _write(path, _pem_of_key(own) + certificate.public_bytes(serialization.Encoding.PEM))


def _is_good(path: Path, names: Sequence[str]) -> bool:
    """Whether the certificate has these names and some time left."""
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return False
    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    left = certificate.not_valid_after_utc - datetime.now(UTC)
    return left > timedelta(days=RENEWED_DAYS_BEFORE) and all(_name(each) in found for each in names)


def _new_ca() -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"Headrace CA {secrets.token_hex(4)}")])
    usage = x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    builder = (
        _builder(name, name, key.public_key(), CA_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return builder.sign(key, hashes.SHA256()), key


def _new_certificate(
    ca: x509.Certificate, ca_key: ec.EllipticCurvePrivateKey, names: Sequence[str]
) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, BROKER)])
    builder = (
        _builder(name, ca.subject, key.public_key(), CERTIFICATE_DAYS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([_name(each) for each in names]), critical=False)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
        )
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
    )
    return key, builder.sign(ca_key, hashes.SHA256())


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=days))
    )


def _name(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _pem_of_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write(path: Path, content: bytes | str, *, mode: int = 0o600) -> None:
    """Put the file there whole, or leave the one that is there. It never has other rights than these."""
    data = content.encode() if isinstance(content, str) else content
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(descriptor)
    new.replace(path)
