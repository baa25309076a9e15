"""The words between `headrace up --nodes N` and the brokers under it, by the pipes of their standard streams.

- A broker prints `ready HOST:PORT` once it serves, as every broker does.
- Then its parent may write an index of the metadata, as a line. The broker answers `at INDEX` once it has replayed the
  metadata up to there, and is unfenced in it. INDEX is how far it is by then.
- It stops where its input ends, since the parent is gone.
"""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import suppress

from headrace.base.errors import HeadraceError
from headrace.broker.boot import Broker

INPUT_BYTES_MAX = 4096


class Parent:
    """The parent of this process, at standard input and output. `asked` is done where it is gone."""

    def __init__(self, asked: asyncio.Future[None]) -> None:
        self._asked = asked
        self._loop = asyncio.get_running_loop()
        self._read = b""
        self._indexes = asyncio.Queue[int]()
        self._loop.add_reader(0, self._on_input)

    async def answer(self, broker: Broker) -> None:
        """Answer each question, until the broker replays no more, or the parent is gone."""
        metadata, membership, changed = broker.parts.metadata, broker.parts.membership, asyncio.Event()
        broker.observe(lambda _: changed.set())
        with suppress(HeadraceError, BrokenPipeError):
            while True:
                await metadata.reached(await self._indexes.get())
                while not membership.is_unfenced:
                    changed.clear()
                    await changed.wait()
                sys.stdout.write(f"at {metadata.image.index}\n")
                sys.stdout.flush()

    def _on_input(self) -> None:
        told = os.read(0, INPUT_BYTES_MAX)
        if not told:
            self._loop.remove_reader(0)
            if not self._asked.done():
                self._asked.set_result(None)
        *lines, self._read = (self._read + told).split(b"\n")
        for line in lines:
            self._indexes.put_nowait(int(line))
