"""The part `redis`, as the command line knows it. It needs hiredis, an optional package, only once it is played."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Final

from headrace.sim.cluster.play import ClusterOutcome


def run_redis(seed: int) -> ClusterOutcome:
    """Simulate one seed. Never raises for anything that the brokers did."""
    from headrace.sim.redis.run import run_redis as run

    return run(seed)


def planted(name: str) -> AbstractContextManager[None]:
    """Plant this bug while the context lasts."""
    from headrace.sim.redis.plants import PLANTS

    return PLANTS[name]()


NAMES: Final = (
    "another-redis-not-noticed",
    "answered-before-waitaof",
    "answered-without-wait",
    "end-not-checked",
    "epoch-not-checked",
    "epochs-not-raised",
    "flushed-with-what-left-ahead",
    "joined-with-what-left-ahead",
    "lease-not-checked",
    "lease-outlives-its-redis",
    "opened-as-flushed",
    "registration-not-repeated",
    "sent-again-without-a-look",
    "stored-in-memory",
)
REDIS_PLANTS: Final[dict[str, Callable[[], AbstractContextManager[None]]]] = {
    name: partial(planted, name) for name in NAMES
}
