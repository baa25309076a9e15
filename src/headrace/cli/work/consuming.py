"""The work of `headrace consume`: finds the start, polls, prints, and stops where requested."""

from __future__ import annotations

import re
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.base.errors import UsageError
from headrace.base.ids import Offset
from headrace.base.limits import CONSOLE_RECORDS_MAX
from headrace.cli.command_config import reached
from headrace.cli.output import note
from headrace.cli.work.formatting import Shown
from headrace.cli.work.span import Start, ends, starts
from headrace.net.client.cluster import Cluster
from headrace.net.client.consumer import Consumer
from headrace.net.client.errors import ClientError
from headrace.net.client.retry import FOREVER, Backoff
from headrace.net.client.states import State
from headrace.operations.masking import NO_MASK
from headrace.wire.records import Record

if TYPE_CHECKING:
    from headrace.operations.schemas.records import Schemas

TOLD_FROM_FAILURE: Final = 4
"""Failures before it is reported: a changed leader is found before that."""
TOLD_AGAIN_SECONDS: Final = 30
TROUBLES_TOLD_MAX: Final = 20
"""Reasons for which records could not be decoded that are told."""
WIDER: Final = 4
"""How much further back the last records are looked for, where the last offsets held too few of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """The user's options."""

    topic: str
    start: Start
    partitions: tuple[int, ...]
    """Empty: all."""
    before_ms: int | None
    """Stop before the first record of this time."""
    records_max: int | None
    tail: int | None
    """Only the last of all records."""
    stop_at_end: bool
    pattern: re.Pattern[bytes] | None
    """Only records that have this in their key or value."""
    test: Callable[[int, Record, State, Record | None], bool] | None
    """Only records, with their partitions, states, and what is stored of them where they are decoded, of which it is
    true."""
    shown: Shown
    committed_only: bool
    """Only what consumers under read_committed get."""
    tells_states: bool
    """Whether `test` or `shown` look at the states of transactions."""
    schemas: Schemas | None = None
    """Keys and values are decoded by these first; None: they are as they are stored."""
    retry_forever: bool = False
    """Wait for brokers and leaders without limit. Otherwise the client gives up after some tries."""


class Found(NamedTuple):
    """Wanted records of a partition."""

    partition: int
    records: list[Record]
    states: Mapping[Offset, State]
    """By offset, where they are wanted and a record has one."""


async def print_records(bootstrap: str, orders: Orders) -> None:
    """Print records until the count or the end is reached, or for ever. Raises ClientError, UsageError."""
    backoff = replace(FOREVER, on_failure=Waiting().tell) if orders.retry_forever else Backoff()
    async with AsyncExitStack() as stack:
        if orders.schemas is not None:
            stack.push_async_callback(orders.schemas.close)
        cluster = await stack.enter_async_context(reached(bootstrap, backoff=backoff))
        view = await cluster.existing_topic(orders.topic, may_be_made=True)
        partitions = list(orders.partitions) or [int(part.index) for part in view.partitions]
        for index in partitions:
            if not 0 <= index < len(view.partitions):
                raise UsageError(f"Topic '{orders.topic}' has partitions 0 to {len(view.partitions) - 1}, not {index}.")
        named, only = bool(orders.partitions), orders.committed_only
        first = await starts(cluster, orders.topic, partitions, orders.start, named=named, committed_only=only)
        stop = orders.stop_at_end or orders.before_ms is not None or orders.tail is not None
        last = None
        if stop:
            last = await ends(cluster, orders.topic, partitions, orders.before_ms, committed_only=only)
        if orders.tail is not None:
            assert last is not None, "it stops"
            await _print_tail(cluster, orders, first, last, orders.tail)
        else:
            await _print_all(cluster, orders, first, last)


class Decoder:
    """Decodes records some at a time, within the bounds of a page each, and tells each trouble once."""

    def __init__(self, schemas: Schemas, topic: str) -> None:
        self._schemas = schemas
        self._topic = topic
        self._told: set[str] = set()

    async def decoded(self, records: list[Record]) -> list[Record]:
        """The records, with JSON where there were keys and values of Avro."""
        found: list[Record] = []
        for at in range(0, len(records), CONSOLE_RECORDS_MAX):
            decoding = self._schemas.of(self._topic)
            found += [each.record for each in await decoding.read(records[at : at + CONSOLE_RECORDS_MAX], NO_MASK)]
            for trouble in decoding.troubles:
                if trouble not in self._told and len(self._told) < TROUBLES_TOLD_MAX:
                    self._told.add(trouble)
                    note(trouble)
        return found


class Waiting:
    """Tells the user why the command waits, each reason once in a while."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last_warning: tuple[str, float] = ("", 0.0)
        self._since = 0.0
        """When the first of the failures came that have had no success between them."""

    def tell(self, error: ClientError, failures: int) -> None:
        """As `Backoff.on_failure`."""
        sentence, now = str(error).rstrip("."), self._clock()
        said, at = self._last_warning
        if failures <= 1:
            self._since = now
        if failures < TOLD_FROM_FAILURE or (sentence == said and now - at < TOLD_AGAIN_SECONDS):
            return
        self._last_warning = (sentence, now)
        note(f"Waiting for {now - self._since:.0f} s: {sentence}; tried again until it is there.")


async def _print_all(
    cluster: Cluster, orders: Orders, first: Mapping[int, int], last: Mapping[int, int] | None
) -> None:
    left, out = orders.records_max, sys.stdout.buffer
    if left == 0:
        return
    async for partition, records, states in _read(cluster, orders, first, last):
        some = records if left is None else records[:left]
        out.writelines(orders.shown(orders.topic, partition, one, states.get(Offset(one.offset))) for one in some)
        out.flush()
        if left is not None and (left := left - len(some)) == 0:
            return


async def _print_tail(
    cluster: Cluster, orders: Orders, first: Mapping[int, int], last: Mapping[int, int], count: int
) -> None:
    """Print the last records of all partitions together, the earliest first."""
    kept: dict[int, deque[tuple[Record, State]]] = {}
    open_, reach = set(last), count
    while open_ and count:
        begin = {index: max(first[index], last[index] - reach) for index in open_}
        kept |= {index: deque(maxlen=count) for index in open_}
        async for partition, records, states in _read(cluster, orders, begin, last):
            kept[partition].extend((record, states.get(Offset(record.offset))) for record in records)
        open_ = {index for index in open_ if len(kept[index]) < count and begin[index] > first[index]}
        reach *= WIDER
    found = [(index, record, state) for index in kept for record, state in kept[index]]
    found.sort(key=lambda one: (one[1].timestamp, one[0], one[1].offset))
    sys.stdout.buffer.writelines(orders.shown(orders.topic, *one) for one in found[-count:])


async def _read(
    cluster: Cluster, orders: Orders, first: Mapping[int, int], last: Mapping[int, int] | None
) -> AsyncIterator[Found]:
    """Wanted records from the first offsets on, in each partition up to its last one, if there is one."""
    decoder = None if orders.schemas is None else Decoder(orders.schemas, orders.topic)
    async with Consumer(cluster, committed_only=orders.committed_only, tells_states=orders.tells_states) as consumer:
        for index, start in first.items():
            if last is None or start < last[index]:
                consumer.assign(orders.topic, index, start)
        while consumer.positions:
            for fetched in await consumer.poll():
                records = fetched.records
                if last is not None:
                    records = [record for record in records if record.offset < last[fetched.partition]]
                stored = {}
                if decoder is not None:
                    stored = {record.offset: record for record in records}
                    records = await decoder.decoded(records)
                pairs = zip(fetched.records, fetched.states, strict=False)
                states = {Offset(record.offset): state for record, state in pairs if state is not None}
                yield Found(fetched.partition, _wanted(fetched.partition, records, states, stored, orders), states)
            for (topic, index), position in list(consumer.positions.items()) if last is not None else ():
                if last is not None and position >= last[index]:
                    consumer.unassign(topic, index)


def _wanted(
    partition: int, records: list[Record], states: Mapping[Offset, State], stored: Mapping[int, Record], orders: Orders
) -> list[Record]:
    if (lowest := orders.start.offset) is not None:  # a partition may not have come so far yet
        records = [record for record in records if record.offset >= lowest]
    if (pattern := orders.pattern) is not None:
        records = [one for one in records if pattern.search(one.key or b"") or pattern.search(one.value or b"")]
    if (test := orders.test) is not None:
        records = [
            one for one in records if test(partition, one, states.get(Offset(one.offset)), stored.get(one.offset))
        ]
    return records
