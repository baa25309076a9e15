"""Requests of many kinds that no client should send, or not so many of, and the sockets to send them through.

Each is made again for every number, with new names and ids. So memory that a broker keeps for each one shows after
thousands. `Stranger.send` waits for the answer, or the end of the connection, or hangs up midway.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator
from enum import Enum, auto
from typing import Any, Final, NamedTuple
from uuid import UUID

from headrace.base.limits import GROUP_LARGE_SUBSCRIPTIONS_BYTES_MAX
from headrace.wire.apis import ApiKey, api
from headrace.wire.batches import encode_batch
from headrace.wire.compression import Compression
from headrace.wire.headers import encode_request_frame, encode_request_header
from headrace.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    OpData,
    RequestEntityData,
    RequestEntryData,
)
from headrace.wire.messages.api_versions import ApiVersionsRequest
from headrace.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from headrace.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from headrace.wire.messages.delete_topics import DeleteTopicsRequest
from headrace.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from headrace.wire.messages.describe_groups import DescribeGroupsRequest
from headrace.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from headrace.wire.messages.find_coordinator import FindCoordinatorRequest
from headrace.wire.messages.heartbeat import HeartbeatRequest
from headrace.wire.messages.init_producer_id import InitProducerIdRequest
from headrace.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from headrace.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from headrace.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from headrace.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from headrace.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from headrace.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from headrace.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from headrace.wire.messages.sync_group import SyncGroupRequest
from headrace.wire.records import Record

PLAIN: Final = "plain"
"""A topic with a few records."""
PACKED: Final = "packed"
"""One with `compression.type=gzip`."""
COMPACT: Final = "compact"
"""One with `cleanup.policy=compact`."""
OPTIONS: Final = ("--config", "group.initial.rebalance.delay.ms=0")
"""Of the broker: nobody is to wait for others."""
COSTLY_PART: Final = 10
"""Of costly requests one in so many is enough."""
BOMB_BYTES: Final = 40_000_000
"""More than a broker unpacks."""
IN_FLIGHT: Final = 50
UNREAD_BYTES: Final = 128 * 1024
"""Of requests, and as many of answers, before these are read: a broker does not go on for one that does not read."""
PATIENCE_S: Final = 150.0
_TIME_MS: Final = 1_700_000_000_000


class End(Enum):
    """The end of a request."""

    ANSWERED = auto()
    CLOSED = auto()
    """The broker ends the connection."""
    LEFT = auto()
    """The stranger does, before there is an answer."""


class Kind(NamedTuple):
    """One kind of request."""

    name: str
    end: End
    made: Callable[[int], bytes]
    """The bytes of the request with this number."""
    is_costly: bool = False
    """It takes the broker milliseconds."""
    keeps_bytes: int = 0
    """Memory that a broker legitimately keeps for one request."""
    keeps_bytes_max: int = 0
    """And of all of them."""


def framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def asked(key: ApiKey, version: int, request: Any, client_id: str = "stranger") -> bytes:
    codec = api(int(key))
    assert codec is not None
    return b"".join(bytes(part) for part in encode_request_frame(codec, version, 7, client_id, request))


def produced(topic: str, records: bytes, **more: Any) -> bytes:
    data = PartitionProduceData(index=0, records=memoryview(records))
    fields = {"acks": -1, "timeout_ms": 30_000, **more}
    return asked(
        ApiKey.PRODUCE, 9, ProduceRequest(topic_data=(TopicProduceData(name=topic, partition_data=(data,)),), **fields)
    )


def fetched(topic: str, *, partitions: int = 1, wait_ms: int = 0, offset: int = 0, **more: Any) -> bytes:
    wanted = tuple(FetchPartition(partition=at, fetch_offset=offset, partition_max_bytes=1) for at in range(partitions))
    request = FetchRequest(
        max_wait_ms=wait_ms, min_bytes=1, topics=(FetchTopic(topic=topic, partitions=wanted),), **more
    )
    return asked(ApiKey.FETCH, 11, request)


def keyed(**more: Any) -> bytes:
    return encode_batch([Record(0, _TIME_MS, b"k", b"v")], **more)


def bomb(codec: Compression) -> bytes:
    return encode_batch([Record(0, _TIME_MS, b"k", bytes(BOMB_BYTES))], compression=codec)


def joined(
    number: int, *, group: str = "joined", metadata: bytes = b"", member_id: str = "", instance_id: str | None = None
) -> bytes:
    request = JoinGroupRequest(
        group_id=f"{group}-{number}",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        member_id=member_id,
        group_instance_id=instance_id,
        protocol_type="consumer",
        protocols=(JoinGroupRequestProtocol(name="range", metadata=metadata),),
    )
    return asked(ApiKey.JOIN_GROUP, 7, request)


def committed(group_id: str, *, topic: str = PLAIN, metadata: str = "") -> bytes:
    position = OffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata=metadata)
    request = OffsetCommitRequest(
        group_id=group_id, topics=(OffsetCommitRequestTopic(name=topic, partitions=(position,)),)
    )
    return asked(ApiKey.OFFSET_COMMIT, 8, request)


def cut_off(number: int) -> bytes:
    """A body that ends in its midst, or behind an array of 2^31: of one API after the other."""
    key = APIS[number % len(APIS)]
    body = b"\x7f\xff\xff" if number // len(APIS) % 2 else b"\xff\xff\xff\xff\x07"
    return framed(encode_request_header(key, PLAIN_VERSIONS.get(key, 0), 7, "stranger") + body)


APIS: Final = [key for key in ApiKey if api(int(key)) is not None and key is not ApiKey.ENVELOPE]
PLAIN_VERSIONS: Final = {
    ApiKey.PRODUCE: 9,
    ApiKey.FETCH: 12,
    ApiKey.LIST_OFFSETS: 7,
    ApiKey.METADATA: 12,
    ApiKey.OFFSET_COMMIT: 8,
    ApiKey.OFFSET_FETCH: 8,
}


def kinds() -> Iterator[Kind]:
    """All of them."""
    answered, closed, left = End.ANSWERED, End.CLOSED, End.LEFT
    header = encode_request_header(ApiKey.METADATA, 12, 7, "stranger")
    yield Kind("garbage, 4 KB", closed, lambda at: framed(struct.pack(">q", at) * 512))
    yield Kind("a length of 2 GiB", closed, lambda _: struct.pack(">i", 2**31 - 1))
    yield Kind("an API that nobody has", closed, lambda at: framed(struct.pack(">hhih", 5000 + at % 999, 0, at, -1)))
    yield Kind("an array of 2^31 elements", closed, lambda _: framed(header + b"\xff\xff\xff\xff\x07"))
    yield Kind("a body that is cut off, of each API", closed, cut_off)
    yield Kind("nothing, then gone", left, lambda _: b"")
    yield Kind("half a length, then gone", left, lambda _: b"\0\0")
    yield Kind("half a frame of 1 MB, then gone", left, lambda _: framed(bytes(1 << 20))[:5_000])
    for codec in Compression:
        if codec is not Compression.NONE:
            packed = produced(PACKED if codec is not Compression.GZIP else COMPACT, bomb(codec))
            yield Kind(f"a bomb, {codec.name.lower()}", answered, lambda _, packed=packed: packed, is_costly=True)  # type: ignore[misc]
    wrong = bytearray(keyed())
    wrong[-1] ^= 1
    yield Kind("produce: wrong CRC", answered, lambda _: produced(PLAIN, bytes(wrong)))
    yield Kind("produce: a topic that is not there", answered, lambda at: produced(f"not-there-{at}", keyed()))
    yield Kind("produce: acks of 7", answered, lambda _: produced(PLAIN, keyed(), acks=7))
    yield Kind("produce: a transaction", answered, lambda at: produced(PLAIN, keyed(), transactional_id=f"tx-{at}"))
    yield Kind(
        "produce: an id of its own each",
        answered,
        lambda at: produced(PLAIN, keyed(producer_id=1_000_000 + at, producer_epoch=0, base_sequence=0)),
    )
    yield Kind(
        "produce: a time-out of its own each", answered, lambda at: produced(PLAIN, keyed(), timeout_ms=1_000 + at)
    )
    yield Kind("produce, then gone", left, lambda _: produced(PLAIN, keyed()))
    yield Kind("fetch: a topic that is not there", answered, lambda at: fetched(f"not-there-{at}"))
    yield Kind("fetch: beyond the end", answered, lambda at: fetched(PLAIN, offset=10**12 + at))
    yield Kind("fetch: a session that is never used again", answered, lambda _: fetched(PLAIN, session_epoch=0))
    yield Kind(
        "fetch: a session of 100 partitions that are not there",
        answered,
        lambda at: fetched(f"not-there-{at}", partitions=100, session_epoch=0),
    )
    yield Kind(
        "fetch: a session of names of 30 KB",
        answered,
        lambda at: fetched(f"{at}".ljust(30_000, "x"), session_epoch=0),
    )
    yield Kind("fetch: parked, then gone", left, lambda _: fetched(PLAIN, wait_ms=600_000, offset=10**6))
    yield Kind("metadata: a topic that is not there", answered, lambda at: of_names(f"not-there-{at}"))
    yield Kind("metadata: an impossible name of 30 KB", answered, lambda at: of_names(f"{at}".ljust(30_000, "!")))
    yield Kind("metadata: an id that is not there", answered, lambda at: of_id(UUID(int=at + 1)))
    yield Kind(
        "list offsets: a topic that is not there",
        answered,
        lambda at: asked(
            ApiKey.LIST_OFFSETS,
            7,
            ListOffsetsRequest(
                replica_id=-1,
                topics=(
                    ListOffsetsTopic(
                        name=f"not-there-{at}", partitions=(ListOffsetsPartition(partition_index=0, timestamp=at),)
                    ),
                ),
            ),
        ),
    )
    yield from of_groups()
    yield from of_admins()


def of_names(*names: str) -> bytes:
    topics = tuple(MetadataRequestTopic(name=name) for name in names)
    return asked(ApiKey.METADATA, 12, MetadataRequest(topics=topics, allow_auto_topic_creation=False))


def of_id(topic_id: UUID) -> bytes:
    return asked(ApiKey.METADATA, 12, MetadataRequest(topics=(MetadataRequestTopic(topic_id=topic_id, name=None),)))


def of_groups() -> Iterator[Kind]:
    """Groups and members that are made up."""
    answered, left = End.ANSWERED, End.LEFT
    yield Kind("join: a group of its own each", answered, joined)
    yield Kind("join: a member that is not there", answered, lambda at: joined(at, member_id=f"member-{at}"))
    yield Kind("join, then gone", left, lambda at: joined(at % 100, instance_id=f"instance-{at}"))
    yield Kind(
        "join: a subscription of 100 KB",  # in no group of those above, or each waits until their members are given up
        answered,
        lambda at: joined(at, group="subscribed", metadata=bytes(100_000), instance_id="one"),
        keeps_bytes=110_000,
        keeps_bytes_max=GROUP_LARGE_SUBSCRIPTIONS_BYTES_MAX * 5 // 4,
    )
    yield Kind(
        "sync: a group that is not there",
        answered,
        lambda at: asked(
            ApiKey.SYNC_GROUP, 4, SyncGroupRequest(group_id=f"not-there-{at}", generation_id=at, member_id=f"m-{at}")
        ),
    )
    yield Kind(
        "heartbeat: a group that is not there",
        answered,
        lambda at: asked(
            ApiKey.HEARTBEAT, 4, HeartbeatRequest(group_id=f"not-there-{at}", generation_id=1, member_id=f"m-{at}")
        ),
    )
    yield Kind(
        "leave: a group that is not there",
        answered,
        lambda at: asked(
            ApiKey.LEAVE_GROUP,
            4,
            LeaveGroupRequest(group_id=f"not-there-{at}", members=(MemberIdentity(member_id=f"m-{at}"),)),
        ),
    )
    yield Kind("commit: a group of its own each", answered, lambda at: committed(f"commits-{at}"))
    yield Kind("commit: one group, 4 KB of metadata", answered, lambda at: committed("one", metadata=f"{at}" * 500))
    yield Kind("commit: a topic that is not there", answered, lambda at: committed("one", topic=f"not-there-{at}"))
    yield Kind("commit: a group's name of 30 KB", answered, lambda at: committed(f"{at}".ljust(30_000, "x")))
    yield Kind(
        "offsets: a group that is not there",
        answered,
        lambda at: asked(
            ApiKey.OFFSET_FETCH, 8, OffsetFetchRequest(groups=(OffsetFetchRequestGroup(group_id=f"{at}", topics=None),))
        ),
    )
    yield Kind(
        "coordinator: a group's name of 8,000 characters",
        answered,
        lambda at: asked(
            ApiKey.FIND_COORDINATOR,
            4,
            FindCoordinatorRequest(key_type=0, coordinator_keys=(f"{at}".ljust(8_000, "\u4e00"),)),
        ),
    )
    yield Kind(
        "describe: a group that is not there",
        answered,
        lambda at: asked(ApiKey.DESCRIBE_GROUPS, 5, DescribeGroupsRequest((f"not-there-{at}",))),
    )
    yield Kind(
        "consumer heartbeat: a member that is not there",
        answered,
        lambda at: asked(
            ApiKey.CONSUMER_GROUP_HEARTBEAT,
            1,
            ConsumerGroupHeartbeatRequest(group_id=f"not-there-{at}", member_id=f"m-{at}", member_epoch=5),
        ),
    )
    yield Kind(
        "consumer heartbeat: an expression of its own each",
        answered,
        lambda at: asked(
            ApiKey.CONSUMER_GROUP_HEARTBEAT,
            1,
            ConsumerGroupHeartbeatRequest(
                group_id="expressions",
                member_id=str(UUID(int=at % 100 + 1)),
                member_epoch=0,
                rebalance_timeout_ms=10_000,
                subscribed_topic_names=(),
                subscribed_topic_regex=f"(a|b)*{at}",
                topic_partitions=(),
            ),
        ),
    )


def of_admins() -> Iterator[Kind]:
    """Requests with which clients describe themselves, and requests of operators."""
    answered = End.ANSWERED
    yield Kind("a producer id", answered, lambda _: asked(ApiKey.INIT_PRODUCER_ID, 4, InitProducerIdRequest(None)))
    yield Kind(
        "a transactional id",
        answered,
        lambda at: asked(ApiKey.INIT_PRODUCER_ID, 4, InitProducerIdRequest(f"tx-{at}", 1_000)),
    )
    yield Kind(
        "a client's software",
        answered,
        lambda at: asked(
            ApiKey.API_VERSIONS,
            3,
            ApiVersionsRequest(client_software_name=f"software-{at}", client_software_version=f"{at}"),
            client_id=f"client-{at}",
        ),
    )
    yield Kind(
        "a client id of 30 KB",
        answered,
        lambda at: asked(ApiKey.METADATA, 12, MetadataRequest(topics=()), client_id=f"{at}".ljust(30_000, "x")),
    )
    yield Kind(
        "ApiVersions of a version to come",
        answered,
        lambda at: framed(struct.pack(">hhihB", ApiKey.API_VERSIONS, 90 + at % 9, at, -1, 0)),
    )
    yield Kind(
        "a client's quota, only looked at",
        answered,
        lambda at: asked(
            ApiKey.ALTER_CLIENT_QUOTAS,
            1,
            AlterClientQuotasRequest(
                entries=(
                    RequestEntryData(
                        entity=(RequestEntityData(entity_type="client-id", entity_name=f"c-{at}"),),
                        ops=(OpData(key="producer_byte_rate", value=1e9, remove=False),),
                    ),
                ),
                validate_only=True,
            ),
        ),
    )
    yield Kind(
        "create topics: an impossible name",
        answered,
        lambda at: asked(
            ApiKey.CREATE_TOPICS,
            5,
            CreateTopicsRequest(
                topics=(CreatableTopic(name=f"not this {at}", num_partitions=1, replication_factor=1),),
                timeout_ms=9_000,
            ),
        ),
    )
    yield Kind(
        "delete topics: not there",
        answered,
        lambda at: asked(
            ApiKey.DELETE_TOPICS, 5, DeleteTopicsRequest(topic_names=(f"not-there-{at}",), timeout_ms=9_000)
        ),
    )
    yield Kind(
        "describe configs: a topic that is not there",
        answered,
        lambda at: asked(
            ApiKey.DESCRIBE_CONFIGS,
            4,
            DescribeConfigsRequest(
                resources=(DescribeConfigsResource(resource_type=2, resource_name=f"not-there-{at}"),)
            ),
        ),
    )


class Stranger:
    """Sends to one broker."""

    def __init__(self, bootstrap: str) -> None:
        host, _, port = bootstrap.rpartition(":")
        self._place = (host, int(port))

    def prepare(self) -> None:
        """Make the topics that the kinds name, and the one that keeps groups."""
        configs = {PLAIN: {}, PACKED: {"compression.type": "gzip"}, COMPACT: {"cleanup.policy": "compact"}}
        topics = tuple(
            CreatableTopic(
                name=name,
                num_partitions=1,
                replication_factor=1,
                configs=tuple(CreatableTopicConfig(name=key, value=value) for key, value in each.items()),
            )
            for name, each in configs.items()
        )
        for end in (
            asked(ApiKey.CREATE_TOPICS, 5, CreateTopicsRequest(topics=topics, timeout_ms=30_000)),
            asked(ApiKey.FIND_COORDINATOR, 4, FindCoordinatorRequest(key_type=0, coordinator_keys=("one",))),
            produced(PLAIN, keyed()),
        ):
            self.send(Kind("prepare", End.ANSWERED, lambda _, end=end: end), range(1))  # type: ignore[misc]

    def send(self, kind: Kind, numbers: range) -> None:
        """These requests of a kind, until all are through."""
        if kind.end is End.ANSWERED:
            self._ask_all(kind, numbers)
            return
        for number in numbers:
            with self._connected() as line:
                line.sendall(kind.made(number))
                if kind.end is End.CLOSED:
                    line.shutdown(socket.SHUT_WR)  # an API whose request is empty may answer first
                    _read_to_the_end(line)
                else:
                    line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def _ask_all(self, kind: Kind, numbers: range) -> None:
        at_once = 2 if kind.is_costly else min(IN_FLIGHT, UNREAD_BYTES // max(len(kind.made(0)), 1) + 1)
        with self._connected() as line, line.makefile("rb") as answers:
            for begin in range(numbers.start, numbers.stop, at_once):
                some = range(begin, min(begin + at_once, numbers.stop))
                line.sendall(b"".join(kind.made(number) for number in some))
                for _ in some:
                    head = answers.read(4)
                    assert len(head) == 4, f"{kind.name}: the broker hung up"
                    answers.read(struct.unpack(">i", head)[0])

    def _connected(self) -> socket.socket:
        return socket.create_connection(self._place, timeout=PATIENCE_S)


def _read_to_the_end(line: socket.socket) -> None:
    try:
        while line.recv(65_536):
            pass
    except ConnectionError:
        pass
