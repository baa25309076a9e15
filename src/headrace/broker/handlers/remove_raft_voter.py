"""RemoveRaftVoter: makes a voter a learner, which has the log and no vote (KIP-853).

The answer comes when the change is committed; removing the last voter is refused. v0.
"""

from __future__ import annotations

from headrace.base.ids import BrokerId, DirectoryId
from headrace.broker.requests.access import on_cluster
from headrace.broker.requests.admin import error_of, other_cluster, submitted
from headrace.broker.requests.context import Handler, RequestContext
from headrace.controller.asks.brokers import ChangeVoter
from headrace.metadata.access.acls import AclOperation
from headrace.wire.apis import ApiKey
from headrace.wire.messages.remove_raft_voter import RemoveRaftVoterRequest, RemoveRaftVoterResponse


async def handle(request: RemoveRaftVoterRequest, context: RequestContext) -> RemoveRaftVoterResponse:
    refusal = other_cluster(context, request.cluster_id) or await submitted(
        context,
        ChangeVoter(
            broker_id=BrokerId(request.voter_id),
            directory_id=DirectoryId(request.voter_directory_id) if request.voter_directory_id.int else None,
            voter=False,
        ),
    )
    code, message = error_of(refusal)
    return RemoveRaftVoterResponse(error_code=code, error_message=message)


HANDLER = Handler(
    int(ApiKey.REMOVE_RAFT_VOTER),
    (0, 0),
    handle,
    on_cluster(
        lambda _, error: RemoveRaftVoterResponse(error_code=error, error_message=error.message), AclOperation.ALTER
    ),
)
