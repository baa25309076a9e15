"""Compares the native road with its twins in Python: `python -m tools.native_fuzz --cases 10000000 --seed 1`.

A case is a frame or a batch. In two cases of five it is sound. In the others some bytes are changed, cut, or put
between. Both sides have to say the same. The first difference is printed with its bytes, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, Final, cast
from uuid import UUID

from crc32c import crc32c
from rich.console import Console
from rich.progress import Progress

from headrace.base.errors import CorruptData
from headrace.base.limits import RECORD_HEADERS_MAX
from headrace.native import Native, choose
from headrace.wire.apis import Api, ApiKey, api
from headrace.wire.batches import CRC_START, HEADER_BYTES, check_in_python, encode_batch
from headrace.wire.compression import Compression
from headrace.wire.headers import encode_request_frame
from headrace.wire.messages import fetch, produce
from headrace.wire.plain_fetch import read_in_python as fetch_in_python
from headrace.wire.plain_fetch import write_in_python
from headrace.wire.plain_produce import read_in_python as produce_in_python
from headrace.wire.records import Record, pack_records
from headrace.wire.walking import walk_in_python

SEEDLINGS: Final = 400
"""Sound ones of each kind, from which the cases are made."""
SOUND: Final = 0.4
STEP: Final = 10_000
JOINED_BYTES_MAX: Final = 64 * 1024
TIMES: Final = (-(2**63), -1, 0, 1_700_000_000_000, 2**63 - 1)

Compare = Callable[[Native, bytes, Random], bool]
"""Whether both sides say the same."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.native_fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    native = choose({"HEADRACE_NATIVE": "1"}).native
    assert native is not None, "it has to be there"
    chance = Random(options.seed)
    kinds = [(compare, list(seedlings(chance))) for seedlings, compare in KINDS]
    console = Console()
    with Progress(console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("cases", total=options.cases)
        for at in range(options.cases):
            compare, sound = chance.choice(kinds)
            data = changed(chance.choice(sound), chance)
            if not compare(native, data, chance):
                print(f"seed {options.seed}, case {at}: {compare.__name__} differs for {data.hex()}")
                return 1
            if at % STEP == 0:
                progress.update(task, completed=at)
    print(f"{options.cases} cases from seed {options.seed}: no difference")
    return 0


def changed(data: bytes, chance: Random) -> bytes:
    if chance.random() < SOUND or not data:
        return data
    raw = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 3, 5))):
        at = chance.randrange(len(raw)) if raw else 0
        match chance.randrange(6):
            case 0:
                raw = raw[:at]
            case 1:
                raw[at:at] = chance.randbytes(chance.randrange(1, 4))
            case 2:
                del raw[at : at + chance.randrange(1, 4)]
            case _ if raw:
                raw[at] = chance.choice(
                    (chance.randrange(256), raw[at] ^ 1 << chance.randrange(8), 0, 0x7F, 0x80, 0xFF)
                )
    return bytes(raw)


def records(chance: Random) -> list[Record]:
    size = chance.choice((0, 1, 10, 63, 64, 100, 300))
    headers = (("h" * chance.randrange(70), b"v" * chance.randrange(70)),) * chance.choice((0, 0, 0, 1, 3))
    key = chance.choice((None, b"", b"k", b"k" * 64))
    step = chance.choice((0, 1, 70, 9_000, -3, 2**33))
    return [
        Record(index, 1_700_000_000_000 + index * step, key, chance.choice((b"v" * size, b"v" * size, None)), headers)
        for index in range(chance.choice((1, 1, 2, 9, 70)))
    ]


def packed(chance: Random) -> Iterator[bytes]:
    for _ in range(SEEDLINGS):
        made = records(chance)
        yield len(made).to_bytes(2, "big") + bytes(pack_records(made, 0, 1_700_000_000_000))


def walk(native: Native, data: bytes, chance: Random) -> bool:
    count = int.from_bytes(data[:2], "big") or 1
    body, base, headers_max = data[2:], chance.choice(TIMES), chance.choice((0, 1, 5, 1 << 40))
    found = native.walk_records(body, count, base, headers_max, RECORD_HEADERS_MAX)
    try:
        twin = walk_in_python(body, count, base, headers_max)
    except CorruptData:
        return found is None
    return found is not None and found[1:] == twin[1:] and found[0] >= twin.oldest_timestamp


def batches(chance: Random) -> Iterator[bytes]:
    for _ in range(SEEDLINGS):
        yield encode_batch(records(chance), compression=chance.choice(list(Compression)))


def check(native: Native, data: bytes, chance: Random) -> bool:
    if chance.random() < 0.5 and len(data) > HEADER_BYTES:  # its CRC is right, and the rest may be wrong
        data = data[: CRC_START - 4] + crc32c(data[CRC_START:]).to_bytes(4, "big") + data[CRC_START:]
    compacted = chance.random() < 0.5
    found = native.check_batch(data, 0, len(data), compacted)
    try:
        twin = check_in_python(data, compacted=compacted)
    except CorruptData:
        return found is None
    return found == twin


def _frame(key: ApiKey, version: int, request: Any, chance: Random) -> bytes:
    client = chance.choice((None, "", "c", "client-1", "ü"))
    parts = encode_request_frame(cast("Api", api(key)), version, chance.randrange(1 << 31), client, request)
    return b"".join(bytes(part) for part in parts)[4:]


def _name(chance: Random) -> str:
    return "t" * chance.choice((1, 5, 126, 127, 200))


def produces(chance: Random) -> Iterator[bytes]:
    for _ in range(SEEDLINGS):
        topics = tuple(
            produce.TopicProduceData(
                name=_name(chance),
                topic_id=UUID(int=chance.randrange(1 << 128)),
                partition_data=tuple(
                    produce.PartitionProduceData(
                        index=chance.randrange(9),
                        records=memoryview(chance.randbytes(chance.choice((0, 5, 126, 127, 400)))),
                    )
                    for _ in range(chance.choice((0, 1, 1, 3)))
                ),
            )
            for _ in range(chance.choice((0, 1, 1, 2)))
        )
        request = produce.ProduceRequest(
            transactional_id=chance.choice((None, None, None, "t")), acks=chance.choice((-1, 0, 1)), topic_data=topics
        )
        yield _frame(ApiKey.PRODUCE, chance.randrange(9, 14), request, chance)


def read_produce(native: Native, data: bytes, _: Random) -> bool:
    view = memoryview(data)
    return len(data) < 2 or native.read_plain_produce(view) == produce_in_python(view)


def fetches(chance: Random) -> Iterator[bytes]:
    for _ in range(SEEDLINGS):
        version = chance.randrange(9, 18)
        topics = tuple(
            fetch.FetchTopic(
                topic=_name(chance),
                topic_id=UUID(int=chance.randrange(1 << 128)),
                partitions=tuple(
                    fetch.FetchPartition(partition=index, fetch_offset=chance.randrange(1 << 40))
                    for index in range(chance.choice((0, 1, 2, 130)))
                ),
            )
            for _ in range(chance.choice((0, 1, 1, 2)))
        )
        request = fetch.FetchRequest(
            session_epoch=chance.choice((-1, -1, -1, 0)),
            rack_id=chance.choice(("", "r", "ü")) if version >= 11 else "",
            topics=topics,
        )
        yield _frame(ApiKey.FETCH, version, request, chance)


def read_fetch(native: Native, data: bytes, _: Random) -> bool:
    view = memoryview(data)
    return len(data) < 2 or native.read_plain_fetch(view) == fetch_in_python(view)


def bodies(chance: Random) -> Iterator[bytes]:
    for _ in range(SEEDLINGS):
        yield chance.randbytes(chance.choice((0, 5, 126, 127, 400, 16_383, 16_384, 66_000)))


def write_fetch(native: Native, data: bytes, chance: Random) -> bool:
    count, version, committed_only = chance.choice((1, 1, 2, 200)), chance.randrange(9, 18), chance.random() < 0.5
    number = chance.randrange(1 << 40)
    found = [(index, number, number + 1, 7, data if index == 0 else data[:9], ()) for index in range(count)]
    topics = [(data[:20], found)] * chance.choice((0, 1, 2))
    written = native.write_plain_found(version, 5, topics, committed_only, JOINED_BYTES_MAX)
    twin = write_in_python(version, 5, topics, committed_only=committed_only)
    return written == (bytes(twin[0]) if len(twin) == 1 else None)


KINDS: Final[tuple[tuple[Callable[[Random], Iterator[bytes]], Compare], ...]] = (
    (packed, walk),
    (batches, check),
    (produces, read_produce),
    (fetches, read_fetch),
    (bodies, write_fetch),
)

if __name__ == "__main__":
    sys.exit(main())
