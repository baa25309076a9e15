"""Parts of pages that were made last. A part is made once for each change, however many show it."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from headrace.base.limits import CONSOLE_STREAMS_MAX


@dataclass(slots=True)
class Renderings:
    """The parts that were made last, for all who show them."""

    _made: OrderedDict[Any, tuple[Any, asyncio.Future[tuple[str, int]]]] = field(default_factory=OrderedDict)

    async def get(self, key: Any, versions: Any, make: Callable[[], Awaitable[tuple[str, int]]]) -> tuple[str, int]:
        """That of these versions, made where nobody has asked for it before."""
        known = self._made.get(key)
        if known is None or known[0] != versions or known[1].cancelled():
            known = (versions, asyncio.ensure_future(make()))
            self._made[key] = known
            self._made.move_to_end(key)
            while len(self._made) > CONSOLE_STREAMS_MAX:
                self._made.popitem(last=False)
        return await asyncio.shield(known[1])
