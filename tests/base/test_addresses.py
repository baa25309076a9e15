"""Addresses: what is written is read again, and what can be read in two ways is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.addresses import Address, parse_address, parse_bootstrap
from headrace.base.errors import UsageError

HOSTS = st.one_of(
    st.sampled_from(["localhost", "a.example.org", "b_1", "fe80::1%eth0"]),
    st.ip_addresses(v=4).map(str),
    st.ip_addresses(v=6).map(str),
)


@given(HOSTS, st.integers(0, 65535))
def test_an_address_reads_as_it_is_written(host: str, port: int) -> None:
    address = Address(host, port)
    assert parse_address(str(address)) == address
    assert parse_bootstrap(f"{address},{address}, other:1") == (address, Address("other", 1))
    assert parse_address(str(address).rpartition(":")[0], default_port=port) == address


@pytest.mark.parametrize(
    "text",
    [
        *("", ":9092", "host:", "host:port", "host:70000", "host:-1", "host:９０", "host:9 2", "host:+1", "a b:1"),
        *("::1", "::1:9092", ":::19473", "fe80::1", "a:b:1", "http://a:1", "PLAINTEXT://a:1", "a/b:1", "u@a:1"),
        *("[::1]9092", "[::1", "[::1]:", "[::1]:x", "[localhost]:1", "[1.2.3.4]:1", "[]:1", "[[::1]]:1", "::1]:1"),
    ],
)
def test_what_is_no_address_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match=r"HOST:PORT|\[IPV6\]:PORT"):
        parse_address(text)


def test_an_ipv6_address_without_brackets_is_told_with_them() -> None:
    with pytest.raises(UsageError, match=r"for example \[fe80::1\]:9092"):
        parse_address("fe80::1")


def test_a_port_alone_is_told_with_a_host() -> None:
    with pytest.raises(UsageError, match=r"'9092' is a port without its host: write HOST:PORT, .* 127\.0\.0\.1:9092"):
        parse_address("9092")


def test_a_bootstrap_list_keeps_its_order_and_drops_repeats() -> None:
    assert parse_bootstrap("b:1, a:2 ,b:1,c") == (Address("b", 1), Address("a", 2), Address("c", 9092))
    with pytest.raises(UsageError):
        parse_bootstrap(" , ")


@pytest.mark.parametrize(
    ("host", "wildcard", "loopback"),
    [
        *(
            (host, True, False)
            for host in ("0.0.0.0", "::", "", "*", "0", "0.0", "0x0", "0:0:0:0:0:0:0:0", "::0.0.0.0")
        ),
        *(("::ffff:0.0.0.0", True, False), ("127.0.0.1", False, True), ("127.1.2.3", False, True)),
        *(
            ("::1", False, True),
            ("localhost", False, True),
            ("LOCALHOST.", False, True),
            ("::ffff:127.0.0.1", False, True),
        ),
        *((host, False, False) for host in ("10.0.0.1", "fe80::1%eth0", "a.example.org", "1.0.0.0", "::2", "00a")),
    ],
)
def test_who_is_reached_at_an_address(host: str, wildcard: bool, loopback: bool) -> None:
    assert (Address(host, 1).is_wildcard, Address(host, 1).is_loopback) == (wildcard, loopback)
