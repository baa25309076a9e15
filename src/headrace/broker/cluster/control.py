"""The way to the controller: `submit` sends a request to it, wherever it is.

Here it is decided at once; elsewhere it is carried there in an Envelope over one pipelined connection.

Promises:
- The result of `submit` rests on committed entries, and this broker has replayed them by then: the caller finds them
  here.
- Every wait ends (CONTROLLER_WAIT_MS_MAX).
- While there is no controller, `submit` waits, and then returns an error on which a client tries again.
- A request that must not be done twice is never sent twice. It is not sent where little time is left for its answer
  (CONTROLLER_ANSWER_MS_MIN): then it is surely not done, and the client asks again.

Source: KIP-590.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import count
from typing import Final, TypeVar

from headrace.base.addresses import Address
from headrace.base.errors import HeadraceError, StorageFailure
from headrace.base.ids import BrokerId
from headrace.base.limits import (
    CONTROLLER_ANSWER_MS_MIN,
    CONTROLLER_BACKOFF_MS,
    CONTROLLER_BACKOFF_MS_MAX,
    CONTROLLER_LINKS_MAX,
    CONTROLLER_WAIT_MS_MAX,
    FORWARDED_BYTES_MAX,
)
from headrace.broker.cluster.controller_service import ControllerService
from headrace.broker.cluster.driver import ChangeRefused, MetadataDriver, MetadataStopped, NotController
from headrace.broker.kit.links import Links, NotSent
from headrace.broker.kit.tasks import wait_for_event
from headrace.controller.asks.asking import Ask
from headrace.controller.asks.brokers import Heartbeat
from headrace.controller.asks.carried import Answer, decode_answer, decode_leader, encode_ask
from headrace.controller.decision import Refusal
from headrace.controller.levels import behind
from headrace.logs import get_logger
from headrace.metadata.delta import ImageDelta
from headrace.net.client.errors import ConnectionLostError
from headrace.net.client.security.settings import PLAIN, ClientSecurity
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.envelope import EnvelopeRequest, EnvelopeResponse

R = TypeVar("R")
log = get_logger(__name__)

NOT_DONE: Final = (NotController, ChangeRefused)
"""Nothing was done, and the request may be repeated."""


class Control:
    """One per broker. `address_of` gives a broker's address, where that is known. `others` gives brokers to ask while
    no leader is known. `settled` waits until the replayed changes are carried out here."""

    def __init__(
        self,
        *,
        metadata: MetadataDriver,
        controller: ControllerService,
        address_of: Callable[[BrokerId], Address | None],
        others: Callable[[], Sequence[Address]],
        settled: Callable[[], Awaitable[None]],
        security: ClientSecurity = PLAIN,
    ) -> None:
        self._metadata = metadata
        self._controller = controller
        self._address_of = address_of
        self._others = others
        self._turn = 0
        self._settled = settled
        self._links = Links(CONTROLLER_LINKS_MAX, security)
        self._changed = asyncio.Event()
        """Set when the quorum's leader has changed since it was last cleared."""
        self._replayed: list[tuple[int, int, asyncio.Future[None]]] = []
        """A heap of the callers that wait until the entry at an index is replayed here."""
        self._number = count()
        metadata.subscribe(self._on_delta)
        metadata.on_leader(self._changed.set)
        metadata.on_controller(lambda _: self._changed.set())

    async def submit(self, ask: Ask[R], *, wait_ms: int = CONTROLLER_WAIT_MS_MAX) -> R | Refusal:
        """Return the answer, once it is committed and carried out here. NOT_CONTROLLER, on which a client asks again,
        where there is no controller for that long. REQUEST_TIMED_OUT where the outcome is unknown."""
        unsure = False
        if self._metadata.is_controller:
            try:
                result: R | Refusal = await self._controller.answer(ask)
            except MetadataStopped as error:
                return no_controller(str(error))
            except NOT_DONE:
                pass
            except HeadraceError as error:
                if not ask.REPEATABLE or isinstance(error, StorageFailure):  # others may have it, and commit it
                    return _unknown(str(error))
                unsure = True
            else:
                if ask.SETTLED_FIRST:
                    await self._settled()
                return result
        return await self._submit_elsewhere(ask, wait_ms, unsure=unsure)

    async def _submit_elsewhere(self, ask: Ask[R], wait_ms: int, *, unsure: bool) -> R | Refusal:
        """Ask the controller on another broker. `unsure`: an earlier try may have been carried out."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_ms / 1000
        answer_s_min = 0.0 if ask.REPEATABLE else min(CONTROLLER_ANSWER_MS_MIN, wait_ms // 2) / 1000
        backoff_ms = CONTROLLER_BACKOFF_MS
        hint: Address | None = None
        data = encode_ask(self._controller.cluster_id, ask)
        if len(data) > FORWARDED_BYTES_MAX:
            message = f"A request of {len(data)} bytes is too large to be carried to the controller: split it."
            return Refusal(ErrorCode.POLICY_VIOLATION, message)
        while True:
            self._changed.clear()
            if (refusal := self._not_known_to_controller(ask)) is not None:
                return refusal
            followed = hint is not None
            try:
                answer, hint = await self._try(ask, data, hint, deadline, answer_s_min)
            except MetadataStopped as error:
                return _unknown(str(error)) if unsure else no_controller(str(error))
            except (NotSent, ChangeRefused) as error:
                reason, answer, hint = str(error), None, None
            except HeadraceError as error:
                if not ask.REPEATABLE or isinstance(error, StorageFailure):
                    return _unknown(str(error))
                reason, answer, hint, unsure = str(error), None, None, True
            else:
                reason = "no broker is the controller now"
            if answer is not None:
                return await self._once_replayed(ask, answer, deadline)
            if hint is not None and not followed:
                continue
            hint = None  # two brokers that take each other for the controller are not asked in turns
            left = deadline - loop.time() - backoff_ms / 1000
            if left <= answer_s_min:  # a request at the very end has no time to be answered, and may be carried out
                return _unknown(reason) if unsure else no_controller(f"{reason.rstrip('.')}: ask again.")
            await wait_for_event(self._changed, backoff_ms / 1000)
            backoff_ms = min(2 * backoff_ms, CONTROLLER_BACKOFF_MS_MAX)

    async def _once_replayed(self, ask: Ask[R], answer: Answer[R], deadline: float) -> R | Refusal:
        """Return the controller's answer once it is replayed here, or at the deadline."""
        replayed = await self._wait_until_replayed(answer.index, deadline)
        if not replayed and isinstance(ask, Heartbeat) and not ask.stopping:
            return no_controller("What was decided has not come here yet.")
        if ask.SETTLED_FIRST:
            await self._settled()
        return answer.result

    async def _try(
        self, ask: Ask[R], data: bytes, hint: Address | None, deadline: float, answer_s_min: float
    ) -> tuple[Answer[R] | None, Address | None]:
        """Try once; return an answer, or None and perhaps the address to ask then. Raises HeadraceError."""
        if self._metadata.is_controller:
            try:
                result = await self._controller.answer(ask)
                return Answer(index=self._metadata.image.index, result=result), None
            except NotController:
                return None, None
        address = hint if hint is not None else self._whom_to_ask()
        if address is None:
            return None, None
        request = EnvelopeRequest(request_data=data, request_principal=None, client_host_address=b"")
        response = await self._links.ask(
            address, ApiKey.ENVELOPE, request, versions=(0, 0), deadline=deadline, answer_s_min=answer_s_min
        )
        assert isinstance(response, EnvelopeResponse)
        if response.error_code == ErrorCode.NOT_CONTROLLER:
            leader = decode_leader(response.response_data or b"")
            return None, Address(*leader) if leader not in (None, address, hint) else None
        if response.error_code != ErrorCode.NONE:
            raise ConnectionLostError(f"{address} could not answer what was carried to it.")
        return decode_answer(ask, response.response_data or b""), None

    def _not_known_to_controller(self, ask: Ask[R]) -> Refusal | None:
        """Return why the leader cannot read the request; None where it can, or is not known. One that reads a request
        that it does not know closes the connection, and nobody could say what came of it."""
        image, leader = self._metadata.image, self._metadata.leader
        if leader is None or leader == self._metadata.me or leader not in image.brokers:
            return None
        return behind(image, [leader], ask.LEVEL, ask.SUBJECT)

    def _whom_to_ask(self) -> Address | None:
        """Return the leader's address where it is known; else that of another broker each time, which may know."""
        leader = self._metadata.leader
        if leader is not None:
            return None if leader == self._metadata.me else self._address_of(leader)
        others = self._others()
        self._turn += 1
        return others[self._turn % len(others)] if others else None

    # waiting until it is replayed here

    async def _wait_until_replayed(self, index: int, deadline: float) -> bool:
        """Wait, and return whether the entry was replayed before the time was over. A decision stands, whether or not
        this broker has heard of it."""
        if self._metadata.image.index >= index:
            return True
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        heapq.heappush(self._replayed, (index, next(self._number), done))
        with suppress(TimeoutError):
            await asyncio.wait_for(done, max(0, deadline - loop.time()))
        return self._metadata.image.index >= index

    def _on_delta(self, delta: ImageDelta) -> None:
        while self._replayed and self._replayed[0][0] <= delta.after.index:
            _, _, done = heapq.heappop(self._replayed)
            if not done.done():
                done.set_result(None)

    async def stop(self) -> None:
        await self._links.close()


def check_accepted(refusal: Refusal | None) -> None:
    """Raises HeadraceError, with the controller's message, where there is a refusal."""
    if refusal is not None:
        raise HeadraceError(refusal.message)


def no_controller(reason: str) -> Refusal:
    """Return an error on which a client tries again."""
    return Refusal(ErrorCode.NOT_CONTROLLER, reason)


def _unknown(reason: str) -> Refusal:
    message = f"Whether it was done is not known ({reason.rstrip('.')}): look, then ask again."
    return Refusal(ErrorCode.REQUEST_TIMED_OUT, message)
