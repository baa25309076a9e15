"""Producer ids, unique for ever: handed out from blocks that the controller allocates (KIP-730).

Promises: no id is given twice, not even after kill -9. A block is committed before its first id is given out. A crash
loses the rest of a block; it is not reused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from headrace.base.ids import ProducerId
from headrace.controller.decision import Refusal


class ProducerIdAllocator:
    """Hands out producer ids. `allocate_block` has the controller commit a block, and returns its first id and its
    length, or a refusal."""

    def __init__(self, allocate_block: Callable[[], Awaitable[tuple[ProducerId, int] | Refusal]]) -> None:
        self._allocate_block = allocate_block
        self._next = 0
        self._end = 0
        self._turn = asyncio.Lock()

    async def take(self) -> ProducerId | Refusal:
        """Return a producer id that was never given before."""
        async with self._turn:
            if self._next >= self._end:
                block = await self._allocate_block()
                if isinstance(block, Refusal):
                    return block
                self._next, self._end = int(block[0]), int(block[0]) + block[1]
            taken = ProducerId(self._next)
            self._next += 1
            return taken
