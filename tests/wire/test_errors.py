"""Error codes: the ones that clients act on, by number."""

from __future__ import annotations

from headrace.wire.errors import ErrorCode, error_of


def test_codes_are_kafkas() -> None:
    assert [code.value for code in ErrorCode] == list(range(-1, 134))
    assert ErrorCode["INVALID_TOPIC_EXCEPTION"].value == 17
    assert ErrorCode["TOPIC_ALREADY_EXISTS"].value == 36
    assert ErrorCode["INVALID_PARTITIONS"].value == 37
    assert ErrorCode["INVALID_CONFIG"].value == 40
    assert ErrorCode["FENCED_LEADER_EPOCH"].value == 74


def test_each_says_whether_to_retry_and_why_in_words() -> None:
    assert ErrorCode.NOT_LEADER_OR_FOLLOWER.retriable
    assert not ErrorCode.INVALID_CONFIG.retriable
    assert all(code.message for code in ErrorCode)
    assert len({code.message for code in ErrorCode}) == len(ErrorCode)


def test_an_unknown_code_is_an_unknown_server_error() -> None:
    assert error_of(3) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert error_of(9999) is ErrorCode.UNKNOWN_SERVER_ERROR
