"""Bounded retries: exponential backoff, a cap on tries, and only for failures that a pause may heal."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from headrace.base.limits import CLIENT_ATTEMPTS_MAX, CLIENT_BACKOFF_MS, CLIENT_BACKOFF_MS_MAX
from headrace.net.client.errors import ClientError, GaveUpError

T = TypeVar("T")
JITTER: Final = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """The number of tries, and the pauses between them."""

    attempts_max: int = CLIENT_ATTEMPTS_MAX
    first_ms: int = CLIENT_BACKOFF_MS
    longest_ms: int = CLIENT_BACKOFF_MS_MAX
    on_failure: Callable[[ClientError, int], object] = lambda _, __: None
    """Called with each failure that is followed by another try, and the number of failures in a row."""

    def pause_ms(self, failures: int) -> int:
        """The pause after that many failures in a row (1 or more): doubles from `first_ms` up to `longest_ms`."""
        doublings = min(failures - 1, 30)
        return min(self.first_ms << doublings, self.longest_ms)

    def pause_s(self, failures: int) -> float:
        """The pause in seconds. It is randomly shorter by up to the fraction JITTER, so that many clients do not return
        together.
        """
        return self.pause_ms(failures) / 1000 * (1 - JITTER * random.random())


FOREVER: Final = Backoff(attempts_max=sys.maxsize)
"""Retries without end every failure that a pause may heal."""


async def retried(
    action: Callable[[], Awaitable[T]],
    backoff: Backoff,
    *,
    before_retry: Callable[[ClientError], Awaitable[None]] | None = None,
) -> T:
    """The result of the first try that succeeds.

    A ClientError that is not retriable is raised as it is. After too many failures GaveUpError is raised, caused by the
    last one. `before_retry` runs after each pause (to refresh metadata, say) and must not raise ClientError.
    """
    for failures in range(1, backoff.attempts_max + 1):
        try:
            return await action()
        except ClientError as error:
            if not error.retriable:
                raise
            if failures == backoff.attempts_max:
                raise GaveUpError(f"{str(error).rstrip('.')}; gave up after {failures} tries.") from error
            backoff.on_failure(error, failures)
            await asyncio.sleep(backoff.pause_s(failures))
            if before_retry is not None:
                await before_retry(error)
    raise AssertionError("attempts_max is at least 1")
