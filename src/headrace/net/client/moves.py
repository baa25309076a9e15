"""Asks brokers about moves (`wire.moves`).

Promises: a broker's refusal is raised. A broker that does not answer reports no moves under way, and the others do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from headrace.base.addresses import Address
from headrace.base.errors import CorruptData
from headrace.base.limits import MOVES_ASK_TIMEOUT_MS
from headrace.net.client.cluster import Cluster
from headrace.net.client.errors import ClientError
from headrace.net.client.security.settings import PLAIN, ClientSecurity
from headrace.net.peer.copylink import open_link
from headrace.wire.moves import (
    LIST,
    MEASURE,
    FinishedView,
    MoveAnswer,
    MoveRequest,
    MoveView,
    decode_answer,
    encode_request,
)


class MovesRefusedError(ClientError):
    """Nothing is moved. The text is the broker's own sentence."""


async def ask(address: Address, request: MoveRequest, security: ClientSecurity = PLAIN) -> MoveAnswer:
    """Send one request to one broker. Raises OSError, TimeoutError, CorruptData, ClientError."""
    answer: asyncio.Future[MoveAnswer] = asyncio.get_running_loop().create_future()

    def on_frame(frame: memoryview) -> None:
        if not answer.done():
            answer.set_result(decode_answer(frame))

    def on_lost(reason: str) -> None:
        if not answer.done():
            answer.set_exception(ConnectionError(reason))

    link = await open_link(address, on_frame, on_lost, timeout_ms=MOVES_ASK_TIMEOUT_MS, security=security)
    try:
        link.send(encode_request(request), answered=True)
        return await asyncio.wait_for(answer, MOVES_ASK_TIMEOUT_MS / 1000)
    finally:
        link.close()


async def addresses(cluster: Cluster) -> list[Address]:
    """Addresses of all live brokers."""
    brokers = (await cluster.metadata(())).brokers
    return [broker.address for _, broker in sorted(brokers.items())]


async def move(cluster: Cluster, request: MoveRequest) -> MoveAnswer:
    """Ask the first broker that answers. The request is not sent a second time. Raises ClientError."""
    reason = "no broker is known"
    for address in await addresses(cluster):
        try:
            answer = await ask(address, request, cluster.security)
        except ConnectionRefusedError as error:
            reason = str(error)
            continue
        except (OSError, TimeoutError, CorruptData) as error:
            raise MovesRefusedError(
                f"{address} was asked, and did not answer ({error}): see 'headrace topic moves' before asking again."
            ) from error
        if answer.error:
            raise MovesRefusedError(answer.error)
        return answer
    raise MovesRefusedError(f"No broker could be asked: {reason}.")


async def under_way(cluster: Cluster) -> tuple[list[MoveView], list[FinishedView]]:
    """Moves under way and finished ones, as all brokers together know them."""
    answers = await _all(cluster, MoveRequest(LIST))
    found: dict[tuple[str, int], MoveView] = {}
    for answer in answers:
        for one in answer.moves:
            known = found.get((one.topic, one.partition))
            found[one.topic, one.partition] = one if known is None else _together(known, one)
    return [view for _, view in sorted(found.items())], [one for answer in answers for one in answer.finished]


def _together(one: MoveView, other: MoveView) -> MoveView:
    """The move as both brokers tell of it: the owner knows how far it is, and the target best why it fails."""
    owners, others = (other, one) if other.bytes_left >= 0 else (one, other)
    if not others.obstacle:
        return owners
    return owners._replace(obstacle=others.obstacle, since_ms=others.since_ms)


async def measured(cluster: Cluster, topic: str, partitions: Sequence[int]) -> dict[int, int]:
    """Bytes that are not exported yet, by partition."""
    answers = await _all(cluster, MoveRequest(MEASURE, topic=topic, partitions=tuple(partitions)))
    return {one.partition: one.bytes_left for answer in answers for one in answer.moves}


async def _all(cluster: Cluster, request: MoveRequest) -> list[MoveAnswer]:
    asked = [ask(address, request, cluster.security) for address in await addresses(cluster)]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    return [answer for answer in answers if isinstance(answer, MoveAnswer)]
