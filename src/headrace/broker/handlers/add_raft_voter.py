"""AddRaftVoter: makes a member of the quorum a voter (KIP-853), once it has caught up with the log.

Every broker is a member from its registration on. Its endpoints are known, and those of the request are not used. The
answer comes when the change is committed. v0.
"""

from __future__ import annotations

from headrace.base.ids import BrokerId, DirectoryId
from headrace.broker.requests.access import on_cluster
from headrace.broker.requests.admin import error_of, other_cluster, submitted
from headrace.broker.requests.context import Handler, RequestContext
from headrace.controller.asks.brokers import ChangeVoter
from headrace.metadata.access.acls import AclOperation
from headrace.wire.apis import ApiKey
from headrace.wire.messages.add_raft_voter import AddRaftVoterRequest, AddRaftVoterResponse


async def handle(request: AddRaftVoterRequest, context: RequestContext) -> AddRaftVoterResponse:
    refusal = other_cluster(context, request.cluster_id) or await submitted(
        context,
        ChangeVoter(
            broker_id=BrokerId(request.voter_id),
            directory_id=DirectoryId(request.voter_directory_id) if request.voter_directory_id.int else None,
            voter=True,
        ),
    )
    code, message = error_of(refusal)
    return AddRaftVoterResponse(error_code=code, error_message=message)


HANDLER = Handler(
    int(ApiKey.ADD_RAFT_VOTER),
    (0, 0),
    handle,
    on_cluster(
        lambda _, error: AddRaftVoterResponse(error_code=error, error_message=error.message), AclOperation.ALTER
    ),
)
