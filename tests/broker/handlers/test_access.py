"""The rights that each API needs, in each version, as Kafka documents them ("Operations and Resources on Protocols").

A client that lacks one of them, or all, is refused with the error of the resource's kind. One that has them is not.
Requests are made from Kafka's schemas. The client's address stands for who it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import UUID

import pytest

from headrace.broker.handlers import all_handlers
from headrace.metadata.access.acls import CLUSTER_NAME, AclOperation, ResourceType
from headrace.wire.apis import ApiKey, api
from headrace.wire.errors import ErrorCode
from headrace.wire.headers import decode_response_header
from headrace.wire.messages import create_acls
from tests.broker.group_broker import RawClient
from tests.broker.guarded import GROUP, ROOT, TOPIC, TRANSACTION, Guarded, guarded
from tests.broker.random_requests import BATCH, REQUESTS, frame_of
from tests.wire.schema import Case
from tools.wiregen.table import Field, Struct

Op = AclOperation


class Need(NamedTuple):
    operation: AclOperation
    kind: ResourceType

    @property
    def name(self) -> str:
        return NAMES[self.kind]

    @property
    def error(self) -> ErrorCode:
        return ERRORS[self.kind]


NAMES: Final = {
    ResourceType.TOPIC: TOPIC,
    ResourceType.GROUP: GROUP,
    ResourceType.TRANSACTIONAL_ID: TRANSACTION,
    ResourceType.CLUSTER: CLUSTER_NAME,
}
ERRORS: Final = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
}


def topic(operation: AclOperation) -> Need:
    return Need(operation, ResourceType.TOPIC)


def group(operation: AclOperation) -> Need:
    return Need(operation, ResourceType.GROUP)


def cluster(operation: AclOperation) -> Need:
    return Need(operation, ResourceType.CLUSTER)


WRITER: Final = Need(Op.WRITE, ResourceType.TRANSACTIONAL_ID)
NEEDS: Final[dict[ApiKey, Sequence[Need]]] = {
    ApiKey.PRODUCE: (WRITER, topic(Op.WRITE)),
    ApiKey.FETCH: (topic(Op.READ),),
    ApiKey.LIST_OFFSETS: (topic(Op.DESCRIBE),),
    ApiKey.METADATA: (topic(Op.DESCRIBE),),
    ApiKey.OFFSET_COMMIT: (group(Op.READ), topic(Op.READ)),
    ApiKey.OFFSET_FETCH: (group(Op.DESCRIBE), topic(Op.DESCRIBE)),
    ApiKey.FIND_COORDINATOR: (group(Op.DESCRIBE),),
    ApiKey.JOIN_GROUP: (group(Op.READ),),
    ApiKey.HEARTBEAT: (group(Op.READ),),
    ApiKey.LEAVE_GROUP: (group(Op.READ),),
    ApiKey.SYNC_GROUP: (group(Op.READ),),
    ApiKey.DESCRIBE_GROUPS: (group(Op.DESCRIBE),),
    ApiKey.CREATE_TOPICS: (topic(Op.CREATE),),
    ApiKey.DELETE_TOPICS: (topic(Op.DELETE),),
    ApiKey.DELETE_RECORDS: (topic(Op.DELETE),),
    ApiKey.INIT_PRODUCER_ID: (WRITER,),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (topic(Op.DESCRIBE),),
    ApiKey.ADD_PARTITIONS_TO_TXN: (WRITER, topic(Op.WRITE)),
    ApiKey.ADD_OFFSETS_TO_TXN: (WRITER, group(Op.READ)),
    ApiKey.END_TXN: (WRITER,),
    ApiKey.WRITE_TXN_MARKERS: (cluster(Op.CLUSTER_ACTION),),
    ApiKey.TXN_OFFSET_COMMIT: (WRITER, group(Op.READ), topic(Op.READ)),
    ApiKey.DESCRIBE_ACLS: (cluster(Op.DESCRIBE),),
    ApiKey.CREATE_ACLS: (cluster(Op.ALTER),),
    ApiKey.DELETE_ACLS: (cluster(Op.ALTER),),
    ApiKey.DESCRIBE_CONFIGS: (topic(Op.DESCRIBE_CONFIGS),),
    ApiKey.ALTER_CONFIGS: (topic(Op.ALTER_CONFIGS),),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (topic(Op.ALTER_CONFIGS),),
    ApiKey.ALTER_REPLICA_LOG_DIRS: (cluster(Op.ALTER),),
    ApiKey.DESCRIBE_LOG_DIRS: (cluster(Op.DESCRIBE),),
    ApiKey.CREATE_PARTITIONS: (topic(Op.ALTER),),
    ApiKey.DELETE_GROUPS: (group(Op.DELETE),),
    ApiKey.ELECT_LEADERS: (cluster(Op.ALTER),),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: (cluster(Op.ALTER),),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: (cluster(Op.DESCRIBE),),
    ApiKey.OFFSET_DELETE: (group(Op.DELETE), topic(Op.READ)),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: (cluster(Op.DESCRIBE_CONFIGS),),
    ApiKey.ALTER_CLIENT_QUOTAS: (cluster(Op.ALTER_CONFIGS),),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: (cluster(Op.DESCRIBE),),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: (cluster(Op.ALTER),),
    ApiKey.DESCRIBE_QUORUM: (cluster(Op.DESCRIBE),),
    ApiKey.UPDATE_FEATURES: (cluster(Op.ALTER),),
    ApiKey.ENVELOPE: (cluster(Op.CLUSTER_ACTION),),
    ApiKey.DESCRIBE_PRODUCERS: (topic(Op.READ),),
    ApiKey.UNREGISTER_BROKER: (cluster(Op.ALTER),),
    ApiKey.DESCRIBE_TRANSACTIONS: (Need(Op.DESCRIBE, ResourceType.TRANSACTIONAL_ID),),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: (group(Op.READ), topic(Op.DESCRIBE)),
    ApiKey.CONSUMER_GROUP_DESCRIBE: (group(Op.DESCRIBE),),
    ApiKey.LIST_CONFIG_RESOURCES: (cluster(Op.DESCRIBE_CONFIGS),),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: (topic(Op.DESCRIBE),),
    ApiKey.ADD_RAFT_VOTER: (cluster(Op.ALTER),),
    ApiKey.REMOVE_RAFT_VOTER: (cluster(Op.ALTER),),
}
FOR_EVERYBODY: Final = {
    ApiKey.API_VERSIONS,
    ApiKey.SASL_HANDSHAKE,
    ApiKey.SASL_AUTHENTICATE,
    ApiKey.DESCRIBE_CLUSTER,
    ApiKey.CREATE_DELEGATION_TOKEN,
    ApiKey.RENEW_DELEGATION_TOKEN,
    ApiKey.EXPIRE_DELEGATION_TOKEN,
    ApiKey.DESCRIBE_DELEGATION_TOKEN,
    ApiKey.LIST_GROUPS,
    ApiKey.LIST_TRANSACTIONS,
}
"""These tell each client what it may see, or nothing that is protected."""


HIDDEN: Final[dict[ApiKey, set[ErrorCode]]] = {
    ApiKey.METADATA: {ErrorCode.UNKNOWN_TOPIC_ID},
    ApiKey.DELETE_TOPICS: {ErrorCode.UNKNOWN_TOPIC_ID},
}
"""As on Kafka, a topic that the client may not describe is not told by its id."""


UNTOLD: Final = {(ApiKey.DESCRIBE_LOG_DIRS, version) for version in (1, 2)}
"""Versions that have no field for the error: nothing is listed."""


def needs(key: ApiKey, version: int) -> Sequence[Need]:
    if key == ApiKey.ADD_PARTITIONS_TO_TXN and version >= 4:  # for brokers
        return (cluster(Op.CLUSTER_ACTION),)
    return NEEDS[key]


def test_every_api_has_its_needs_stated_here() -> None:
    assert {handler.key for handler in all_handlers()} == NEEDS.keys() | FOR_EVERYBODY


@pytest.mark.timeout(120)
async def test_each_api_needs_the_rights_that_kafka_documents(tmp_path: Path) -> None:
    cases = [case for case in REQUESTS if _key(case) not in FOR_EVERYBODY]
    async with guarded(tmp_path / "data") as found:
        clients = {}
        acls: list[create_acls.AclCreation] = []
        hosts = _hosts()
        for wanted in dict.fromkeys(needs(_key(case), case.version) for case in cases):
            for lacking in (None, *wanted):
                clients[wanted, lacking] = host = next(hosts)
                acls += [_acl(host, need) for need in wanted if need is not lacking]
        async with RawClient(found.address, host=ROOT) as root:
            made = await root.ask(3, create_acls.CreateAclsRequest(creations=tuple(acls)))
            assert not any(each.error_code for each in made.results)
        nobody = next(hosts)
        wrong = []
        for case in cases:
            wanted = needs(_key(case), case.version)
            # first those who lack something: the others may do away with what this is about
            for host, lacks in ((nobody, wanted), *((clients[wanted, one], (one,)) for one in wanted)):
                errors = await _errors(found, host, case)
                expected = {need.error for need in lacks} | HIDDEN.get(_key(case), set())
                if not set(errors) & expected and (_key(case), case.version) not in UNTOLD:
                    wrong.append((_key(case).name, case.version, list(lacks), errors))
            errors = await _errors(found, clients[wanted, None], case)
            if set(errors) & set(ERRORS.values()):
                wrong.append((_key(case).name, case.version, [], errors))
        assert not wrong, "\n".join(map(str, wrong))


def _acl(host: str, need: Need) -> create_acls.AclCreation:
    return create_acls.AclCreation(need.kind, need.name, 3, f"User:{host}", "*", need.operation, 3)


def _hosts() -> Iterator[str]:
    return (f"127.0.1.{number}" for number in count(1))


def _key(case: Case) -> ApiKey:
    name = case.message.root.name.removesuffix("Request").upper()
    return next(key for key in ApiKey if key.name.replace("_", "") == name)


async def _errors(found: Guarded, host: str, case: Case) -> list[int]:
    """All error codes of the answer; none where the broker has closed the connection."""
    key = _key(case)
    frame = frame_of(case, _filled(case, case.message.root, found.salt.topic_id))
    address, port = found.address.split(":")
    reader, writer = await asyncio.open_connection(address, int(port), local_addr=(host, 0))
    try:
        writer.write(frame)
        answer = memoryview(await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big")))
    except (ConnectionError, asyncio.IncompleteReadError):
        return []
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
    known = api(key)
    assert known is not None
    _, at = decode_response_header(key, case.version, answer)
    return list(_codes(known.decode_response(case.version, answer[at:])))


def _codes(message: Any) -> Iterator[int]:
    if isinstance(message, tuple):
        if hasattr(message, "_asdict"):
            yield from (code for name, code in message._asdict().items() if name.endswith("error_code") and code)
        for part in message:
            yield from _codes(part)


TEXTS: Final = {
    "transactional_id": TRANSACTION,
    "v3_and_below_transactional_id": TRANSACTION,
    "transactional_ids": TRANSACTION,
    "group_id": GROUP,
    "groups": GROUP,
    "group_ids": GROUP,
    "groups_names": GROUP,
    "key": GROUP,
    "coordinator_keys": GROUP,
}
NUMBERS: Final = {"acks": -1, "resource_type": 2, "timeout_ms": 1000, "session_epoch": -1, "replica_id": -1}


def _filled(case: Case, struct: Struct, topic_id: UUID) -> Any:
    """One of everything; names are of what is there."""
    values = {field.python: _value(case, field, topic_id) for field in struct.fields if case.version in field.versions}
    return getattr(case.module, struct.python)(**values)


def _value(case: Case, field: Field, topic_id: UUID) -> Any:
    one = _one(case, field, topic_id)
    return (one,) if field.is_array else one


def _one(case: Case, field: Field, topic_id: UUID) -> Any:
    if field.struct is not None:
        return _filled(case, field.struct, topic_id)
    match field.kind:
        case "string":
            return TEXTS.get(field.python, TOPIC)
        case "bytes" | "records":
            return BATCH
        case "uuid":
            return topic_id
        case "bool":
            return False
        case "float64":
            return 1.0
    return NUMBERS.get(field.python, 0)
