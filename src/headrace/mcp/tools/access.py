"""Transactions, rights and quotas: who writes, who may, and how much."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from pydantic import Field

from headrace.base.errors import HeadraceError
from headrace.base.limits import MCP_ROWS, MCP_ROWS_MAX
from headrace.mcp.answers import Answer, Part, bounded, call, some
from headrace.mcp.desk import Desk
from headrace.mcp.plain import plain
from headrace.mcp.tools.topics import After, Limit, Query
from headrace.metadata.access.acls import AclFilter
from headrace.net.client.access import acls
from headrace.net.client.access.quotas import quotas, told
from headrace.net.client.transactions import Transactions


class TransactionRow(Part):
    """One transactional id."""

    transactional_id: str
    state: str
    producer_id: int
    coordinator: int


class TransactionList(Answer):
    """Some transactional ids by name."""

    total: int
    transactions: list[TransactionRow]
    after: str | None
    command: str


class Transaction(Answer):
    """One transactional id."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    started: str | None
    coordinator: int
    partitions: list[str] = Field(description="Partitions that its open transaction writes to.")
    command: str


class AclRow(Part):
    """One entry of the access control lists."""

    principal: str
    host: str
    permission: str
    operation: str
    resource: str
    pattern: str
    name: str


class Acls(Answer):
    """Entries of the access control lists."""

    total: int
    acls: list[AclRow]
    left_out: int
    command: str


class QuotaRow(Part):
    """The quotas of one entity."""

    entity: str
    quotas: dict[str, float]


class Quotas(Answer):
    """Quotas of users, clients and addresses."""

    total: int
    quotas: list[QuotaRow]
    left_out: int
    command: str


class AccessTools:
    """Tools for transactions, rights and quotas."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def txn_list(
        self,
        query: Query = "",
        after: After = "",
        limit: Limit = MCP_ROWS,
        state: Annotated[str | None, Field(description="Only of this state, for example Ongoing.")] = None,
    ) -> TransactionList:
        """Transactional ids by name, a page at a time, with their states."""
        found = await Transactions(self._desk.cluster).list_all(() if state is None else (state,))
        shown, total, follows = some(found, lambda each: each.name, query=query, after=after, limit=limit)
        rows = [
            TransactionRow(
                transactional_id=plain(each.name),
                state=each.state,
                producer_id=each.producer_id,
                coordinator=int(each.coordinator),
            )
            for each in shown
        ]
        asks = [call("txn_list", query=query or None, after=follows, limit=limit, state=state)] if follows else []
        asks += [call("txn_describe", transactional_id=shown[0].name)] if shown else [call("doctor")]
        command = self._desk.command("txn", "list")
        return TransactionList(total=total, transactions=rows, after=follows, command=command, next=asks)

    async def txn_describe(
        self, transactional_id: Annotated[str, Field(description="The transactional id.")]
    ) -> Transaction:
        """One transactional id: its state, its producer, and the partitions of its open transaction."""
        view = await Transactions(self._desk.cluster).describe(transactional_id)
        if view is None:
            raise HeadraceError(f"There is no transactional id '{transactional_id:.200}': txn_list() has all.")
        started = None if view.started_ms < 0 else datetime.fromtimestamp(view.started_ms / 1000, UTC).isoformat()
        return Transaction(
            transactional_id=plain(view.name),
            state=view.state,
            producer_id=view.producer_id,
            producer_epoch=view.producer_epoch,
            timeout_ms=view.timeout_ms,
            started=started,
            coordinator=int(view.coordinator),
            partitions=[f"{each.topic}-{each.partition}" for each in view.partitions[:MCP_ROWS_MAX]],
            command=self._desk.command("txn", "describe", transactional_id),
            next=[call("doctor"), call("txn_list", state="Ongoing")],
        )

    async def acl_list(
        self,
        principal: Annotated[str | None, Field(description="Only of this one, like User:alice.")] = None,
        name: Annotated[str | None, Field(description="Only about the resource of this name.")] = None,
        limit: Limit = MCP_ROWS,
    ) -> Acls:
        """Rights: entries of the access control lists, all or those of a principal or a name."""
        found = await acls.found(self._desk.cluster, AclFilter(principal=principal, name=name))
        rows = [
            AclRow(
                principal=plain(each.rule.principal),
                host=plain(each.rule.host),
                permission=each.rule.permission.name,
                operation=each.rule.operation.name,
                resource=each.pattern.resource_type.name,
                pattern=each.pattern.pattern_type.name,
                name=plain(each.pattern.name),
            )
            for each in found
        ]
        rows.sort(key=lambda row: (row.principal, row.resource, row.name, row.operation))
        shown = rows[: bounded(limit, MCP_ROWS_MAX)]
        words = ["acl", "list", *([] if principal is None else ["--principal", principal])]
        return Acls(
            total=len(rows),
            acls=shown,
            left_out=len(rows) - len(shown),
            command=self._desk.command(*words),
            next=[call("quota_list"), "A person gives rights: 'headrace acl allow --help' says how."],
        )

    async def quota_list(self, limit: Limit = MCP_ROWS) -> Quotas:
        """Quotas of users, clients and addresses."""
        found = await quotas(self._desk.cluster, {}, strict=False)
        rows = [QuotaRow(entity=plain(told(entity)), quotas=dict(values)) for entity, values in found.items()]
        rows.sort(key=lambda row: row.entity)
        shown = rows[: bounded(limit, MCP_ROWS_MAX)]
        command = self._desk.command("quota", "list")
        asks = [call("top"), call("acl_list")]
        return Quotas(total=len(rows), quotas=shown, left_out=len(rows) - len(shown), command=command, next=asks)
