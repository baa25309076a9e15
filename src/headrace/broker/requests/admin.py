"""Helpers of the admin handlers: asking the controller, and new topic ids.

Promises: an admin request is answered with an error code even where nothing can be committed.
"""

from __future__ import annotations

from typing import TypeVar

from headrace.base.ids import TopicId
from headrace.base.limits import CONTROLLER_WAIT_MS_MAX, REQUEST_WAIT_MS_MIN
from headrace.base.ports import Random
from headrace.broker.requests.context import RequestContext
from headrace.controller.asks.asking import Ask
from headrace.controller.decision import Refusal
from headrace.controller.topics import topic_id_of
from headrace.wire.errors import ErrorCode

T = TypeVar("T")


async def submitted(context: RequestContext, ask: Ask[T], timeout_ms: int = CONTROLLER_WAIT_MS_MAX) -> T | Refusal:
    """Return the controller's answer, once it is committed and carried out on this node. A new topic can then be
    written to at once. NOT_CONTROLLER, on which a client asks again, where there is no controller for that long."""
    wait_ms = min(max(timeout_ms, REQUEST_WAIT_MS_MIN), CONTROLLER_WAIT_MS_MAX)
    return await context.services.control.submit(ask, wait_ms=wait_ms)


def other_cluster(context: RequestContext, named: str | None) -> Refusal | None:
    """Return why the request is not for this cluster, where it names another one; else None."""
    if named in (None, context.image.cluster_id):
        return None
    message = f"This is cluster {context.image.cluster_id}, not {named}: ask one of that cluster."
    return Refusal(ErrorCode.INCONSISTENT_CLUSTER_ID, message)


def error_of(refusal: Refusal | None) -> tuple[int, str | None]:
    """Return (error code, message) as responses carry them."""
    return (0, None) if refusal is None else (int(refusal.code), refusal.message)


def new_topic_id(random: Random) -> TopicId:
    """Return a random topic id. Chance alone makes it a new one."""
    while True:
        if (topic_id := topic_id_of(random.getrandbits(128))) is not None:
            return topic_id
