"""The first users of a cluster: written as for Kafka's storage tool, and refused without being shown."""

from __future__ import annotations

import base64
import hashlib
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.errors import UsageError
from headrace.broker.home.scram_users import scram_user
from headrace.metadata.access.scram import ScramMechanism
from headrace.security.scram import credential_of

SALT = base64.b64encode(b"salt").decode()


def test_a_password_in_each_form() -> None:
    chance = random.Random(1)
    salted = base64.b64encode(hashlib.pbkdf2_hmac("sha512", b"wonder,land", b"salt", 8192)).decode()
    wanted = credential_of(ScramMechanism.SCRAM_SHA_512, "wonder,land", salt=b"salt", iterations=8192)
    for secret in ('password="wonder,land"', f"saltedpassword={salted}"):
        made = scram_user(f'SCRAM-SHA-512=[name="ad min",{secret},iterations=8192,salt="{SALT}"]', chance)
        assert (made.user, made.mechanism, made.credential) == ("ad min", ScramMechanism.SCRAM_SHA_512, wanted)
    first, second = (scram_user("SCRAM-SHA-256=[name=a,password=b]", chance).credential for _ in range(2))
    assert first is not None
    assert first != second
    assert first.iterations == 4096


@pytest.mark.parametrize(
    "text",
    [
        "",
        "SCRAM-SHA-256",
        "SCRAM-SHA-1=[name=a,password=hush]",
        "SCRAM-SHA-256=[name=a]",
        "SCRAM-SHA-256=[password=hush]",
        "SCRAM-SHA-256=[name=a,password=]",
        "SCRAM-SHA-256=[name=a,password=hush,saltedpassword=hush]",
        "SCRAM-SHA-256=[name=a,password=hush,iterations=1]",
        "SCRAM-SHA-256=[name=a,password=hush,iterations=99999999999]",
        "SCRAM-SHA-256=[name=a,password=hush,password=hush]",
        "SCRAM-SHA-256=[name=a,password=hush,salt=!]",
        "SCRAM-SHA-256=[name=a,password=hush,salt=]",
        f"SCRAM-SHA-256=[name=a,saltedpassword=aHVzaA==,salt={SALT}]",
        'SCRAM-SHA-256=[name=a,password="hush]',
        "SCRAM-SHA-256=[name=a,secret=hush]",
    ],
)
def test_a_bad_one_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        scram_user(text, random.Random(1))
    assert "hush" not in str(refused.value)


@given(st.text(max_size=40))
def test_any_text_is_refused(text: str) -> None:
    for each in (text, f"SCRAM-SHA-256=[{text}]"):
        with pytest.raises(UsageError):
            scram_user(each, random.Random(1))
