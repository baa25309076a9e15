"""PLAIN lets those in who know a password, and tells nobody which part was wrong."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.metadata.access.scram import NO_SCRAM, ScramCredential, ScramCredentials, ScramMechanism, with_credential
from headrace.security.sasl import WRONG_PASSWORD, PlainExchange
from headrace.security.scram import AuthenticationFailed, KnownUsers, ScramServer, looks_of

PASSWORDS = {"alice": "secret", "ünal": "päss", "nobody": ""}
SHA_256 = ScramMechanism.SCRAM_SHA_256


@pytest.mark.parametrize(
    ("message", "user"),
    [("\0alice\0secret", "alice"), ("alice\0alice\0secret", "alice"), ("\0ünal\0päss", "ünal")],
)
def test_the_right_password(message: str, user: str) -> None:
    exchange = PlainExchange(PASSWORDS)
    assert exchange.step(message.encode()) == b""
    assert exchange.user == user


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (b"\0alice\0wrong", WRONG_PASSWORD),
        (b"\0mallory\0secret", WRONG_PASSWORD),
        (b"\0nobody\0x", WRONG_PASSWORD),
        (b"\0alice\0secre", WRONG_PASSWORD),
        (b"\0alice\0secrets", WRONG_PASSWORD),
        (b"bob\0alice\0secret", "authorization id"),
        (b"\0\0secret", "username not specified"),
        (b"\0nobody\0", "password not specified"),
        (b"", "malformed"),
        (b"\0alice", "malformed"),
        (b"\0alice\0secret\0", "malformed"),
        (b"\0alice\0\xff", "malformed"),
    ],
)
def test_anything_else(message: bytes, words: str) -> None:
    exchange = PlainExchange(PASSWORDS)
    with pytest.raises(AuthenticationFailed, match=words) as refused:
        exchange.step(message)
    assert exchange.user is None
    assert "secret" not in str(refused.value)


@given(st.binary(max_size=40))
def test_any_bytes_are_refused(message: bytes) -> None:
    with pytest.raises(AuthenticationFailed):
        PlainExchange(PASSWORDS).step(message)


def of(credentials: ScramCredentials) -> KnownUsers:
    users = KnownUsers()
    users.credentials, users.looks = credentials, looks_of(credentials)
    return users


def answered(users: KnownUsers, name: str) -> tuple[bytes, int]:
    """The salt's length and the iterations that a client is told for this name."""
    server = ScramServer(
        SHA_256,
        lambda user: users.find(SHA_256, user),
        nonce="n",
        secret=b"s",
        usual_look=lambda place: users.usual_look(SHA_256, place),
    )
    salt, _, iterations = server.first(f"n,,n={name},r=c".encode()).partition(b",s=")[2].partition(b",i=")
    return salt, int(iterations)


def test_the_iterations_of_a_name_do_not_tell_whether_it_is_known() -> None:
    """Half of the users have 4,096, and the others 8,192: so have names that nobody has."""
    known = NO_SCRAM
    for number in range(20):
        credential = ScramCredential(bytes(64), bytes(32), bytes(32), 4_096 if number % 2 else 8_192)
        known = with_credential(known, f"user{number}", SHA_256, credential)
    users = of(known)
    told = [answered(users, f"nobody{number}") for number in range(200)]
    assert told == [answered(users, f"nobody{number}") for number in range(200)], "the same each time"
    assert 60 < sum(iterations == 4_096 for _, iterations in told) < 140
    assert {len(salt) for salt, _ in told} == {88}, "as long as the users' salts"
    assert len({salt for salt, _ in told}) == 200


def test_a_salt_that_is_made_up_looks_like_kafka_s() -> None:
    known = with_credential(NO_SCRAM, "a", SHA_256, ScramCredential(b"1ab2c3", bytes(32), bytes(32), 8_192))
    users = of(known)
    (look,) = {users.usual_look(SHA_256, place) for place in (0.0, 0.5, 0.999)}
    assert look == (8_192, 6, True)
    assert users.usual_look(ScramMechanism.SCRAM_SHA_512, 0.5).iterations == 4_096
