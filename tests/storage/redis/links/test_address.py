"""Addresses of Redis: what each URL means, what is refused in one sentence, and that no password is shown."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.addresses import Address
from headrace.base.errors import UsageError
from headrace.storage.redis.links.address import RedisAddress, Topology, parse_redis_address


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://127.0.0.1:6379/0", "redis://127.0.0.1:6379/0"),
        ("redis://cache", "redis://cache:6379/0"),
        ("redis://[::1]:7000/3", "redis://[::1]:7000/3"),
        ("redis://cache?db=4", "redis://cache:6379/4"),
        ("rediss://cache/1", "rediss://cache:6379/1"),
        ("unix:///run/redis.sock", "unix:///run/redis.sock"),
        ("unix:///run/redis.sock?db=2", "unix:///run/redis.sock?db=2"),
        ("redis+sentinel://a,b:26380/mymaster", "redis+sentinel://a:26379,b:26380/mymaster"),
        ("redis+sentinel://a/mymaster/5", "redis+sentinel://a:26379/mymaster/5"),
        ("rediss+cluster://a:7001,b:7002", "rediss+cluster://a:7001,b:7002"),
    ],
)
def test_a_url_is_shown_with_all_that_it_means(url: str, shown: str) -> None:
    address = parse_redis_address(url)
    assert str(address) == shown
    assert parse_redis_address(str(address)) == address


@pytest.mark.parametrize(
    "url",
    [
        "",
        "cache:6379",
        "http://cache",
        "redis://",
        "redis://a,b",
        "redis://cache:99999",
        "redis://cache/one",
        "redis://cache/0/1",
        "redis://cache?timeout=3",
        "redis://cache?ssl_ca_certs=/x",
        "redis://user@cache",
        "unix://relative.sock",
        "redis+sentinel://a",
        "redis+sentinel://a/service/0/1",
        "redis+cluster://a/1",
        "rediss+unix:///x",
    ],
)
def test_what_is_wrong_is_one_sentence(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_redis_address(url)
    assert str(caught.value).endswith(".")
    assert "\n" not in str(caught.value)


def test_user_and_password_come_from_the_url_the_environment_or_a_file(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("from a file\n")
    assert parse_redis_address("redis://a:b%40c@h").credentials.password == "b@c"
    assert parse_redis_address("redis://:b@h").credentials.hello == (b"AUTH", b"default", b"b")
    environment = {"HEADRACE_REDIS_USER": "me", "HEADRACE_REDIS_PASSWORD": "secret"}
    assert parse_redis_address("redis://h", environment).credentials.hello == (b"AUTH", b"me", b"secret")
    assert parse_redis_address("redis://x:y@h", environment).credentials.hello == (b"AUTH", b"x", b"y")
    in_file = {"HEADRACE_REDIS_PASSWORD_FILE": str(tmp_path / "password")}
    assert parse_redis_address("unix:///s", in_file).credentials.password == "from a file"
    with pytest.raises(UsageError, match="cannot be read"):
        parse_redis_address("unix:///s", {"HEADRACE_REDIS_PASSWORD_FILE": str(tmp_path / "none")})
    with pytest.raises(UsageError, match="names a user and no password"):
        parse_redis_address("redis://h", {"HEADRACE_REDIS_USER": "me"})


def test_sentinels_have_credentials_of_their_own() -> None:
    environment = {"HEADRACE_REDIS_SENTINEL_USER": "s", "HEADRACE_REDIS_SENTINEL_PASSWORD": "t"}
    address = parse_redis_address("redis+sentinel://a:b@h1,h2:1/m", environment)
    assert address.sentinel_credentials.hello == (b"AUTH", b"s", b"t")
    assert address.credentials.hello == (b"AUTH", b"a", b"b")
    assert (address.topology, address.hosts) == (Topology.SENTINEL, (Address("h1", 26379), Address("h2", 1)))


@given(st.text("abcXYZ019", min_size=8))
def test_no_password_is_ever_shown(password: str) -> None:
    address = parse_redis_address(f"redis://me:{password}@[fe80::1]/0", {"HEADRACE_REDIS_SENTINEL_PASSWORD": password})
    assert password not in f"{address} {address!r} {address.credentials!r}"
    for wrong in (f"redis://me:{password}@h:x", f"unix://me:{password}@relative", f"redis://me:{password}@h/x"):
        with pytest.raises(UsageError) as caught:
            parse_redis_address(wrong)
        assert password not in str(caught.value)


def test_a_tls_file_that_is_not_there_is_refused() -> None:
    address: RedisAddress = parse_redis_address("rediss://h?ssl_ca_certs=/none.pem")
    assert address.tls is not None
    with pytest.raises(UsageError, match="TLS files for Redis"):
        address.tls.context()
    assert parse_redis_address("redis://h").tls is None
