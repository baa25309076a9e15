"""Asks one broker for its damaged logs (`wire.ailments`)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from headrace.base.addresses import Address
from headrace.base.errors import CorruptData
from headrace.base.limits import AILMENTS_TIMEOUT_MS
from headrace.net.copylink import open_link
from headrace.wire.ailments import REQUEST, Ailment, decode_ailments


async def ailments(address: Address) -> Sequence[Ailment] | None:
    """None where it does not answer in time, or not as one of this version."""
    answer: asyncio.Future[Sequence[Ailment]] = asyncio.get_running_loop().create_future()

    def on_frame(frame: memoryview) -> None:
        if not answer.done():
            answer.set_result(decode_ailments(frame))

    def on_lost(reason: str) -> None:
        if not answer.done():
            answer.set_exception(ConnectionError(reason))

    try:
        link = await open_link(address, on_frame, on_lost, timeout_ms=AILMENTS_TIMEOUT_MS)
        try:
            link.send(REQUEST, answered=True)
            return await asyncio.wait_for(answer, AILMENTS_TIMEOUT_MS / 1000)
        finally:
            link.close()
    except (OSError, TimeoutError, CorruptData):
        return None
