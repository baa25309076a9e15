"""SCRAM as a client: RFC 7677's example, our own server, and servers that are not what they say."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.limits import SCRAM_CLIENT_ITERATIONS_MAX
from headrace.metadata.access.scram import ITERATIONS_MIN, ScramMechanism
from headrace.security.sasl_client import BearerExchange, PlainExchange, ScramExchange
from headrace.security.scram import ScramServer, credential_of
from headrace.security.scram_client import Distrusted, ScramClient
from tests.tiers import examples

SHA_256, SHA_512 = ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512
NAME = st.text(st.characters(min_codepoint=1, max_codepoint=127), min_size=1, max_size=12)
CHALLENGE = b"r=mine-theirs,s=c2FsdA==,i=4096"


def server_of(user: str, password: str, mechanism: ScramMechanism = SHA_256) -> ScramServer:
    credential = credential_of(mechanism, password, salt=b"salt", iterations=ITERATIONS_MIN)
    return ScramServer(mechanism, {user: credential}.get, nonce="-theirs", secret=b"of the cluster")


def test_the_example_of_the_rfc() -> None:
    """RFC 7677, section 3."""
    client = ScramClient(SHA_256, "user", "pencil", nonce="rOprNGfwEbeRWgbNEkqO")
    assert client.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    nonce = b"rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    final = client.final(b"r=" + nonce + b",s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096")
    assert final == b"c=biws,r=" + nonce + b",p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    client.check(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


@given(NAME, st.text(min_size=1, max_size=12), st.sampled_from((SHA_256, SHA_512)))
@settings(max_examples=examples(60), deadline=None)
def test_client_and_server_come_together(user: str, password: str, mechanism: ScramMechanism) -> None:
    server = server_of(user, password, mechanism)
    exchange = ScramExchange(mechanism, user, password, nonce="mine")
    final = exchange.after(server.first(exchange.first()))
    assert final is not None
    assert exchange.after(server.final(final)) is None
    assert server.user == user


def test_a_server_without_the_keys_is_not_believed() -> None:
    client = ScramClient(SHA_256, "alice", "secret", nonce="mine")
    client.first()
    client.final(CHALLENGE)
    with pytest.raises(Distrusted, match="does not prove"):
        client.check(b"v=" + base64.b64encode(bytes(32)))
    with pytest.raises(Distrusted, match="does not prove"):
        client.check(b"e=other-error")


@pytest.mark.parametrize(
    ("challenge", "why"),
    [
        (b"", "malformed"),
        (b"r=mine-theirs,s=c2FsdA==", "malformed"),
        (b"m=x,r=mine-theirs,s=c2FsdA==,i=4096", "malformed"),  # an extension that this side would have to know
        (b"r=mine-theirs,s=*,i=4096", "malformed"),
        (b"r=mine-theirs,s=c2F,i=4096", "malformed"),
        (b"r=mine-theirs,s=c2FsdA==,i=4096\xff", "malformed"),
        (b"r=mine,s=c2FsdA==,i=4096", "nonce"),
        (b"r=other-theirs,s=c2FsdA==,i=4096", "nonce"),
        (b"r=mine-theirs,s=c2FsdA==,i=1", "iterations"),
        (b"r=mine-theirs,s=c2FsdA==,i=0", "iterations"),
        (b"r=mine-theirs,s=c2FsdA==,i=%d" % (SCRAM_CLIENT_ITERATIONS_MAX + 1), "iterations"),
        (b"r=mine-theirs,s=c2FsdA==,i=9999999999", "malformed"),
    ],
)
def test_a_hostile_challenge_is_refused(challenge: bytes, why: str) -> None:
    client = ScramClient(SHA_256, "alice", "secret", nonce="mine")
    with pytest.raises(Distrusted, match=why) as refused:
        client.final(challenge)
    assert "secret" not in str(refused.value)


@given(st.data())
@settings(max_examples=examples(100), deadline=None)
def test_a_changed_byte_anywhere_is_never_believed(data: st.DataObject) -> None:
    server, client = server_of("alice", "secret"), ScramClient(SHA_256, "alice", "secret", nonce="mine")
    server.first(client.first())
    final = client.final(CHALLENGE)
    proof = bytearray(server.final(final))
    at = data.draw(st.integers(0, len(proof) - 3))  # behind it are bits that say nothing
    proof[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(Distrusted):
        client.check(bytes(proof))


def test_plain_is_name_and_password() -> None:
    exchange = PlainExchange("alice", "pässword")
    assert exchange.first() == b"\0alice\0p\xc3\xa4ssword"
    assert exchange.after(b"") is None


def test_a_refused_token_is_answered_once() -> None:
    exchange = BearerExchange("a.b.c", {"tenant": "one"})
    assert exchange.first() == b"n,,\x01auth=Bearer a.b.c\x01tenant=one\x01\x01"
    assert exchange.after(b'{"status":"invalid_token"}') == b"\x01"
    with pytest.raises(Distrusted, match=r"refuses the token \(invalid_token\)"):
        exchange.after(b"")
    for hostile in (b"[" * 100_000, b"{}", b'{"status": "\\u001b[31m"}', b"\xff"):
        exchange = BearerExchange("a.b.c", {})
        assert exchange.after(hostile) == b"\x01"
        with pytest.raises(Distrusted, match="no reason is given"):
            exchange.after(hostile)
