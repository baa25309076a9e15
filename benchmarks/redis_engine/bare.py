"""Redis without a broker: a loop over our own connection that pipelines XADD or XRANGE. It is the limit of
`benchmarks.redis_engine`.

Its batches have the size of the Kafka client's, as many are in flight, and it gathers records for as long. The server
is the same one with the same settings. With `appendfsync always` an answer comes once the entry is on the disk.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from benchmarks.redis_engine.rdkafka import BATCH_BYTES, IN_FLIGHT, LINGER_MS
from headrace.storage.redis.links.connection import Argument, Connection, Reply

READ_ENTRIES: Final = 64
TICK_S: Final = 0.001


async def windowed(
    connection: Connection,
    count: int,
    window: int,
    command: Callable[[int], tuple[Argument, ...]],
    payload: Sequence[bytes] = (),
) -> float:
    """Send so many commands, numbered from 1, each with `payload` as its last arguments. `window` are in flight.
    Returns the seconds."""
    over, started = asyncio.get_running_loop().create_future(), time.perf_counter()
    sent = answered = 0

    def send() -> None:
        nonlocal sent
        sent += 1
        connection.post(command(sent), on_answer, payload)

    def on_answer(reply: Reply) -> None:
        nonlocal answered
        assert not isinstance(reply, Exception), reply
        answered += 1
        if sent < count:
            send()
        elif answered == count:
            over.set_result(None)

    for _ in range(min(window, count)):
        send()
    await over
    return time.perf_counter() - started


async def write(connection: Connection, stream: str, size: int, streams: int = 1) -> float:
    """Add so many bytes by XADD, to the Streams in turn; returns the seconds."""
    data, count = os.urandom(BATCH_BYTES), size // BATCH_BYTES
    names = [stream, *(f"{stream}-{at}" for at in range(1, streams))]

    def command(number: int) -> tuple[Argument, ...]:
        return ("XADD", names[number % streams], f"{number}-0", "batch")

    return await windowed(connection, count, IN_FLIGHT, command, (data,))


async def read(connection: Connection, stream: str) -> float:
    """Read all by XRANGE, one after the other, each of about as much as a fetch; returns the seconds."""
    at, started = "-", time.perf_counter()
    while found := await connection.call("XRANGE", stream, at, "+", "COUNT", READ_ENTRIES):
        at = "(" + found[-1][0].decode()
    return time.perf_counter() - started


async def steady(connection: Connection, stream: str, record: bytes, per_second: int, seconds: float) -> list[float]:
    """As `rdkafka.steady`: records are due at a fixed rate. A batch leaves when it is full, or LINGER_MS after its
    first record, unless as many are in flight as may be."""
    batch_records, count = max(1, BATCH_BYTES // len(record)), round(per_second * seconds)
    loop, took, waiting = asyncio.get_running_loop(), list[float](), deque[float]()
    over = loop.create_future()
    arrived = numbered = in_flight = 0
    began = time.perf_counter()

    def send(*, due_by: float) -> None:
        nonlocal numbered, in_flight
        while waiting and in_flight < IN_FLIGHT and (len(waiting) >= batch_records or waiting[0] <= due_by):
            batch = [waiting.popleft() for _ in range(min(batch_records, len(waiting)))]
            numbered, in_flight = numbered + 1, in_flight + 1
            connection.post(("XADD", stream, f"{numbered}-0", "batch"), answering(batch), (record * len(batch),))

    def answering(batch: Sequence[float]) -> Callable[[Reply], None]:
        def on_answer(reply: Reply) -> None:
            nonlocal in_flight
            assert not isinstance(reply, Exception), reply
            in_flight -= 1
            now = time.perf_counter()
            took.extend(1000 * (now - due) for due in batch)
            if len(took) == count:
                over.set_result(None)
            send(due_by=now - LINGER_MS / 1000)

        return on_answer

    while arrived < count:
        now = time.perf_counter()
        due = min(count, int((now - began) * per_second))
        waiting.extend(began + number / per_second for number in range(arrived, due))
        arrived = due
        send(due_by=now - LINGER_MS / 1000)
        await asyncio.sleep(TICK_S)
    while not over.done():
        send(due_by=time.perf_counter() - LINGER_MS / 1000)
        await asyncio.sleep(TICK_S)
    return took
