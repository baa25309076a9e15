"""The work of `headrace consume`: finds the start, polls, prints, and stops where requested."""

from __future__ import annotations

import base64
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from headrace.base.errors import UsageError
from headrace.cli.command_config import reached
from headrace.cli.output import note
from headrace.net.client.cluster import Cluster
from headrace.net.client.consumer import Consumer, Fetched
from headrace.net.client.errors import ClientError
from headrace.net.client.offsets import EARLIEST, LATEST, list_offsets
from headrace.net.client.retry import FOREVER, Backoff
from headrace.wire.records import Record, readable_name

TOLD_FROM_FAILURE: Final = 4
"""Failures before it is reported: a changed leader is found before that."""
TOLD_AGAIN_SECONDS: Final = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """The user's options."""

    topic: str
    start: str
    partitions: tuple[int, ...]
    """Empty: all."""
    offset: int | None
    records_max: int | None
    stop_at_end: bool
    key_separator: bytes | None
    json: bool
    retry_forever: bool = False
    """Wait for brokers and leaders without limit. Otherwise the client gives up after some tries."""


async def print_records(bootstrap: str, orders: Orders) -> None:
    """Print records until the count or the end is reached, or for ever. Raises ClientError, UsageError."""
    backoff = replace(FOREVER, on_failure=Waiting().tell) if orders.retry_forever else Backoff()
    async with reached(bootstrap, backoff=backoff) as cluster:
        view = await cluster.existing_topic(orders.topic)
        partitions = list(orders.partitions) or [part.index for part in view.partitions]
        for index in partitions:
            if not 0 <= index < len(view.partitions):
                raise UsageError(f"Topic '{orders.topic}' has partitions 0 to {len(view.partitions) - 1}, not {index}.")
        starts = await _starts(cluster, orders, partitions)
        ends = await _ends(cluster, orders, partitions) if orders.stop_at_end else None
        async with Consumer(cluster) as consumer:
            for index, start in starts.items():
                if ends is None or start < ends[index]:
                    consumer.assign(orders.topic, index, start)
            await _print_all(consumer, orders, ends)


class Waiting:
    """Tells the user why the command waits, each reason once in a while."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last_warning: tuple[str, float] = ("", 0.0)

    def tell(self, error: ClientError, failures: int) -> None:
        """As `Backoff.on_failure`."""
        sentence, now = str(error).rstrip("."), self._clock()
        readable_name, at = self._last_warning
        if failures < TOLD_FROM_FAILURE or (sentence == readable_name and now - at < TOLD_AGAIN_SECONDS):
            return
        self._last_warning = (sentence, now)
        note(f"Waiting: {sentence}; tried again until it is there.")


async def _starts(cluster: Cluster, orders: Orders, partitions: list[int]) -> dict[int, int]:
    if orders.offset is not None:
        return dict.fromkeys(partitions, orders.offset)
    at = parse_start(orders.start)
    found = await list_offsets(cluster, orders.topic, partitions, at)
    starts: dict[int, int] = {index: one.offset for index, one in found.items()}
    if missing := [index for index, start in starts.items() if start < 0]:  # no record that late: the end
        latest = await list_offsets(cluster, orders.topic, missing, LATEST)
        starts |= {index: one.offset for index, one in latest.items()}
    return starts


async def _ends(cluster: Cluster, orders: Orders, partitions: list[int]) -> dict[int, int]:
    found = await list_offsets(cluster, orders.topic, partitions, LATEST)
    return {index: one.offset for index, one in found.items()}


def parse_start(text: str) -> int:
    """ListOffsets' timestamp for `earliest`, `latest` or an ISO 8601 time (UTC where it has no zone). Raises
    UsageError.
    """
    if text == "earliest":
        return EARLIEST
    if text == "latest":
        return LATEST
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"--from '{text}' is none of earliest, latest and a time such as 2024-05-01T12:00:00Z."
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0, int(moment.timestamp() * 1000))


async def _print_all(consumer: Consumer, orders: Orders, ends: dict[int, int] | None) -> None:
    left = orders.records_max
    out = sys.stdout.buffer
    shown = _formatter(orders)
    while consumer.positions and (left is None or left > 0):
        for fetched in await consumer.poll():
            records = fetched.records
            if ends is not None:
                records = [record for record in records if record.offset < ends[fetched.partition]]
            if left is not None:
                records = records[:left]
                left -= len(records)
            out.writelines(shown(fetched, record) for record in records)
            out.flush()
        if ends is not None:
            for (topic, index), position in list(consumer.positions.items()):
                if position >= ends[index]:
                    consumer.unassign(topic, index)


def _formatter(orders: Orders) -> Callable[[Fetched, Record], bytes]:
    if orders.json:
        return lambda fetched, record: (json.dumps(as_json(fetched, record), ensure_ascii=False) + "\n").encode()
    separator = orders.key_separator
    if separator is None:
        return lambda _, record: (record.value or b"") + b"\n"
    return lambda _, record: (record.key or b"") + separator + (record.value or b"") + b"\n"


def as_json(fetched: Fetched, record: Record) -> dict[str, Any]:
    """A record for JSON: bytes that are UTF-8 as text, others under `..._base64`; the timestamp in ms since 1970."""
    return {
        "topic": fetched.topic,
        "partition": fetched.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        **_bytes_field("key", record.key),
        **_bytes_field("value", record.value),
        "headers": [{"name": readable_name(name), **_bytes_field("value", value)} for name, value in record.headers],
    }


def _bytes_field(name: str, data: bytes | None) -> dict[str, str | None]:
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}
