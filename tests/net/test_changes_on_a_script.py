"""Changes whose answers are lost: sent once, looked after, and told as what they are: done, not done, not known."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import pytest

from headrace.net.client.admin import Admin
from headrace.net.client.cluster import Cluster, UnknownTopicError
from headrace.net.client.errors import GaveUpError, OutcomeUnknownError, RefusedError
from headrace.net.client.members import Members
from headrace.net.client.retry import Backoff
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.headers import RequestHeader
from headrace.wire.messages import (
    add_raft_voter,
    create_partitions,
    create_topics,
    delete_topics,
    describe_cluster,
    describe_configs,
    describe_quorum,
    incremental_alter_configs,
    metadata,
    remove_raft_voter,
    unregister_broker,
)
from tests.net.scripted_broker import ScriptedBroker, scripted_broker

NAME = "t"
TOPIC_ID = UUID(int=7)
QUICK = Backoff(attempts_max=4, first_ms=1, longest_ms=1)
LOST = "lost"


class State:
    """The state of the scripted broker, and the outcomes of the requested changes, one after the other. An outcome is
    an error code, or LOST (the change is made, and the connection ends). It may be "dropped", too: nothing is made, and
    the connection ends."""

    def __init__(self, *fates: ErrorCode | str, partitions: int = 0) -> None:
        self.fates = list(fates)
        self.partitions = partitions
        self.retention: str | None = None
        self.brokers = {1, 9}
        self.voters = {1}
        self.changes = 0

    def change(self, make: Callable[[], None]) -> int:
        self.changes += 1
        fate = self.fates.pop(0) if self.fates else ErrorCode.NONE
        if fate in (LOST, ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT):
            make()
        if isinstance(fate, str):
            raise ConnectionError("the script says so")
        return int(fate)

    # topics

    def on_create(self, _: RequestHeader, request: Any) -> Any:
        (topic,) = request.topics
        if self.partitions:
            return self.created(ErrorCode.TOPIC_ALREADY_EXISTS)
        if request.validate_only:
            return self.created(ErrorCode.NONE)

        def make() -> None:
            self.partitions = max(1, topic.num_partitions)

        return self.created(self.change(make))

    def created(self, code: int) -> Any:
        result = create_topics.CreatableTopicResult(
            name=NAME, topic_id=TOPIC_ID, error_code=code, num_partitions=self.partitions, replication_factor=1
        )
        return create_topics.CreateTopicsResponse(topics=(result,))

    def on_delete(self, _: RequestHeader, __: Any) -> Any:
        def make() -> None:
            self.partitions = 0

        code = self.change(make) if self.partitions else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return delete_topics.DeleteTopicsResponse(
            responses=(delete_topics.DeletableTopicResult(name=NAME, error_code=code),)
        )

    def on_partitions(self, _: RequestHeader, request: Any) -> Any:
        def make() -> None:
            self.partitions = request.topics[0].count

        code = ErrorCode.INVALID_PARTITIONS if request.topics[0].count == self.partitions else self.change(make)
        return create_partitions.CreatePartitionsResponse(
            results=(create_partitions.CreatePartitionsTopicResult(name=NAME, error_code=code),)
        )

    def on_alter(self, _: RequestHeader, request: Any) -> Any:
        def make() -> None:
            self.retention = request.resources[0].configs[0].value

        result = incremental_alter_configs.AlterConfigsResourceResponse(
            error_code=self.change(make), resource_type=2, resource_name=NAME
        )
        return incremental_alter_configs.IncrementalAlterConfigsResponse(responses=(result,))

    def on_describe_configs(self, _: RequestHeader, __: Any) -> Any:
        value, source = ("7", 5) if self.retention is None else (self.retention, 1)
        config = describe_configs.DescribeConfigsResourceResult(name="retention.ms", value=value, config_source=source)
        result = describe_configs.DescribeConfigsResult(resource_type=2, resource_name=NAME, configs=(config,))
        return describe_configs.DescribeConfigsResponse(results=(result,))

    def on_metadata(self, broker: ScriptedBroker) -> Callable[[RequestHeader, Any], Any]:
        def answer(_: RequestHeader, __: Any) -> Any:
            parts = tuple(
                metadata.MetadataResponsePartition(
                    partition_index=index, leader_id=1, replica_nodes=(1,), isr_nodes=(1,)
                )
                for index in range(self.partitions)
            )
            code = ErrorCode.NONE if parts else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            topic = metadata.MetadataResponseTopic(name=NAME, topic_id=TOPIC_ID, partitions=parts, error_code=code)
            return metadata.MetadataResponse(
                brokers=(metadata.MetadataResponseBroker(1, *broker.address, None),), controller_id=1, topics=(topic,)
            )

        return answer

    # members

    def on_unregister(self, _: RequestHeader, request: Any) -> Any:
        if request.broker_id not in self.brokers:
            return unregister_broker.UnregisterBrokerResponse(error_code=ErrorCode.BROKER_ID_NOT_REGISTERED)
        code = self.change(lambda: self.brokers.remove(request.broker_id))
        return unregister_broker.UnregisterBrokerResponse(error_code=code)

    def on_describe_cluster(self, _: RequestHeader, __: Any) -> Any:
        brokers = tuple(describe_cluster.DescribeClusterBroker(broker_id=one, host="h", port=1) for one in self.brokers)
        return describe_cluster.DescribeClusterResponse(brokers=brokers, controller_id=1)

    def on_voter(self, _: RequestHeader, request: Any) -> Any:
        if request.voter_id in self.voters:
            return add_raft_voter.AddRaftVoterResponse(error_code=ErrorCode.DUPLICATE_VOTER)
        code = self.change(lambda: self.voters.add(request.voter_id))
        return add_raft_voter.AddRaftVoterResponse(error_code=code)

    def on_no_voter(self, _: RequestHeader, request: Any) -> Any:
        if request.voter_id not in self.voters:
            return remove_raft_voter.RemoveRaftVoterResponse(error_code=ErrorCode.VOTER_NOT_FOUND)
        code = self.change(lambda: self.voters.remove(request.voter_id))
        return remove_raft_voter.RemoveRaftVoterResponse(error_code=code)

    def on_quorum(self, _: RequestHeader, __: Any) -> Any:
        def states(ids: Sequence[int]) -> Any:
            return tuple(
                describe_quorum.ReplicaState(replica_id=one, replica_directory_id=TOPIC_ID, log_end_offset=1)
                for one in ids
            )

        part = describe_quorum.ResponsePartitionData(
            leader_id=1,
            leader_epoch=1,
            high_watermark=1,
            current_voters=states(sorted(self.voters)),
            observers=states(sorted(self.brokers - self.voters)),
        )
        topic = describe_quorum.ResponseTopicData(topic_name="__cluster_metadata", partitions=(part,))
        return describe_quorum.DescribeQuorumResponse(topics=(topic,))


@asynccontextmanager
async def cluster(state: State) -> AsyncIterator[Cluster]:
    async with scripted_broker({}) as broker:
        broker.answers |= {
            ApiKey.CREATE_TOPICS: state.on_create,
            ApiKey.DELETE_TOPICS: state.on_delete,
            ApiKey.CREATE_PARTITIONS: state.on_partitions,
            ApiKey.INCREMENTAL_ALTER_CONFIGS: state.on_alter,
            ApiKey.DESCRIBE_CONFIGS: state.on_describe_configs,
            ApiKey.METADATA: state.on_metadata(broker),
            ApiKey.UNREGISTER_BROKER: state.on_unregister,
            ApiKey.DESCRIBE_CLUSTER: state.on_describe_cluster,
            ApiKey.ADD_RAFT_VOTER: state.on_voter,
            ApiKey.REMOVE_RAFT_VOTER: state.on_no_voter,
            ApiKey.DESCRIBE_QUORUM: state.on_quorum,
        }
        async with Cluster([broker.address], backoff=QUICK) as made:
            yield made


CHANGES: dict[str, tuple[int, Callable[[Cluster], Awaitable[Any]]]] = {
    "create": (0, lambda cluster: Admin(cluster).create_topic(NAME, partitions=2)),
    "delete": (2, lambda cluster: Admin(cluster).delete_topic(NAME)),
    "create partitions": (2, lambda cluster: Admin(cluster).create_partitions(NAME, total=3)),
    "set": (2, lambda cluster: Admin(cluster).alter_topic_configs(NAME, set_={"retention.ms": "9"})),
    "remove": (0, lambda cluster: Members(cluster).remove(9)),
    "promote": (0, lambda cluster: Members(cluster).promote(9)),
    "demote": (0, lambda cluster: Members(cluster).demote(1)),
}
each_change = pytest.mark.parametrize("change", CHANGES)


@each_change
@pytest.mark.parametrize("fate", [LOST, ErrorCode.REQUEST_TIMED_OUT])
async def test_what_was_done_is_told_as_done_though_its_answer_was_lost(change: str, fate: ErrorCode | str) -> None:
    partitions, ask = CHANGES[change]
    state = State(fate, partitions=partitions)
    async with cluster(state) as made:
        await ask(made)
    assert state.changes == 1, "sent once"


@each_change
async def test_what_nothing_is_seen_of_is_not_sent_again_and_told_as_not_known(change: str) -> None:
    partitions, ask = CHANGES[change]
    state = State("dropped", partitions=partitions)
    async with cluster(state) as made:
        with pytest.raises(OutcomeUnknownError, match=r"is not known .* look with 'headrace"):
            await ask(made)
    assert state.changes == 1, "sent once"


@each_change
async def test_what_was_surely_not_done_is_asked_for_again(change: str) -> None:
    partitions, ask = CHANGES[change]
    state = State(ErrorCode.NOT_CONTROLLER, partitions=partitions)
    async with cluster(state) as made:
        await ask(made)
    assert state.changes == 2


@each_change
async def test_what_is_refused_again_and_again_is_given_up_and_called_not_done(change: str) -> None:
    partitions, ask = CHANGES[change]
    state = State(*[ErrorCode.NOT_CONTROLLER] * QUICK.attempts_max, partitions=partitions)
    async with cluster(state) as made:
        with pytest.raises(GaveUpError, match="NOT_CONTROLLER"):
            await ask(made)


async def test_a_topic_that_is_there_after_a_lost_answer_may_be_another_s_and_that_is_told() -> None:
    async with cluster(State(LOST)) as made:
        topic = await Admin(made).create_topic(NAME, partitions=2)
        assert (topic.acknowledged, topic.partitions, topic.id) == (False, 2, str(TOPIC_ID))
    async with cluster(State()) as made:
        assert (await Admin(made).create_topic(NAME, partitions=2)).acknowledged


async def test_a_topic_of_another_shape_after_a_lost_answer_is_another_s() -> None:
    state = State("dropped")
    drop = state.change

    def dropped(make: Callable[[], None]) -> int:
        state.partitions = 5
        return drop(make)

    state.change = dropped  # type: ignore[method-assign]
    async with cluster(state) as made:
        with pytest.raises(RefusedError, match="a topic of 5 x 1 is there") as told:
            await Admin(made).create_topic(NAME, partitions=2)
    assert told.value.code is ErrorCode.TOPIC_ALREADY_EXISTS


async def test_what_was_there_or_was_not_before_is_refused_as_ever() -> None:
    async with cluster(State(partitions=2)) as made:
        with pytest.raises(RefusedError, match="TOPIC_ALREADY_EXISTS"):
            await Admin(made).create_topic(NAME)
    async with cluster(State()) as made:
        with pytest.raises(UnknownTopicError):
            await Admin(made).delete_topic(NAME)
