"""Every API, in every version, as a principal that no ACL allows anything: nothing changes, and nothing is told.

Requests are random ones, half of whose values are names that exist. The client's address stands for who it is.
"""

from __future__ import annotations

import asyncio
import uuid
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from headrace.base.ids import PartitionIndex, TopicPartition
from headrace.broker.boot import Broker
from headrace.net.peer import peerframes
from headrace.wire import ailments, durable, moves, replica_fetch
from headrace.wire.errors import ErrorCode
from headrace.wire.messages import create_acls, describe_cluster
from tests.broker.group_broker import RawClient
from tests.broker.guarded import GROUP, NOTE, TOPIC, TRANSACTION, USER, guarded
from tests.broker.random_requests import REQUESTS, frame_of
from tests.tiers import examples
from tests.wire.schema import random_instance

NOBODY: Final = "127.0.0.2"


def state(broker: Broker) -> tuple[Any, ...]:
    """All that a client could have changed."""
    image, parts = broker.image, broker.parts
    topic = image.topic(TOPIC)
    assert topic is not None
    partition = parts.partitions.called(TopicPartition(topic.id, PartitionIndex(0)))
    assert partition is not None
    group = parts.requests.services.groups.group(GROUP)
    standing = parts.requests.services.transactions.described(TRANSACTION)
    configs = (image.broker_configs, image.group_configs, image.quotas, image.acls, image.scram)
    return (image.topics, configs, partition.log.log_end_offset, partition.start_offset, group, standing)


@pytest.mark.timeout(600)
async def test_no_api_tells_or_changes_anything(tmp_path: Path) -> None:
    secrets = [name.encode() for name in (TOPIC, GROUP, TRANSACTION, USER, NOTE)]
    random, told, answered = Random(34), set[str](), set[str]()
    async with guarded(tmp_path / "data") as found:
        before = state(found.broker)
        secrets.append(found.salt.topic_id.bytes)
        for case in REQUESTS:
            for _ in range(examples(3)):
                message = found.salt.salted(random_instance(case, random), random)
                if getattr(message, "acks", 1) == 0:
                    continue  # it has no answer
                frame = frame_of(case, message)
                answer = await asked(found.address, frame)
                if answer is None:
                    continue
                answered.add(case.message.root.name)
                if any(secret in answer and secret not in frame for secret in secrets):
                    told.add(str(case))
                assert state(found.broker) == before, case
    assert not told
    assert len(answered) > len({case.message.root.name for case in REQUESTS}) * 0.9


async def asked(address: str, frame: bytes) -> bytes | None:
    """The answer; None: the broker has closed the connection, or does not answer."""
    host, port = address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port), local_addr=(NOBODY, 0))
    try:
        writer.write(frame)
        async with asyncio.timeout(150):
            return await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
    except (ConnectionError, asyncio.IncompleteReadError, TimeoutError):
        return None
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def test_what_brokers_and_commands_ask_is_not_for_strangers(tmp_path: Path) -> None:
    """Of Headrace's own APIs, only that of durable history answers, with what the client may see: nothing."""
    identifier = uuid.uuid4().hex
    execute = durable.encode_request({"op": durable.SWEEP, "id": identifier, "execute": True})
    summaries = durable.encode_request({"op": durable.SUMMARIES, "after": ""})
    peers, replica = (
        b"\0\0\0\x0a" + key.to_bytes(2, "big") + bytes(8) for key in (peerframes.API_KEY, replica_fetch.API_KEY)
    )
    async with guarded(tmp_path / "data") as found:
        for frame in (execute, ailments.REQUEST, moves.encode_request(moves.MoveRequest(moves.LIST)), peers, replica):
            assert await asked(found.address, bytes(frame)) is None
        answer = await asked(found.address, summaries)
        assert answer is not None
        assert TOPIC.encode() not in answer
        async with RawClient(found.address, host=NOBODY) as nobody:
            request = describe_cluster.DescribeClusterRequest(include_cluster_authorized_operations=True)
            assert (await nobody.ask(1, request)).cluster_authorized_operations == 0
            wish = create_acls.CreateAclsRequest(
                creations=(create_acls.AclCreation(2, "*", 3, f"User:{NOBODY}", "*", 2, 3),)
            )
            made = await nobody.ask(3, wish)
            assert made.results[0].error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
