"""A server's errors as types: each is retriable or not, and none is of unknown outcome."""

from __future__ import annotations

import pytest

from headrace.storage.redis.errors import RedisAsk, RedisMoved, RedisRefused, refusal


@pytest.mark.parametrize(
    ("text", "kind", "is_retriable"),
    [
        ("LOADING Redis is loading the dataset in memory", "RedisLoading", True),
        ("READONLY You can't write against a read only replica.", "RedisReadOnly", True),
        ("OOM command not allowed when used memory > 'maxmemory'.", "RedisOutOfMemory", True),
        ("MISCONF Errors writing to the AOF file: No space left on device", "RedisMisconfigured", True),
        ("NOAUTH Authentication required.", "RedisDenied", False),
        ("WRONGPASS invalid username-password pair or user is disabled.", "RedisDenied", False),
        ("NOPERM this user has no permissions", "RedisDenied", False),
        ("NOREPLICAS Not enough good replicas to write.", "RedisNoReplicas", True),
        ("CLUSTERDOWN Hash slot not served", "RedisClusterDown", True),
        ("MASTERDOWN Link with MASTER is down", "RedisMasterDown", True),
        ("TRYAGAIN Multiple keys request during rehashing of slot", "RedisTryAgain", True),
        ("BUSY Redis is busy running a script.", "RedisInScript", True),
        ("ERR Function not found", "RedisNoFunction", True),
        ("MOVED 3999 127.0.0.1:6381", "RedisMoved", True),
        ("ASK 3999 127.0.0.1:6381", "RedisAsk", True),
        ("MOVED nowhere", "RedisRefused", False),
        ("ERR value is not an integer or out of range", "RedisRefused", False),
    ],
)
def test_an_error_of_the_server_is_a_type(text: str, kind: str, is_retriable: bool) -> None:
    found = refusal(text)
    assert type(found).__name__ == kind
    assert isinstance(found, RedisRefused)
    assert (found.is_retriable, found.is_unknown) == (is_retriable, False)
    assert text in str(found)


def test_a_redirection_names_its_server() -> None:
    moved, asked = refusal("MOVED 12 [::1]:7000"), refusal("ASK 13 :7001")
    assert isinstance(moved, RedisMoved)
    assert (moved.slot, moved.host, moved.port) == (12, "::1", 7000)
    assert isinstance(asked, RedisAsk)
    assert (asked.slot, asked.host, asked.port) == (13, "", 7001)
