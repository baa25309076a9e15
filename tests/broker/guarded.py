"""A broker with an authorizer, and something to find in it. A client's address stands for who it is."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from headrace.broker.boot import Broker
from headrace.broker.config import BrokerConfig
from headrace.broker.listeners import INSECURE
from headrace.broker.system import SystemClock, system_random
from headrace.metadata.config_table import STANDARD_AUTHORIZER
from headrace.storage.disk import LocalDisk
from headrace.wire.messages import create_acls, find_coordinator, init_producer_id, produce
from headrace.wire.messages import offset_commit as commit
from tests.broker.group_broker import QUICK, RawClient
from tests.broker.random_requests import BATCH, NAMES, Salt

ROOT: Final = "127.0.0.1"
TOPIC: Final = "quite-secret-topic"
GROUP: Final = "quite-secret-group"
TRANSACTION: Final = "quite-secret-transaction"
NOTE: Final = "quite-secret-note"
USER: Final = "User:quite-secret-user"
CONFIGS: Final = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:root", INSECURE: "true"}


class Guarded(NamedTuple):
    broker: Broker
    address: str
    salt: Salt


@asynccontextmanager
async def guarded(directory: Path, configs: Mapping[str, str] | None = None) -> AsyncIterator[Guarded]:
    """A broker with an authorizer, and something to find in it."""
    given = {**QUICK, **CONFIGS, **(configs or {})}
    config = BrokerConfig(data=directory, port=0, host="0.0.0.0", advertised_host=ROOT, configs=given)
    async with Broker(config, clock=SystemClock(), random=system_random(), disk=LocalDisk()) as broker:
        listener = broker.parts.requests.listener
        admit = listener.admit

        def known(connection: Any) -> bool:
            connection.principal = "User:root" if connection.peer_host == ROOT else f"User:{connection.peer_host}"
            return admit(connection)

        listener.admit = known  # type: ignore[method-assign]  # stands for authentication
        address = f"{ROOT}:{broker.port}"
        async with RawClient(address, host=ROOT) as root:
            await furnished(root)
        topic = broker.image.topic(TOPIC)
        assert topic is not None
        yield Guarded(broker, address, Salt((TOPIC, GROUP, TRANSACTION, *NAMES), topic.id))


async def furnished(root: RawClient) -> None:
    await root.create_topic(TOPIC)
    data = produce.TopicProduceData(name=TOPIC, partition_data=(produce.PartitionProduceData(0, memoryview(BATCH)),))
    answer = await root.ask(9, produce.ProduceRequest(acks=-1, timeout_ms=120_000, topic_data=(data,)))
    assert not answer.responses[0].partition_responses[0].error_code
    await root.ask(3, find_coordinator.FindCoordinatorRequest(key=GROUP))
    offset = commit.OffsetCommitRequestPartition(0, 1, -1, NOTE)
    offsets = (commit.OffsetCommitRequestTopic(name=TOPIC, partitions=(offset,)),)
    request = commit.OffsetCommitRequest(group_id=GROUP, generation_id_or_member_epoch=-1, topics=offsets)
    await done(root, 8, request, lambda answer: answer.topics[0].partitions[0])
    await root.ask(3, find_coordinator.FindCoordinatorRequest(key=TRANSACTION, key_type=1))
    begin = init_producer_id.InitProducerIdRequest(transactional_id=TRANSACTION, transaction_timeout_ms=1000)
    await done(root, 4, begin, lambda answer: answer)
    acl = create_acls.AclCreation(2, TOPIC, 3, USER, "*", 3, 3)
    assert not (await root.ask(3, create_acls.CreateAclsRequest(creations=(acl,)))).results[0].error_code


async def done(root: RawClient, version: int, request: Any, where: Callable[[Any], Any]) -> None:
    """Ask until it is done: the coordinator may be loading."""
    while where(await root.ask(version, request)).error_code:
        pass
