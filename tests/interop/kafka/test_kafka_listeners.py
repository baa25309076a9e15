"""Listeners are read, and clients are named by their certificates, as Kafka's own classes do it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
from cryptography import x509
from cryptography.x509.name import _ASN1Type as Kind
from cryptography.x509.oid import NameOID
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.base.addresses import Address
from headrace.base.errors import UsageError
from headrace.broker.listeners import read_listeners
from headrace.security.principals import PrincipalMapper
from headrace.security.x500 import name_of
from tests.interop.support.asking import asked
from tests.tiers import examples
from tools import kafka_jars

pytestmark = pytest.mark.skipif(kafka_jars.missing_tool() is not None, reason=kafka_jars.missing_tool() or "")

PROGRAM: Final = Path(__file__).parents[1] / "tools" / "Listeners.java"
LISTENERS: Final = st.lists(
    st.builds(
        "{}{}{}{}".format,
        st.sampled_from(("PLAINTEXT", "plaintext", "SSL", "Sasl_Ssl", "SASL_PLAINTEXT", "OTHER", "")),
        st.sampled_from(("://", "://", "://", "://", ":")),
        st.sampled_from(("h", "a.example", "10.0.0.1", "10.0.0.2", "[::1]", "[fe80::1]", "0.0.0.0", "")),
        st.sampled_from((":0", ":1", ":1", ":2", ":3", ":65535", "", ":x", ":-1")),
    ),
    min_size=1,
    max_size=4,
).flatmap(lambda items: st.sampled_from((",", ", ", " ,")).map(lambda mark: mark.join(items)))


@pytest.fixture(scope="module")
def kafka() -> Iterator[Callable[..., str]]:
    command = kafka_jars.compiled(PROGRAM, kafka_jars.newest_class_path())
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with asked(process) as put:
        yield lambda *words: put("\t".join(words))


def ours(text: str) -> str:
    """Wildcards are advertised otherwise: that is not Kafka's check."""
    told = {name: f"{name}://x:1" for name in ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")}
    bound = Address("h", 1)
    named = {item.strip().partition(":")[0].upper() for item in text.split(",")}
    present = [name for name in told if name in named]
    configs = {"listeners": text, "advertised.listeners": ",".join(told[name] for name in present)}
    if present:
        configs["inter.broker.listener.name"] = present[0]
    try:
        found = read_listeners(configs, bound=bound, advertised=None)
    except UsageError:
        return "no"
    return ",".join(f"{each.name} {each.protocol} {each.bound.host} {each.bound.port}" for each in found.all)


@settings(max_examples=examples(1000), deadline=None)
@given(LISTENERS)
@example("PLAINTEXT://:9092,SSL://:9093")
@example("PLAINTEXT://127.0.0.1:9092,SSL://[::1]:9092")
def test_listeners_are_read_as_kafka_reads_them(kafka: Callable[..., str], text: str) -> None:
    """Kafka takes a negative port, on which it then cannot listen."""
    theirs = kafka("listeners", text)
    assert ours(text) == ("no" if ":-1" in text else theirs)


KINDS: Final = (
    *(NameOID.COMMON_NAME, NameOID.ORGANIZATION_NAME, NameOID.ORGANIZATIONAL_UNIT_NAME, NameOID.LOCALITY_NAME),
    *(NameOID.STATE_OR_PROVINCE_NAME, NameOID.STREET_ADDRESS, NameOID.USER_ID, NameOID.DOMAIN_COMPONENT),
    *(NameOID.EMAIL_ADDRESS, NameOID.SERIAL_NUMBER, NameOID.TITLE, x509.ObjectIdentifier("1.3.6.1.4.1.99999.7")),
)
TEXTS: Final = st.text(alphabet=" a,B+=\"\\\\<>;#/\u00e9\u4e16\U0001f600\r'()-.:?", min_size=1, max_size=8)
PLAIN: Final = st.text(alphabet=" aB9'()+,-./:=?", min_size=1, max_size=8)
ATTRIBUTES: Final = st.one_of(
    st.builds(lambda kind, text: x509.NameAttribute(kind, text, Kind.UTF8String), st.sampled_from(KINDS), TEXTS),
    st.builds(lambda kind, text: x509.NameAttribute(kind, text, Kind.PrintableString), st.sampled_from(KINDS), PLAIN),
    st.builds(lambda kind, text: x509.NameAttribute(kind, text, Kind.IA5String), st.sampled_from(KINDS), PLAIN),
    st.builds(lambda kind, text: x509.NameAttribute(kind, text, Kind.T61String), st.sampled_from(KINDS), PLAIN),
)
SUBJECTS: Final = st.lists(
    st.lists(ATTRIBUTES, min_size=1, max_size=2, unique_by=lambda each: each.oid).map(x509.RelativeDistinguishedName),
    max_size=4,
).map(x509.Name)


@settings(max_examples=examples(1000), deadline=None)
@given(SUBJECTS)
def test_the_name_of_a_certificate_is_java_s(kafka: Callable[..., str], subject: x509.Name) -> None:
    der = subject.public_bytes()
    assert name_of(der) == bytes.fromhex(kafka("name", der.hex())).decode()


PATTERNS: Final = st.sampled_from(
    (".*", "^CN=(.*?),.*$", "CN=(.*?),O=(.*?)", "(a)(b)?", "^(.*)$", "", "a\\/b", "([a-z]+)", "CN=[^/]*")
)
REPLACEMENTS: Final = st.sampled_from(("$1", "$1@$2", "x", "", "$1$3", "a\\/b", "$10", "$0", "\\$1"))
RULES: Final = st.lists(
    st.one_of(
        st.just("DEFAULT"),
        st.builds("RULE:{}/{}/{}".format, PATTERNS, REPLACEMENTS, st.sampled_from(("", "L", "U", "X"))),
        st.sampled_from(("", "RULE", "DEFAULTS", "RULE:a/b")),
    ),
    max_size=3,
).flatmap(lambda rules: st.sampled_from((",", " , ", "\n")).map(lambda mark: mark.join(rules)))


def named(rules: str, name: str) -> str:
    try:
        found = PrincipalMapper(rules).name(name)
    except UsageError:
        return "no"
    return "no" if found is None else f"as {found}"


@settings(max_examples=examples(1000), deadline=None)
@given(RULES, st.sampled_from(("CN=ab,O=X", "CN=Ab,O=b,C=c", "ab", "a/b", "O=x", "CN=a")))
def test_principals_are_kafka_s(kafka: Callable[..., str], rules: str, name: str) -> None:
    """Kafka fails on `$1` where the pattern has no group. There the reference stays as it is here."""
    theirs = kafka("principal", rules.encode().hex(), name)
    if theirs != "broken" and rules.strip():
        assert named(rules, name).strip() == theirs
