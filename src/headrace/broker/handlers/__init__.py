"""One file per Kafka API, each opening with its behaviour and version notes and exporting `HANDLER`.

To add one: write `handlers/<api>.py` with `HANDLER = Handler(ApiKey.X, (lowest, highest), handle)` and name it in
`ALL`. ApiVersions, dispatch and the docs follow from that.
"""

from __future__ import annotations

from typing import Final

from headrace.broker.context import Handler
from headrace.broker.handlers import (
    add_raft_voter,
    alter_configs,
    alter_partition_reassignments,
    api_versions,
    consumer_group_describe,
    consumer_group_heartbeat,
    create_partitions,
    create_topics,
    delete_groups,
    delete_records,
    delete_topics,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_quorum,
    describe_topic_partitions,
    elect_leaders,
    envelope,
    fetch,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_groups,
    list_offsets,
    list_partition_reassignments,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    remove_raft_voter,
    sync_group,
    unregister_broker,
)

ALL: Final[tuple[Handler, ...]] = tuple(
    module.HANDLER
    for module in (
        add_raft_voter,
        alter_configs,
        alter_partition_reassignments,
        api_versions,
        consumer_group_describe,
        consumer_group_heartbeat,
        create_partitions,
        create_topics,
        delete_groups,
        delete_records,
        delete_topics,
        describe_cluster,
        describe_configs,
        describe_groups,
        describe_log_dirs,
        describe_producers,
        describe_quorum,
        describe_topic_partitions,
        elect_leaders,
        envelope,
        fetch,
        find_coordinator,
        heartbeat,
        incremental_alter_configs,
        init_producer_id,
        join_group,
        leave_group,
        list_groups,
        list_offsets,
        list_partition_reassignments,
        metadata,
        offset_commit,
        offset_delete,
        offset_fetch,
        offset_for_leader_epoch,
        produce,
        remove_raft_voter,
        sync_group,
        unregister_broker,
    )
)
