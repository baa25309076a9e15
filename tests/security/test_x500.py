"""Names of certificates, and principals from them; tests/interop/kafka/test_kafka_listeners.py has Java beside them."""

from __future__ import annotations

from contextlib import suppress

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.errors import CorruptData, UsageError
from headrace.security.principals import PrincipalMapper
from headrace.security.x500 import name_of, subject_of
from tests.certificates import Authority


def named(*pairs: tuple[x509.ObjectIdentifier, str]) -> bytes:
    return x509.Name([x509.NameAttribute(kind, value) for kind, value in pairs]).public_bytes()


def test_a_name_begins_with_its_last_part() -> None:
    name = named((NameOID.COUNTRY_NAME, "CH"), (NameOID.ORGANIZATION_NAME, "Ac, me"), (NameOID.COMMON_NAME, " a+b "))
    assert name_of(name) == "CN=\\ a\\+b\\ ,O=Ac\\, me,C=CH"


def test_a_certificate_s_subject_is_found(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = Authority.made(tmp_path_factory.mktemp("ca")).issue(common_name="alice")
    certificate = x509.load_pem_x509_certificates(path.read_bytes())[0]
    subject = subject_of(certificate.public_bytes(Encoding.DER))
    assert subject == certificate.subject.public_bytes()
    assert name_of(subject).startswith("CN=alice,OU=")


@given(st.binary(max_size=60))
def test_what_is_no_certificate_is_refused(data: bytes) -> None:
    for read in (subject_of, name_of):
        for text in (data, b"\x30\x82\x00" + bytes([len(data)]) + data):
            with suppress(CorruptData):
                read(text)


@given(st.data())
def test_no_cut_or_changed_certificate_is_more_than_refused(data: st.DataObject) -> None:
    name = named((NameOID.COMMON_NAME, "alice"), (NameOID.EMAIL_ADDRESS, "a@example.org"))
    at = data.draw(st.integers(0, len(name) - 1))
    with pytest.raises(CorruptData):
        name_of(name[:at])
    changed = bytearray(name)
    changed[at] = data.draw(st.integers(0, 255))
    with suppress(CorruptData):
        name_of(bytes(changed))


@pytest.mark.parametrize(
    ("rules", "name", "principal"),
    [
        ("DEFAULT", "CN=a,O=b", "CN=a,O=b"),
        ("", "CN=a", "CN=a"),
        ("RULE:^CN=(.*?),.*$/$1/", "CN=Alice,O=b", "Alice"),
        ("RULE:^CN=(.*?),.*$/$1/L,DEFAULT", "CN=Alice,O=b", "alice"),
        ("RULE:^CN=(.*?),.*$/$1@x/U, DEFAULT", "O=b", "O=b"),
        ("RULE:^CN=(.*?),.*$/$1/", "O=b", None),
        ("RULE:CN=(.*)/a\\/$1$2/", "CN=q", "a/q$2"),
    ],
)
def test_rules_name_principals(rules: str, name: str, principal: str | None) -> None:
    assert PrincipalMapper(rules).name(name) == principal


@pytest.mark.parametrize("rules", ["nonsense", "RULE:(/$1/", "RULE:a/b/X", "DEFAULT;DEFAULT"])
def test_rules_that_cannot_be_read_are_refused(rules: str) -> None:
    with pytest.raises(UsageError, match=r"ssl\.principal\.mapping\.rules"):
        PrincipalMapper(rules)
