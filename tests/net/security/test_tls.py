"""TLS as a client: whom it trusts, whom it refuses, and files that change."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from headrace.base.addresses import Address
from headrace.base.errors import UsageError
from headrace.net.client.cluster import Cluster
from headrace.net.client.connection import connect
from headrace.net.client.errors import ConnectionLostError, TlsError
from headrace.net.client.retry import Backoff
from headrace.net.client.security.settings import ClientSecurity
from headrace.net.client.security.tls import context_of
from tests.certificates import NOT_YET, OVER, Authority
from tests.net.scripted_broker import scripted_broker


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.made(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.made(tmp_path_factory.mktemp("stranger"))


def over_tls(trust: Path, **further: str) -> ClientSecurity:
    named = {name.replace("_", "."): value for name, value in further.items()}
    return ClientSecurity.from_properties(
        {"security.protocol": "SSL", "ssl.truststore.location": str(trust), "ssl.truststore.type": "PEM", **named}
    )


async def speaks(security: ClientSecurity, tls: ssl.SSLContext | None) -> None:
    """Raises as `connect` does."""
    async with scripted_broker({}, tls=tls) as broker:
        connection = await connect(broker.address, security=security)
        assert connection.versions
        await connection.close()


async def test_a_broker_with_a_certificate_of_the_ca_is_believed(authority: Authority) -> None:
    await speaks(over_tls(authority.trust), authority.server_context("127.0.0.1"))


async def test_a_text_serves_as_well_as_a_file(authority: Authority) -> None:
    pem = authority.issue(common_name="alice").read_text()
    key, _, rest = pem.partition("-----BEGIN CERTIFICATE-----")
    security = ClientSecurity.from_properties(
        {
            "security.protocol": "SSL",
            "ssl.truststore.certificates": authority.trust.read_text(),
            "ssl.keystore.key": key,
            "ssl.keystore.certificate.chain": "-----BEGIN CERTIFICATE-----" + rest,
        }
    )
    await speaks(security, authority.server_context("127.0.0.1", asks_for_certificate=True))


async def test_another_ca_is_not_believed_and_nobody_is_asked_again(authority: Authority, stranger: Authority) -> None:
    async with scripted_broker({}, tls=stranger.server_context("127.0.0.1")) as broker:
        async with Cluster([broker.address] * 3, security=over_tls(authority.trust)) as cluster:
            with pytest.raises(TlsError, match=r"is not accepted: .*; ssl.truststore.location names"):
                await cluster.retried(lambda: cluster.metadata(()))
        assert not broker.requests


async def test_a_certificate_of_another_name_is_refused_unless_names_are_not_checked(authority: Authority) -> None:
    context = authority.server_context("elsewhere.example")
    with pytest.raises(TlsError, match=r"is not accepted: .*127\.0\.0\.1"):
        await speaks(over_tls(authority.trust), context)
    unchecked = {"ssl_endpoint_identification_algorithm": ""}
    await speaks(over_tls(authority.trust, **unchecked), context)
    with pytest.raises(TlsError):  # the CA is checked all the same
        await speaks(over_tls(Authority.made(authority.directory / "other").trust, **unchecked), context)


@pytest.mark.parametrize(("valid", "why"), [(OVER, "expired"), (NOT_YET, "not yet valid")])
async def test_a_certificate_out_of_its_time_is_refused_whatever_its_name(
    authority: Authority, valid: tuple[int, int], why: str
) -> None:
    context = authority.server_context("127.0.0.1", valid=valid)
    for unchecked in ({}, {"ssl_endpoint_identification_algorithm": ""}):
        with pytest.raises(TlsError, match=f"is not accepted: .*{why}"):
            await speaks(over_tls(authority.trust, **unchecked), context)


async def test_a_client_without_the_wanted_certificate_hears_of_it(authority: Authority, stranger: Authority) -> None:
    context = authority.server_context("127.0.0.1", asks_for_certificate=True)
    own = authority.issue(common_name="alice")
    await speaks(over_tls(authority.trust, ssl_keystore_location=str(own)), context)
    for security in (
        over_tls(authority.trust),
        over_tls(authority.trust, ssl_keystore_location=str(stranger.issue(common_name="mallory"))),
    ):
        with pytest.raises((TlsError, ConnectionLostError)):  # the system may drop the alert behind a reset
            await speaks(security, context)


async def test_versions_that_the_settings_leave_out_are_not_spoken(authority: Authority) -> None:
    context = authority.server_context("127.0.0.1")
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    await speaks(over_tls(authority.trust), context)
    with pytest.raises((TlsError, ConnectionLostError), match="TLS"):
        await speaks(over_tls(authority.trust, ssl_enabled_protocols="TLSv1.3"), context)


async def test_a_plain_broker_is_told_from_one_with_tls(authority: Authority) -> None:
    """A broker takes the beginning of TLS for a frame that is far too long."""

    async def closes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(4)
        writer.close()

    async with await asyncio.start_server(closes, "127.0.0.1", 0) as server:
        address = Address(*server.sockets[0].getsockname()[:2])
        with pytest.raises(ConnectionLostError, match="does it speak TLS there"):
            await connect(address, security=over_tls(authority.trust))


async def test_a_handshake_without_an_answer_ends(authority: Authority) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with await asyncio.start_server(silent, "127.0.0.1", 0) as server:
        address = Address(*server.sockets[0].getsockname()[:2])
        with pytest.raises(ConnectionLostError, match="within 50 ms"):
            await connect(address, timeout_ms=50, security=over_tls(authority.trust))


def test_changed_files_are_read_again_and_unreadable_ones_are_not_used(authority: Authority, tmp_path: Path) -> None:
    trust = tmp_path / "trust.pem"
    trust.write_bytes(authority.trust.read_bytes())
    security = over_tls(trust)
    assert security.tls is not None
    first = context_of(security.tls)
    assert context_of(security.tls) is first
    trust.write_bytes(b"half a fi")
    assert context_of(security.tls) is first
    trust.write_bytes(Authority.made(tmp_path / "next").trust.read_bytes())
    assert context_of(security.tls) is not first


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"\xfe\xed\xfe\xed JKS", "is no PEM file: convert it"),
        (b"-----BEGIN CERTIFICATE-----\nnonsense\n-----END CERTIFICATE-----\n", "no certificate that can be read"),
        (None, "cannot be read: No such file"),
    ],
)
def test_files_that_are_no_certificates_are_named(text: bytes | None, why: str, tmp_path: Path) -> None:
    path = tmp_path / "file.pem"
    if text is not None:
        path.write_bytes(text)
    security = over_tls(path)
    assert security.tls is not None
    with pytest.raises(UsageError, match=why) as refused:
        context_of(security.tls)
    assert str(path) in str(refused.value)


def test_an_encrypted_key_needs_its_password_and_asks_no_terminal(authority: Authority) -> None:
    path = authority.issue(common_name="sealed", password="s3cret")
    good = over_tls(authority.trust, ssl_keystore_location=str(path), ssl_key_password="s3cret")
    assert good.tls is not None
    context_of(good.tls)
    for wrong in ({}, {"ssl_key_password": "s3cre7"}):
        bad = over_tls(authority.trust, ssl_keystore_location=str(path), **wrong)
        assert bad.tls is not None
        with pytest.raises(UsageError, match=r"ssl\.key\.password"):
            context_of(bad.tls)


async def test_a_cluster_reconnects_over_tls(authority: Authority) -> None:
    """A lost connection is opened again as the first was."""
    async with scripted_broker({}, tls=authority.server_context("127.0.0.1")) as broker:
        async with Cluster(
            [broker.address], security=over_tls(authority.trust), backoff=Backoff(first_ms=1)
        ) as cluster:
            (await cluster.any_connection()).abort()
            assert (await cluster.any_connection()).is_open
        assert broker.connections == 2
