"""SCRAM: clients of others are let in with the right password alone, and RFC 7677's example is answered as it says."""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import Any

import pytest
from aiokafka.conn import ScramAuthenticator
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.net.sasl.scram import SaslMechanismScram

from headrace.metadata.access.scram import ScramCredential, ScramMechanism
from headrace.security.scram import AuthenticationFailed, ScramServer, credential_of, credential_of_salted
from tests.tiers import examples

ASCII = st.text(st.characters(min_codepoint=1, max_codepoint=127), min_size=1, max_size=12)
MECHANISMS = st.sampled_from((ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512))
FIRST = b"n,,n=alice,r=abc"


def server(
    mechanism: ScramMechanism = ScramMechanism.SCRAM_SHA_256,
    *,
    nonce: str = "server-nonce",
    **passwords: str,
) -> ScramServer:
    return of_users({user: credential(mechanism, password) for user, password in passwords.items()}, mechanism, nonce)


def of_users(users: dict[str, ScramCredential], mechanism: ScramMechanism, nonce: str = "server-nonce") -> ScramServer:
    return ScramServer(mechanism, users.get, nonce=nonce, secret=b"of this broker")


def credential(mechanism: ScramMechanism, password: str) -> ScramCredential:
    return credential_of(mechanism, password, salt=b"salt", iterations=4096)


class OfAiokafka:
    def __init__(self, mechanism: ScramMechanism, user: str, password: str) -> None:
        self._client: Any = ScramAuthenticator(
            loop=None, sasl_plain_username=user, sasl_plain_password=password, sasl_mechanism=mechanism.title
        )

    def exchange(self, with_server: ScramServer) -> None:
        """The client checks the server's signature."""
        steps = self._client._authenticator
        first, _ = next(steps)
        final, _ = steps.send(with_server.first(first))
        with pytest.raises(StopIteration):
            steps.send(with_server.final(final))


class OfKafkaPython:
    """It sends a comma as it is, which no server can read: it knows no names with one."""

    def __init__(self, mechanism: ScramMechanism, user: str, password: str) -> None:
        self._client: Any = SaslMechanismScram(
            sasl_plain_username=user, sasl_plain_password=password, sasl_mechanism=mechanism.title
        )

    def exchange(self, with_server: ScramServer) -> None:
        client = self._client
        client.receive(with_server.first(client.auth_bytes()))
        client.receive(with_server.final(client.auth_bytes()))
        assert client.is_done()
        assert client.is_authenticated()


CLIENTS = st.sampled_from((OfAiokafka, OfKafkaPython))


@settings(max_examples=examples(40))
@given(CLIENTS, MECHANISMS, ASCII, st.text(min_size=1, max_size=12))
def test_clients_of_others_are_let_in(client: Any, mechanism: ScramMechanism, user: str, password: str) -> None:
    if client is OfKafkaPython:
        user = user.replace(",", "c").replace("=", "e")
    ours = of_users({user: credential(mechanism, password)}, mechanism)
    client(mechanism, user, password).exchange(ours)
    assert ours.user == user


@settings(max_examples=examples(40))
@given(CLIENTS, MECHANISMS, st.booleans(), st.text(min_size=1, max_size=6))
def test_nobody_else_is(client: Any, mechanism: ScramMechanism, is_known: bool, password: str) -> None:
    ours = server(mechanism, **({"alice": password + "x"} if is_known else {"bob": password}))
    with pytest.raises(AuthenticationFailed, match="user name or password"):
        client(mechanism, "alice", password).exchange(ours)
    assert ours.user is None


def test_the_example_of_rfc_7677() -> None:
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    known = credential_of(ScramMechanism.SCRAM_SHA_256, "pencil", salt=salt, iterations=4096)
    ours = of_users({"user": known}, ScramMechanism.SCRAM_SHA_256, "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    nonce = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    assert ours.first(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO") == (f"r={nonce},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode())
    proof = "dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    assert ours.final(f"c=biws,r={nonce},p={proof}".encode()) == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert ours.user == "user"


def test_librdkafka_before_2_6_1_repeats_its_nonce() -> None:
    """As 2.0.2 of Debian 12 said it. Kafka looks at the end of the nonce alone."""
    salt = "x3lzYQ2PoUj9e17pXPn2ysYL3N/Sob0Z4smwUGadhOyccFPf2QjFRQxTOpZC2wo4cCJHoIEsMGNJi6aAdlQieQ=="
    mechanism = ScramMechanism.SCRAM_SHA_256
    known = credential_of(mechanism, "wonderland", salt=base64.b64decode(salt), iterations=4096)
    own, theirs = "9a18373cf56a088ba242cd0950b93e0320bad6f6d0f0d014", "uWjsvLZ<0Tr?a<a;MR@Y>c8wLc_1CVQn"
    ours = of_users({"bob": known}, mechanism, own)
    ours.first(f"n,,n=bob,r={theirs}".encode())
    proof = "GG9XxEgnLhO081aXled5Zm/0FY2JXdq36nD7i84Z3fQ="
    ours.final(f"c=biws,r={theirs}{theirs}{own},p={proof}".encode())
    assert ours.user == "bob"


@pytest.mark.parametrize("nonce", ["abc", "abcserver-nonc", "erver-nonce", "abcserver-nonce0", "server-nonceabc"])
def test_a_nonce_of_another_exchange_is_refused_with_the_right_password(nonce: str) -> None:
    ours, mechanism = server(alice="secret"), ScramMechanism.SCRAM_SHA_256
    first, unproven = ours.first(FIRST), f"c=biws,r={nonce}".encode()
    salted = hashlib.pbkdf2_hmac("sha256", b"secret", b"salt", 4096)
    key = hmac.digest(salted, b"Client Key", "sha256")
    said = b",".join((FIRST[3:], first, unproven))
    signature = hmac.digest(hashlib.sha256(key).digest(), said, mechanism.digest)
    proof = base64.b64encode(bytes(a ^ b for a, b in zip(key, signature, strict=True)))
    with pytest.raises(AuthenticationFailed):
        ours.final(unproven + b",p=" + proof)
    assert ours.user is None


def test_a_password_that_the_client_salted_gives_the_same_credential() -> None:
    salted = hashlib.pbkdf2_hmac("sha512", b"secret", b"salt", 4096)
    mechanism = ScramMechanism.SCRAM_SHA_512
    assert credential_of_salted(mechanism, salted, salt=b"salt", iterations=4096) == credential(mechanism, "secret")


def test_an_unknown_name_is_answered_as_a_known_one() -> None:
    answers = [server(bob="secret").first(first) for first in (FIRST, FIRST, b"n,,n=carol,r=abc", b"n,,n=bob,r=abc")]
    assert answers[0] == answers[1]
    assert len({answer.partition(b",s=")[2] for answer in answers}) == 3
    other = server(ScramMechanism.SCRAM_SHA_512, bob="secret").first(FIRST)
    assert other != answers[0], "a user has a salt for each mechanism"
    assert all(answer.endswith(b",i=4096") for answer in answers)


def test_a_proof_is_of_its_own_exchange() -> None:
    """A final message that somebody overheard is worth nothing."""
    overheard: list[bytes] = []

    class Tapped(ScramServer):
        def final(self, message: bytes) -> bytes:
            overheard.append(message)
            return super().final(message)

    mechanism = ScramMechanism.SCRAM_SHA_256
    known = {"alice": credential(mechanism, "secret")}
    OfAiokafka(mechanism, "alice", "secret").exchange(Tapped(mechanism, known.get, nonce="one", secret=b""))
    again = of_users(known, mechanism, "two")
    again.first(b"n,,n=alice,r=" + overheard[0].partition(b",r=")[2].partition(b"one")[0])
    with pytest.raises(AuthenticationFailed):
        again.final(overheard[0])


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"p=tls-unique,,n=alice,r=abc",
        b"y,,n=alice,r=abc",
        b"n,,n=,r=abc",
        b"n,,n=alice",
        b"n,,n=al,ice,r=abc",
        b"n,,n=al=ice,r=abc",
        b"n,,n=alice,r=a c",
        b"n,,n=\xc3\xbc,r=abc",
        b"n,,n=ali\x00ce,r=abc",
        b"n,a=bob,n=alice,r=abc",
        FIRST + b"\n",
    ],
)
def test_a_malformed_first_message_is_refused(first: bytes) -> None:
    with pytest.raises(AuthenticationFailed):
        server(alice="secret").first(first)


@pytest.mark.parametrize(
    "final",
    [
        b"",
        b"c=biws,r=abcserver-nonce",
        b"c=biws,r=abcserver-nonce,p=",
        b"c=biws,r=abcserver-nonce,p=A",
        b"c=biws,r=abcserver-nonce,p=AAAA",
        b"c=biws,r=abc,p=AAAA",
        b"c=eSws,r=abcserver-nonce,p=AAAA",
        b"c=biws,r=abcserver-nonce,p=" + b"A" * 43 + b"=",
    ],
)
def test_a_bad_final_message_is_refused(final: bytes) -> None:
    ours = server(alice="secret")
    ours.first(FIRST)
    with pytest.raises(AuthenticationFailed):
        ours.final(final)
    assert ours.user is None


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_any_bytes_are_refused_and_nothing_else(first: bytes, final: bytes) -> None:
    ours = server(alice="secret")
    with pytest.raises(AuthenticationFailed):
        ours.first(first)
    ours = server(alice="secret")
    ours.first(FIRST)
    with pytest.raises(AuthenticationFailed):
        ours.final(final)


def test_a_credential_does_not_show_its_keys() -> None:
    shown = repr(credential(ScramMechanism.SCRAM_SHA_256, "secret"))
    assert shown == "ScramCredential(iterations=4096)"
