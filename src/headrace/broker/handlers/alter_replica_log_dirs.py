"""AlterReplicaLogDirs: moves replicas of this broker to another of its log directories (KIP-113).

A broker has one log directory. A replica that is to go where it is stays there, as on Kafka; any other directory is
LOG_DIR_NOT_FOUND. A partition that this broker does not hold is REPLICA_NOT_AVAILABLE. A partition named for several
directories goes to the last. v2 flexible.
"""

from __future__ import annotations

from headrace.base.ids import PartitionIndex, TopicPartition
from headrace.broker.requests.access import on_cluster
from headrace.broker.requests.context import Handler, RequestContext
from headrace.metadata.access.acls import AclOperation
from headrace.wire.apis import ApiKey
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)


def handle(request: AlterReplicaLogDirsRequest, context: RequestContext) -> AlterReplicaLogDirsResponse:
    """Return one result for each partition, by topic."""
    wanted: dict[str, dict[int, str]] = {}
    for directory in request.dirs:
        for topic in directory.topics:
            wanted.setdefault(topic.name, {}).update(dict.fromkeys(topic.partitions, directory.path))
    return AlterReplicaLogDirsResponse(
        results=tuple(
            AlterReplicaLogDirTopicResult(
                topic_name=name,
                partitions=tuple(
                    AlterReplicaLogDirPartitionResult(
                        partition_index=index, error_code=_error(name, index, path, context)
                    )
                    for index, path in paths.items()
                ),
            )
            for name, paths in wanted.items()
        )
    )


def _error(name: str, index: int, path: str, context: RequestContext) -> ErrorCode:
    partitions = context.services.partitions
    if path != partitions.log_place:
        return ErrorCode.LOG_DIR_NOT_FOUND
    topic = context.image.topic(name)
    if topic is None or not 0 <= index < len(topic.partitions):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    key = TopicPartition(topic.id, PartitionIndex(index))
    if key in partitions.offline:
        return ErrorCode.KAFKA_STORAGE_ERROR
    return ErrorCode.NONE if partitions.role(key) is not None else ErrorCode.REPLICA_NOT_AVAILABLE


def _forbidden(request: AlterReplicaLogDirsRequest, error: ErrorCode) -> AlterReplicaLogDirsResponse:
    return AlterReplicaLogDirsResponse(
        results=tuple(
            AlterReplicaLogDirTopicResult(
                topic_name=topic.name,
                partitions=tuple(AlterReplicaLogDirPartitionResult(index, error) for index in topic.partitions),
            )
            for directory in request.dirs
            for topic in directory.topics
        )
    )


HANDLER = Handler(int(ApiKey.ALTER_REPLICA_LOG_DIRS), (1, 2), handle, on_cluster(_forbidden, AclOperation.ALTER))
