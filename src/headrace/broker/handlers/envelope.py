"""Envelope: carries a request of another broker to the controller (KIP-590). For brokers, and not advertised.

`request_data` is an `Ask` as JSON (`headrace.controller.asks`), not a request of a client. So one API carries the
changes that clients ask for, those that brokers ask for by themselves, and reads. The answer names the entry of the
commit log that it rests on, so that the asking broker can wait for it. A broker that is not the controller answers
NOT_CONTROLLER, with the controller's address.
"""

from __future__ import annotations

from headrace.base.errors import HeadraceError
from headrace.broker.cluster.driver import ChangeRefused, NotController
from headrace.broker.requests.access import on_cluster
from headrace.broker.requests.context import Handler, RequestContext
from headrace.controller.asks.carried import Answer, decode_ask, encode_answer, encode_leader
from headrace.controller.decision import Refusal
from headrace.logs import get_logger
from headrace.metadata.access.acls import AclOperation
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.envelope import EnvelopeRequest, EnvelopeResponse

log = get_logger(__name__)


async def handle(request: EnvelopeRequest, context: RequestContext) -> EnvelopeResponse:
    """Answer the request of another broker. Raises CorruptData on data that no broker sends."""
    services = context.services
    cluster_id, ask = decode_ask(request.request_data)
    if cluster_id != services.controller.cluster_id:
        return EnvelopeResponse(
            response_data=encode_answer(ask, Answer(index=0, result=_stranger(cluster_id, context))), error_code=0
        )
    try:
        result = await services.controller.answer(ask)
    except NotController as error:
        address = None if error.leader is None else services.address_of(error.leader)
        return EnvelopeResponse(response_data=encode_leader(address), error_code=ErrorCode.NOT_CONTROLLER)
    except ChangeRefused as error:  # nothing was done: as where nobody is the controller
        log.info("what another broker asked for is put off", ask=type(ask).__name__, reason=str(error))
        return EnvelopeResponse(response_data=encode_leader(None), error_code=ErrorCode.NOT_CONTROLLER)
    except HeadraceError as error:
        log.info("what another broker asked for failed", ask=type(ask).__name__, reason=str(error))
        return EnvelopeResponse(response_data=None, error_code=ErrorCode.UNKNOWN_SERVER_ERROR)
    answer = Answer(index=services.metadata.image.index, result=result)
    return EnvelopeResponse(response_data=encode_answer(ask, answer), error_code=0)


def _stranger(cluster_id: str, context: RequestContext) -> Refusal:
    return Refusal(
        ErrorCode.INCONSISTENT_CLUSTER_ID,
        f"A broker of cluster {cluster_id} asks one of cluster {context.services.controller.cluster_id}: "
        "name addresses of its own cluster.",
    )


HANDLER = Handler(
    int(ApiKey.ENVELOPE),
    (0, 0),
    handle,
    on_cluster(lambda _, error: EnvelopeResponse(error_code=error), AclOperation.CLUSTER_ACTION),
    pipelined=True,
    advertised=False,
)
