"""Metadata: lists brokers, controller and topics, from the image.

Topics are named by null for all (v0: by an empty list), by name, or by id. An id comes in v12, or in v10 with a null
name; the Java client sends an empty name. An unknown name is error 3, an unknown id UNKNOWN_TOPIC_ID without a name, an
impossible name INVALID_TOPIC_EXCEPTION.

A missing topic is created only where both the request and the broker allow it, and then the answer already has it. The
request does so by `allow_auto_topic_creation` (v4; always before), the broker by `auto.create.topics.enable`.

- v1: null for all, controller, racks.
- v2: cluster id.
- v5: offline replicas.
- v7: leader epochs.
- v8: authorised operations (v11: of topics only).
- v9: flexible.
- v10: topic ids.
- v13: an error of the whole answer, never set.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from typing import Final

from headrace.base.ids import NO_TOPIC_ID, BrokerId, TopicId
from headrace.base.limits import NAMES_PER_TURN_MAX
from headrace.broker.requests.access import as_it_goes
from headrace.broker.requests.admin import new_topic_id, submitted
from headrace.broker.requests.context import Handler, RequestContext
from headrace.broker.requests.rights import OPERATIONS_NOT_ASKED_FOR, Rights
from headrace.broker.requests.topic_answers import (
    Reached,
    cluster_operations,
    controller_id,
)
from headrace.broker.requests.turns import in_turns
from headrace.controller.asks.topics import CreateTopics
from headrace.controller.topic_names import topic_name_problem
from headrace.controller.topics import NewTopic
from headrace.metadata.access.acls import AclOperation, ResourceType
from headrace.metadata.configs import broker_value
from headrace.metadata.image import MetadataImage
from headrace.metadata.values import INTERNAL_TOPICS, PartitionImage, TopicImage
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

NULL_NAMES_VERSION: Final = 12
LISTENERS_VERSION: Final = 6
"""The first version with LISTENER_NOT_FOUND."""


def handle(request: MetadataRequest, context: RequestContext) -> MetadataResponse | Awaitable[MetadataResponse]:
    """Answer at once from the image, except where topics are to be created first."""
    if _number(request, context.image) > NAMES_PER_TURN_MAX:
        return _answer_in_turns(request, context)
    missing = [name for name in _to_create(request, context) if name is not None]
    if missing:
        return _create_and_answer(request, context, missing)
    return _answer(request, context, context.image, tuple(_topics(request, context, context.image)))


def _number(request: MetadataRequest, image: MetadataImage) -> int:
    """Return the number of topics that the answer may have."""
    return len(image.topic_ids) if request.topics is None else len(request.topics)


def _to_create(request: MetadataRequest, context: RequestContext) -> Iterator[str | None]:
    """Iterate over the names in the request that do not exist and are to be created, with None for each other one."""
    services = context.services
    allowed = broker_value(context.image, services.configs, "auto.create.topics.enable", node=services.node_id)
    if not (request.topics and request.allow_auto_topic_creation and allowed.boolean()):
        return
    for name in dict.fromkeys(topic.name or "" for topic in request.topics):
        is_missing = name and name not in INTERNAL_TOPICS and name not in context.image.topic_ids
        yield name if is_missing and not topic_name_problem(name) and _may_create(name, context.rights) else None


def _may_create(name: str, rights: Rights) -> bool:
    return rights.sees(ResourceType.TOPIC, name) and (
        rights.may(AclOperation.CREATE, ResourceType.CLUSTER)
        or rights.may(AclOperation.CREATE, ResourceType.TOPIC, name)
    )


async def _create_and_answer(request: MetadataRequest, context: RequestContext, missing: list[str]) -> MetadataResponse:
    """Create them. Where one is refused, its absence from the image says so."""
    services = context.services
    wanted = tuple(NewTopic(topic_id=new_topic_id(services.random), name=name, configs={}) for name in missing)
    await submitted(context, CreateTopics(topics=wanted))
    image = services.metadata.image
    if _number(request, image) > NAMES_PER_TURN_MAX:
        return _answer(request, context, image, tuple(await in_turns(_topics(request, context, image))))
    return _answer(request, context, image, tuple(_topics(request, context, image)))


async def _answer_in_turns(request: MetadataRequest, context: RequestContext) -> MetadataResponse:
    """Answer a request that names very much. Others have their turns of the event loop meanwhile."""
    missing = [name for name in await in_turns(_to_create(request, context)) if name is not None]
    if missing:
        return await _create_and_answer(request, context, missing)
    image = context.image
    return _answer(request, context, image, tuple(await in_turns(_topics(request, context, image))))


def _answer(
    request: MetadataRequest,
    context: RequestContext,
    image: MetadataImage,
    topics: tuple[MetadataResponseTopic, ...],
) -> MetadataResponse:
    return MetadataResponse(
        brokers=tuple(told_brokers(image, context.services.node_id, context.listener)),
        cluster_id=context.services.controller.cluster_id,
        controller_id=controller_id(context, image),
        topics=topics,
        cluster_authorized_operations=cluster_operations(context, asked=request.include_cluster_authorized_operations),
    )


def told_brokers(image: MetadataImage, me: BrokerId, listener: str) -> Iterator[MetadataResponseBroker]:
    """Iterate over the live brokers that have the client's listener. Where the image has no live broker, give this
    one: a client that hears of none has nobody left to ask. (librdkafka 2.16 forgets all brokers that an answer lacks,
    and its consumers then hang for ever.)"""
    mine = image.brokers.get(me)
    for broker in image.live_brokers() or ([] if mine is None else [mine]):
        if (endpoint := broker.endpoint(listener)) is not None:
            yield MetadataResponseBroker(node_id=broker.id, host=endpoint.host, port=endpoint.port, rack=broker.rack)


def _topics(request: MetadataRequest, context: RequestContext, image: MetadataImage) -> Iterator[MetadataResponseTopic]:
    """Iterate over the topics that the client may describe. Those that it names and may not describe are refused."""
    reached, rights, version = Reached(image, context.listener), context.rights, context.version
    told = request.include_topic_authorized_operations
    if request.topics is None or (version == 0 and not request.topics):
        for name in sorted(image.topic_ids):
            if rights.sees(ResourceType.TOPIC, name):
                topic, operations = image.topics[image.topic_ids[name]], _operations(name, rights, told=told)
                yield _topic(topic, reached, version, operations)
        return
    for wanted in dict.fromkeys(request.topics):
        found = image.topic_by_id(TopicId(wanted.topic_id)) if _is_by_id(wanted) else image.topic(wanted.name or "")
        name = wanted.name or "" if found is None else found.name
        if not (found is None and _is_by_id(wanted)) and not rights.may(
            AclOperation.DESCRIBE, ResourceType.TOPIC, name
        ):
            yield _forbidden(wanted, version)
        elif found is None:
            yield _unknown(wanted, version, _operations(name, rights, told=told))
        else:
            yield _topic(found, reached, version, _operations(name, rights, told=told))


def _operations(name: str, rights: Rights, *, told: bool) -> int:
    return rights.operations(ResourceType.TOPIC, name) if told else OPERATIONS_NOT_ASKED_FOR


def _is_by_id(wanted: MetadataRequestTopic) -> bool:
    return wanted.name is None or wanted.topic_id != NO_TOPIC_ID


def _forbidden(wanted: MetadataRequestTopic, version: int) -> MetadataResponseTopic:
    """Return the refusal of a topic. One that was asked for by its id is as one that does not exist."""
    if wanted.topic_id != NO_TOPIC_ID:
        name = None if version >= NULL_NAMES_VERSION else ""
        return MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=name, topic_id=wanted.topic_id)
    return MetadataResponseTopic(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, name=wanted.name)


def _unknown(wanted: MetadataRequestTopic, version: int, operations: int) -> MetadataResponseTopic:
    if wanted.topic_id != NO_TOPIC_ID:
        name = None if version >= NULL_NAMES_VERSION else ""
        return MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=name, topic_id=wanted.topic_id)
    impossible = wanted.name is not None and topic_name_problem(wanted.name) is not None
    error = ErrorCode.INVALID_TOPIC_EXCEPTION if impossible else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return MetadataResponseTopic(
        error_code=error,
        name=(wanted.name or "") if version < NULL_NAMES_VERSION else wanted.name,
        topic_authorized_operations=operations,
    )


def _topic(topic: TopicImage, reached: Reached, version: int, operations: int) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.internal,
        partitions=tuple(_partition(partition, reached, version) for partition in topic.partitions),
        topic_authorized_operations=operations,
    )


def _partition(partition: PartitionImage, reached: Reached, version: int) -> MetadataResponsePartition:
    leader, error = reached.leader(partition)
    if error is ErrorCode.LISTENER_NOT_FOUND and version < LISTENERS_VERSION:
        error = ErrorCode.LEADER_NOT_AVAILABLE
    return MetadataResponsePartition(
        error_code=error,
        partition_index=partition.index,
        leader_id=leader,
        leader_epoch=partition.leader_epoch,
        replica_nodes=partition.replicas,
        isr_nodes=partition.isr,
        offline_replicas=reached.offline_replicas(partition),
    )


HANDLER = Handler(int(ApiKey.METADATA), (0, 13), handle, as_it_goes)
