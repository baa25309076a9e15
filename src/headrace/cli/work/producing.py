"""The work of `headrace produce`: reads lines in blocks, sends them, shows the rate, sums up.

Promises: every line is acknowledged before it returns, or it raises. The order of lines with one key is kept. The
producer's buffer bounds the memory.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.cli.command_config import reached
from headrace.cli.output import counted, note, print_json
from headrace.cli.work.formatting import Given, given
from headrace.net.client.producer import Placed, Producer
from headrace.wire.compression import Compression
from headrace.wire.records import RecordHeaders

BLOCK_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """The user's options."""

    topic: str
    file: Path | None
    from_json: bool
    key_separator: bytes | None
    key: bytes | None
    """The key of records without one."""
    partition: int | None
    keep_partition: bool
    headers: RecordHeaders
    """Behind a record's own."""
    acks: int
    compression: str
    idempotent: bool
    timestamp_ms: int | None
    json: bool


@dataclass(slots=True)
class _Tally:
    """The results of the records so far."""

    started: float
    placed: int = 0
    bytes: int = 0
    error: BaseException | None = None
    spans: dict[int, list[int]] = field(default_factory=dict)
    """Partition to its first and last offset."""

    def on_placed(self, future: asyncio.Future[Placed]) -> None:
        if future.cancelled():
            return
        if (error := future.exception()) is not None:
            self.error = self.error or error
            return
        placed = future.result()
        self.placed += 1
        if placed.offset >= 0:
            span = self.spans.setdefault(placed.partition, [placed.offset, placed.offset])
            span[0], span[1] = min(span[0], placed.offset), max(span[1], placed.offset)

    def summary(self, topic: str) -> dict[str, Any]:
        seconds = time.monotonic() - self.started
        return {
            "topic": topic,
            "records": self.placed,
            "bytes": self.bytes,
            "seconds": round(seconds, 3),
            "partitions": {
                str(partition): {"first_offset": first, "last_offset": last}
                for partition, (first, last) in sorted(self.spans.items())
            },
        }


async def write_lines(bootstrap: str, orders: Orders) -> None:
    """Read to the end and write every line. Raises ClientError, OSError."""
    tally = _Tally(time.monotonic())
    async with reached(bootstrap) as cluster:
        await cluster.existing_topic(orders.topic, may_be_made=True)
        producer = Producer(
            cluster,
            acks=orders.acks,
            idempotent=orders.idempotent,
            compression=Compression[orders.compression.upper()],
        )
        meter = asyncio.create_task(_show_rate(tally)) if sys.stderr.isatty() else None
        try:
            async with producer:
                await _send_all(producer, orders, tally)
        finally:
            if meter is not None:
                meter.cancel()
                await asyncio.gather(meter, return_exceptions=True)
    if tally.error is not None:
        note(f"{tally.placed} records were written before this:")
        raise tally.error
    _report(tally, orders)


async def _send_all(producer: Producer, orders: Orders, tally: _Tally) -> None:
    number = 0
    async for line in _lines(orders.file):
        number += 1
        if tally.error is not None:
            return
        if orders.from_json and not line.strip():
            continue
        one = given(line, number) if orders.from_json else _split(line, orders)
        tally.bytes += len(line)
        placed = await producer.send(
            orders.topic,
            key=one.key if one.key is not None else orders.key,
            value=one.value,
            headers=(*one.headers, *orders.headers) if one.headers else orders.headers,
            partition=one.partition if orders.keep_partition else orders.partition,
            timestamp_ms=_timestamp(one, orders),
        )
        placed.add_done_callback(tally.on_placed)


def _split(line: bytes, orders: Orders) -> Given:
    if orders.key_separator is None:
        return Given(None, line)
    key, found, value = line.partition(orders.key_separator)
    return Given(key, value) if found else Given(None, line)


def _timestamp(one: Given, orders: Orders) -> int:
    if orders.timestamp_ms is not None:
        return orders.timestamp_ms
    return one.timestamp_ms if one.timestamp_ms is not None else time.time_ns() // 1_000_000


async def _lines(file: Path | None) -> AsyncIterator[bytes]:
    """Lines without their ends. A terminal's come one by one, a file's a block at a time, read in a thread."""
    source = os.open(file, os.O_RDONLY) if file is not None else sys.stdin.fileno()
    rest = b""
    try:
        while block := await _read_block(source):
            *lines, rest = (rest + block).split(b"\n")
            for line in lines:
                yield line.removesuffix(b"\r")
        if rest:
            yield rest
    finally:
        if file is not None:
            os.close(source)


async def _read_block(source: int) -> bytes:
    """The next bytes, read in a daemon thread. An executor's thread would keep an interrupted process from ending while
    the terminal or pipe is silent.
    """
    loop = asyncio.get_running_loop()
    block: asyncio.Future[bytes] = loop.create_future()

    def settle(outcome: bytes | OSError) -> None:
        if block.done():
            return
        if isinstance(outcome, OSError):
            block.set_exception(outcome)
        else:
            block.set_result(outcome)

    def read() -> None:
        outcome: bytes | OSError
        try:
            outcome = os.read(source, BLOCK_BYTES)
        except OSError as error:
            outcome = error
        with suppress(RuntimeError):  # the loop is closed: nothing waits any more
            loop.call_soon_threadsafe(settle, outcome)

    threading.Thread(target=read, daemon=True).start()
    return await block


async def _show_rate(tally: _Tally) -> None:
    """Redraw one line on the terminal, twice a second."""
    try:
        while True:
            await asyncio.sleep(0.5)
            rate = tally.placed / max(time.monotonic() - tally.started, 1e-9)
            sys.stderr.write(f"\r{tally.placed:,} records, {rate:,.0f}/s\x1b[K")
            sys.stderr.flush()
    finally:
        sys.stderr.write("\r\x1b[K")


def _report(tally: _Tally, orders: Orders) -> None:
    summary = tally.summary(orders.topic)
    if orders.json:
        print_json(summary)
    else:
        note(f"{counted(tally.placed, 'record')} written to {orders.topic} in {summary['seconds']:.2f} s")
