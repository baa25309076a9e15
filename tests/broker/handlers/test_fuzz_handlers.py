"""Every handler of a live broker gets malformed requests: it answers in the protocol or hangs up, and goes on.

Messages are made from Kafka's schemas, with strings and numbers replaced by ones that mean something to this broker.
Then frames are damaged. Frames that found faults stay in `CORPUS`, beside frames that broke others.
"""

from __future__ import annotations

import asyncio
import struct
import tempfile
from collections.abc import Iterator, MutableMapping
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from random import Random
from typing import Any, Final
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from headrace.wire.apis import ApiKey, api
from headrace.wire.headers import decode_response_header, encode_request_header
from headrace.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.broker.group_broker import RawClient, running
from tests.broker.random_requests import NAMES, REQUESTS, SERVED, Salt, frame_of
from tests.tiers import examples
from tests.wire.schema import Case, random_instance

TOPIC: Final = "fed"
PATIENCE_S: Final = 0.05
"""An answer that takes longer is not waited for: the peer is gone, as peers are."""


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def asked(key: ApiKey, version: int, body: bytes) -> bytes:
    return framed(encode_request_header(key, version, 7, "fuzz") + body)


CORPUS: Final = {
    "nothing": b"",
    "one byte": b"\0",
    "an empty frame": framed(b""),
    "an announced gigabyte": struct.pack(">i", 2**30),
    "two gigabytes": b"\x7f\xff\xff\xff" + bytes(100),
    "a TLS greeting": bytes.fromhex("16030100a5010000a10303") + bytes(150),
    "a header of an API alone": framed(struct.pack(">h", ApiKey.PRODUCE)),
    "a client id beyond the frame": framed(struct.pack(">hhih", ApiKey.METADATA, 12, 7, 32767)),
    "a client id that is no text": framed(struct.pack(">hhih", ApiKey.METADATA, 12, 7, 2) + b"\xff\xfe\0"),
    "ten thousand tagged fields": framed(
        struct.pack(">hhih", ApiKey.METADATA, 12, 7, -1) + b"\xff\x4e" + bytes(20_000)
    ),
    "an array of all memory": asked(ApiKey.METADATA, 12, b"\xff\xff\xff\xff\x0f"),
    "an array of less than nothing": asked(ApiKey.METADATA, 4, struct.pack(">i", -2) + b"\0"),
    "a fetch of nothing for ever": asked(ApiKey.FETCH, 4, struct.pack(">iiiibi", -1, 2**31 - 1, 2**31 - 1, -1, 9, 0)),
    "a fetch of less than nothing": asked(ApiKey.FETCH, 4, struct.pack(">iiiibi", 5, -1, -1, -5, -1, -1)),
}


class Fed:
    """A broker in this process, on an event loop that runs while a frame is being fed."""

    def __init__(self, runner: asyncio.Runner, bootstrap: str, lines: list[MutableMapping[str, Any]]) -> None:
        self._runner = runner
        self._address = bootstrap.split(":")
        self._lines = lines
        self.topic_id = UUID(int=0)

    def salt(self, case: Case, random: Random) -> Any:
        """A random request of which half makes sense here."""
        return Salt((TOPIC, TOPIC, *NAMES), self.topic_id).salted(random_instance(case, random), random)

    def feed(self, data: bytes) -> bytes | None:
        """The answer to these bytes; None: the broker hung up, or takes longer than we wait."""
        answer = self._runner.run(self._feed(data))
        bugs = [line for line in self._lines if line["log_level"] in ("error", "critical") or "bug" in line["event"]]
        assert not bugs
        self._lines.clear()
        return answer

    async def _feed(self, data: bytes) -> bytes | None:
        answer = await self._talk(data)
        alive = await self._talk(asked(ApiKey.API_VERSIONS, 0, b""), patience_s=20)
        assert alive is not None, "the broker serves no more"
        return answer

    async def _talk(self, data: bytes, patience_s: float = PATIENCE_S) -> bytes | None:
        reader, writer = await asyncio.open_connection(self._address[0], int(self._address[1]))
        try:
            async with asyncio.timeout(patience_s):
                writer.write(data)
                size = int.from_bytes(await reader.readexactly(4), "big")
                return await reader.readexactly(size)
        except (ConnectionError, asyncio.IncompleteReadError, TimeoutError):
            return None
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()


@pytest.fixture(scope="module")
def fed() -> Iterator[Fed]:
    with tempfile.TemporaryDirectory() as directory, asyncio.Runner() as runner, capture_logs() as lines:
        stack = AsyncExitStack()

        async def start() -> Fed:
            bootstrap = await stack.enter_async_context(running(Path(directory), {"group.max.size": "20"}))
            one = Fed(runner, bootstrap, lines)
            async with RawClient(bootstrap) as client:
                await client.create_topic(TOPIC, partitions=2)
                request = MetadataRequest(topics=(MetadataRequestTopic(name=TOPIC),))
                one.topic_id = (await client.ask(12, request)).topics[0].topic_id
            return one

        yield runner.run(start())
        runner.run(stack.aclose())


@pytest.mark.parametrize("data", CORPUS.values(), ids=CORPUS.keys())
def test_the_corpus_is_survived(fed: Fed, data: bytes) -> None:
    fed.feed(data)


@settings(max_examples=examples(200), report_multiple_bugs=False)
@given(case=st.sampled_from(REQUESTS), random=st.randoms(use_true_random=False))
def test_whatever_is_asked_is_answered_in_the_protocol_or_ends_the_connection(
    fed: Fed, case: Case, random: Random
) -> None:
    frame = frame_of(case, fed.salt(case, random))
    answer = fed.feed(frame)
    if answer is not None:
        decode(case, answer)


@settings(max_examples=examples(200), report_multiple_bugs=False)
@given(case=st.sampled_from(REQUESTS), random=st.randoms(use_true_random=False), whole=st.booleans())
def test_damaged_frames_are_answered_or_end_the_connection(fed: Fed, case: Case, random: Random, whole: bool) -> None:
    data = bytearray(frame_of(case, fed.salt(case, random)))
    for _ in range(random.randint(1, 4)):
        at = random.randrange(4, len(data))
        data[at : at + random.randint(0, 3)] = random.randbytes(random.randint(0, 3))
        data += b"\0" * (5 - len(data))
    fed.feed(framed(bytes(data[4:])) if whole else bytes(data))


@settings(max_examples=examples(100))
@given(st.binary(max_size=200), st.booleans())
def test_random_bytes_are_survived(fed: Fed, data: bytes, as_frame: bool) -> None:
    fed.feed(framed(data) if as_frame else data)


def decode(case: Case, answer: bytes) -> None:
    known = api(SERVED[case.message.root.name.upper()].key)
    assert known is not None
    correlation_id, at = decode_response_header(known.key, case.version, memoryview(answer))
    assert correlation_id == 7
    known.decode_response(case.version, memoryview(answer)[at:])
