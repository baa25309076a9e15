"""The answers of brokers to a transactional client, by what the client may do then."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final

from headrace.wire.errors import ErrorCode, error_of

AGAIN: Final = (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
"""Nothing was done, and the coordinator is the right one."""
ELSEWHERE: Final = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)
"""Something may have been done."""
FENCED: Final = (
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
)
ABORTABLE: Final = (
    *FENCED,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.TRANSACTION_ABORTABLE,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.UNKNOWN_PRODUCER_ID,
)
"""Of a write: the transaction can only be aborted."""


class Fenced(Exception):  # noqa: N818 - a state of the client
    """Another client has the transactional id, or its epoch is over."""


class Abortable(Exception):  # noqa: N818 - a state of the transaction
    """The transaction can only be aborted."""


class Dead(Exception):  # noqa: N818 - a state of the client
    """The client ends without a word."""


async def in_turn(writes: Sequence[Coroutine[Any, Any, None]], step: Callable[[], Awaitable[None]]) -> None:
    """One after the other, with steps between. Those that are not reached are closed."""
    left = list(writes)
    try:
        while left:
            await left.pop(0)
            await step()
    finally:
        for each in left:
            each.close()


def added(answer: Any) -> ErrorCode:
    errors = [
        error_of(each.partition_error_code)
        for topic in answer.results_by_topic_v3_and_below
        for each in topic.results_by_partition
    ]
    return next((error for error in errors if error is not ErrorCode.NONE), ErrorCode.NONE)


def offsets_committed(answer: Any) -> ErrorCode:
    [topic] = answer.topics
    [partition] = topic.partitions
    return error_of(partition.error_code)
