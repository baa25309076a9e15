"""Asks one broker about durable history (`wire.durable`)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Any, Self
from uuid import UUID, uuid4

from headrace.base.addresses import Address
from headrace.base.errors import CorruptData
from headrace.base.limits import DURABLE_TIMEOUT_MS, DURABLE_WAIT_TOLD_S, SWEEP_ASK_EVERY_MS
from headrace.net.client.errors import ConnectionLostError
from headrace.net.client.security.settings import PLAIN, ClientSecurity
from headrace.net.peer.copylink import CopyLink, open_link
from headrace.wire.durable import CATALOG, MERGE, RECOVER, SUMMARIES, SWEEP, decode_answer, encode_request


class DurableLink:
    """A connection to one broker, and an async context manager. It handles one question at a time. Raises
    ConnectionLostError, AuthenticationError.
    """

    def __init__(
        self, address: Address, security: ClientSecurity = PLAIN, *, on_wait: Callable[[str], None] | None = None
    ) -> None:
        """`on_wait` is called with a sentence while work that was asked for lasts, now and then."""
        self._address = address
        self._on_wait = on_wait
        self._security = security
        self._link: CopyLink | None = None
        self._answer: asyncio.Future[dict[str, Any]] | None = None
        self._lost: ConnectionLostError | None = None
        """Set once the connection is lost."""

    async def __aenter__(self) -> Self:
        try:
            self._link = await open_link(
                self._address, self._on_frame, self._on_lost, timeout_ms=DURABLE_TIMEOUT_MS, security=self._security
            )
        except (OSError, TimeoutError) as error:
            raise ConnectionLostError(f"{self._address} takes no connection ({error}).") from error
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if self._link is not None:
            self._link.close()

    async def topics(self) -> AsyncIterator[dict[str, Any]]:
        """Every topic, by name, with the durable part of it."""
        after, more = "", True
        while more:
            answer = await self._ask({"op": SUMMARIES, "after": after})
            for topic in answer["topics"]:
                after = topic["topic"]
                yield topic
            more = answer["more"]

    async def catalog(self, topic_id: UUID, partition: int, start: int) -> dict[str, Any]:
        """`state`, and the `entries` from the one that starts at `start` (-1: the first)."""
        return await self._ask({"op": CATALOG, "topic_id": str(topic_id), "partition": partition, "from": start})

    async def sweep(self, *, execute: bool) -> dict[str, Any]:
        """Sweep, until it is done."""
        return await self._until_done({"op": SWEEP, "execute": execute})

    async def merge(
        self, topic_id: UUID, partition: int | None, *, execute: bool, below: int | None = None
    ) -> dict[str, Any]:
        """Merge the segments of a topic's partitions that this broker leads, or of one, until it is done. `below`: in
        compacted partitions, records from this offset on replace none; older brokers do not know it.
        """
        about = {"op": MERGE, "topic_id": str(topic_id), "partition": partition, "below": below}
        return await self._until_done({**about, "execute": execute})

    async def recover(self, topic: str, partition: int | None, to: int | None, *, execute: bool) -> dict[str, Any]:
        """Recover a topic's partitions without a leader, or one of them, until it is done."""
        return await self._until_done(
            {"op": RECOVER, "topic": topic, "partition": partition, "to": to, "execute": execute}
        )

    async def _until_done(self, about: dict[str, Any]) -> dict[str, Any]:
        named = {**about, "id": str(uuid4())}
        begun, told = asyncio.get_running_loop().time(), 0
        while True:
            answer = await self._ask(named)
            if answer["done"]:
                return answer
            seconds = int(asyncio.get_running_loop().time() - begun)
            if self._on_wait is not None and seconds - told >= DURABLE_WAIT_TOLD_S:
                told = seconds
                self._on_wait(f"the broker at {self._address} is at work ({about['op']}), for {seconds} s")
            await asyncio.sleep(SWEEP_ASK_EVERY_MS / 1000)

    async def _ask(self, fields: dict[str, Any]) -> dict[str, Any]:
        assert self._link is not None, "it is entered first"
        if self._lost is not None:
            raise self._lost
        self._answer = answer = asyncio.get_running_loop().create_future()
        self._link.send(encode_request(fields), answered=True)
        try:
            return await asyncio.wait_for(answer, DURABLE_TIMEOUT_MS / 1000)
        except TimeoutError as error:
            raise ConnectionLostError(f"{self._address} does not answer in time about durable history.") from error

    def _on_frame(self, frame: memoryview) -> None:
        if self._answer is not None and not self._answer.done():
            try:
                self._answer.set_result(decode_answer(frame))
            except CorruptData as error:
                self._answer.set_exception(error)

    def _on_lost(self, reason: str) -> None:
        text = (
            f"{self._address} does not answer about durable history ({reason}): may this user ask (headrace acl), and "
            "is it of this version?"
        )
        self._lost = ConnectionLostError(text)
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(self._lost)
