"""Asks one broker for its problems (`wire.ailments`)."""

from __future__ import annotations

import asyncio

from headrace.base.addresses import Address
from headrace.base.errors import CorruptData
from headrace.base.limits import AILMENTS_TIMEOUT_MS
from headrace.net.client.errors import ClientError
from headrace.net.client.security.settings import PLAIN, ClientSecurity
from headrace.net.peer.copylink import open_link
from headrace.wire.ailments import REQUEST, Report, decode_report


async def report_of(address: Address, security: ClientSecurity = PLAIN) -> Report | None:
    """The broker's report; None where it does not answer in time, or not in this version."""
    answer: asyncio.Future[Report] = asyncio.get_running_loop().create_future()

    def on_frame(frame: memoryview) -> None:
        if not answer.done():
            answer.set_result(decode_report(frame))

    def on_lost(reason: str) -> None:
        if not answer.done():
            answer.set_exception(ConnectionError(reason))

    try:
        link = await open_link(address, on_frame, on_lost, timeout_ms=AILMENTS_TIMEOUT_MS, security=security)
        try:
            link.send(REQUEST, answered=True)
            return await asyncio.wait_for(answer, AILMENTS_TIMEOUT_MS / 1000)
        finally:
            link.close()
    except (OSError, TimeoutError, ClientError, CorruptData):
        return None
