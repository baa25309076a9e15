"""The process that decodes (`child`), as this one uses it: it starts with the first value, and another takes its place.

Promises:
- A value is answered within a bounded time, or counts as failed. Its process is ended then.
- A process that ends, for whatever reason, costs the value that it was at, and no other.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Sequence
from contextlib import suppress
from enum import Enum
from typing import Final, NamedTuple

from headrace.base.errors import HeadraceError
from headrace.base.limits import (
    DECODED_BYTES_MAX,
    DECODING_MS_MAX,
    DECODING_SCHEMAS_MAX,
    DECODING_START_MS_MAX,
)
from headrace.operations.schemas import frames
from headrace.operations.schemas.schema import Schema

SECRETS: Final = "HEADRACE_"
"""Names in the environment that begin so may hold secrets, and the child needs none."""


class Outcome(Enum):
    """The end of one attempt to decode."""

    JSON = frames.JSON
    OTHER = frames.OTHER
    """The bytes are not of this schema."""
    LARGE = frames.LARGE
    """The value would be too large, or is nested too deeply."""
    REFUSED = frames.REFUSED
    """The schema cannot be used."""
    FAILED = b"F"
    """It took too long, or ended the process."""
    LEFT = b"-"
    """It was not tried: too many had failed before."""


class Job(NamedTuple):
    """A value of Avro."""

    schema: Schema
    data: bytes


class Result(NamedTuple):
    outcome: Outcome
    data: bytes = b""
    """The JSON, or the reason."""


class DecoderError(HeadraceError):
    """No process can be started."""


class Decoder:
    """One process. Those who want something decoded take turns."""

    def __init__(self, *, ms_max: float = DECODING_MS_MAX) -> None:
        self._ms_max = ms_max
        self._turn = asyncio.Lock()
        self._process: Process | None = None
        self._known: dict[Schema, int] = {}
        """The schemas that the process was given, with their numbers there."""
        self._ending: set[asyncio.Task[None]] = set()

    async def decode(self, jobs: Sequence[Job], failures_max: int) -> list[Result]:
        """The results of these, in their order. After so many failures no more are tried. Raises DecoderError."""
        results: list[Result] = []
        failures = 0
        async with self._turn:
            while len(results) < len(jobs) and failures < failures_max:
                try:
                    await self._some(jobs[len(results) :], results)
                except (TimeoutError, EOFError, OSError):
                    self._end()
                    results.append(Result(Outcome.FAILED))
                    failures += 1
                except BaseException:  # the process would go on with answers that nobody waits for
                    self._end()
                    raise
        return results + [Result(Outcome.LEFT)] * (len(jobs) - len(results))

    async def _some(self, jobs: Sequence[Job], results: list[Result]) -> None:
        """Ask for all of them, and take the answers as they come. Raises TimeoutError, EOFError, OSError."""
        if len(self._known.keys() | {job.schema for job in jobs}) > DECODING_SCHEMAS_MAX:
            self._end()
        process = self._process or await self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        for job in jobs:
            if (number := self._known.get(job.schema)) is None:
                number = self._known[job.schema] = len(self._known)
                texts = json.dumps([*job.schema.needed, job.schema.text]).encode()
                process.stdin.write(frames.frame(frames.SCHEMA, number, texts))
            process.stdin.write(frames.frame(frames.DATA, number, job.data))
        for _ in jobs:
            async with asyncio.timeout(self._ms_max / 1000):
                results.append(await _result(process.stdout))

    async def _started(self) -> Process:
        """Raises DecoderError."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith(SECRETS)}
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "headrace.operations.schemas.child"),
                stdin=PIPE,
                stdout=PIPE,
                stderr=DEVNULL,  # it might repeat what stands in a record
                env=environment,
            )
        except OSError as error:
            raise DecoderError(f"The process that decodes cannot be started: {error.strerror or error}.") from error
        self._process, self._known = process, {}
        assert process.stdout is not None
        try:
            async with asyncio.timeout(DECODING_START_MS_MAX / 1000):
                await process.stdout.readexactly(frames.HEAD.size)
        except (TimeoutError, EOFError):
            self._end()
            raise DecoderError("The process that decodes does not start.") from None
        return process

    def _end(self) -> None:
        if (process := self._process) is None:
            return
        self._process, self._known = None, {}
        with suppress(ProcessLookupError):
            process.kill()
        task = asyncio.create_task(_gone(process))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def close(self) -> None:
        """End the process."""
        self._end()
        await asyncio.gather(*self._ending)


async def _gone(process: Process) -> None:
    """Wait until it is. Its pipe is read to the end: asyncio waits for that."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    with suppress(OSError):
        await process.stdout.read()
    await process.wait()


async def _result(source: asyncio.StreamReader) -> Result:
    """Raises EOFError."""
    kind, _, size = frames.HEAD.unpack(await source.readexactly(frames.HEAD.size))
    if size > DECODED_BYTES_MAX:
        raise EOFError("The process that decodes answers something else.")
    return Result(Outcome(kind), await source.readexactly(size))
