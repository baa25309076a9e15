"""What the admin handlers share: carrying a decision through the spine, and fresh topic ids.

Promises: an admin request is answered with an error code also where nothing can be committed any more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from headrace.base.errors import HeadraceError
from headrace.base.ids import TopicId
from headrace.base.ports import Random
from headrace.broker.context import RequestContext
from headrace.controller.decision import Decision, Refusal
from headrace.controller.topics import topic_id_of
from headrace.metadata.image import MetadataImage
from headrace.wire.errors import ErrorCode

T = TypeVar("T")


async def submitted(context: RequestContext, decide: Callable[[MetadataImage], Decision[T]]) -> T | Refusal:
    """The decision's result, once committed and carried out on this node, so that a new topic can be written to at
    once; NOT_CONTROLLER, on which a client asks again, where this node cannot commit."""
    try:
        result = await context.services.metadata.submit(decide)
    except HeadraceError as error:
        return Refusal(ErrorCode.NOT_CONTROLLER, str(error))
    await context.services.partitions.settled()
    return result


def error_of(refusal: Refusal | None) -> tuple[int, str | None]:
    """(error code, message) as responses carry them."""
    return (0, None) if refusal is None else (int(refusal.code), refusal.message)


def new_topic_id(random: Random) -> TopicId:
    """A topic id that was never used, by chance."""
    while True:
        if (topic_id := topic_id_of(random.getrandbits(128))) is not None:
            return topic_id
