"""All tools, with what hosts are told of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from mcp_types import ToolAnnotations

from headrace.mcp.desk import Desk
from headrace.mcp.tools.access import AccessTools
from headrace.mcp.tools.changes import ChangeTools
from headrace.mcp.tools.cluster import ClusterTools
from headrace.mcp.tools.groups import GroupTools
from headrace.mcp.tools.history import HistoryTools
from headrace.mcp.tools.metrics import MetricTools
from headrace.mcp.tools.pipelines import PipelineTools
from headrace.mcp.tools.records import RecordTools
from headrace.mcp.tools.topics import TopicTools

READS: Final = ToolAnnotations(read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False)
CHANGES: Final = ToolAnnotations(
    read_only_hint=False, destructive_hint=True, idempotent_hint=False, open_world_hint=False
)
APPROVE: Final = "approve"


class Entry(NamedTuple):
    """One tool."""

    name: str
    function: Callable[..., Any]
    annotations: ToolAnnotations


def reading_tools(desk: Desk) -> Iterator[Entry]:
    """Tools that change nothing."""
    cluster, topics, groups = ClusterTools(desk), TopicTools(desk), GroupTools(desk)
    history, access = HistoryTools(desk), AccessTools(desk)
    for function in (
        cluster.status,
        cluster.doctor,
        cluster.top,
        cluster.broker_list,
        topics.topic_list,
        topics.topic_describe,
        topics.config_list,
        RecordTools(desk).consume,
        groups.group_list,
        groups.group_describe,
        history.topic_moves,
        history.durable_list,
        history.durable_verify,
        access.txn_list,
        access.txn_describe,
        access.acl_list,
        access.quota_list,
        MetricTools(desk).metrics,
        PipelineTools(desk).pipeline_list,
    ):
        yield Entry(function.__name__, function, READS)


def changing_tools(desk: Desk) -> Iterator[Entry]:
    """Plans, which change nothing, and their approval, which does."""
    changes = ChangeTools(desk)
    for function in (
        changes.plan_topic_create,
        changes.plan_topic_delete,
        changes.plan_config_set,
        changes.plan_group_reset_offsets,
        changes.plan_topic_move,
        changes.plan_txn_abort,
        changes.plan_topic_delete_records,
        changes.plan_produce,
        changes.plan_topic_move_cancel,
        changes.plan_broker_drain,
        changes.plan_quota_set,
    ):
        yield Entry(function.__name__, function, READS)
    yield Entry(APPROVE, changes.approve, CHANGES)
