"""A Delta table in the table's own directory: each commit is one of Delta's, with the pipeline's transaction version.

Promises that Delta holds a version once. Its log refuses two commits of one application's transaction that began from
one state, and its version is checked before each commit. Source: the Delta protocol, "Transaction Identifiers".
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from deltalake import DeltaTable, Schema
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, CommitProperties, Transaction, create_table_with_add_actions

from headrace.base.errors import UsageError
from headrace.spark.pipelines.spec import Materialise
from headrace.spark.pipelines.tables.progress import Commit, File
from headrace.spark.pipelines.tables.publishing import TakenError, place_of, refused
from headrace.spark.pipelines.tables.reading import arrow_schema_of


class DeltaFormat:
    """See the module."""

    def __init__(self, spec: Materialise) -> None:
        self._url = place_of(spec.path)
        self._application = f"headrace-{spec.name}"
        self._table: DeltaTable | None = None

    def version(self) -> int:
        self._table = DeltaTable(self._url) if DeltaTable.is_deltatable(self._url) else None
        held = None if self._table is None else self._table.transaction_version(self._application)
        return -1 if held is None else held

    def check(self, schema: Any) -> None:
        try:
            found = Schema.from_arrow(schema)
        except Exception as error:  # deltalake has no narrower class for it
            raise refused("Delta", error) from error
        if self._table is not None:
            _new_fields(self._table, found)

    def check_files(self, files: Sequence[File]) -> None:
        for file in files:
            if empty := [name for name, value in file.values.items() if value == ""]:
                raise UsageError(
                    f"Column '{empty[0]}', by which the table is partitioned, holds an empty text, which is null for "
                    "Delta: let section [columns] give it another value there."
                )

    def publish(self, commit: Commit) -> None:
        properties = CommitProperties(
            app_transactions=[Transaction(self._application, commit.version)],
            max_commit_retries=0,
            custom_metadata={"headrace.pipeline": commit.pipeline, "headrace.version": str(commit.version)},
        )
        adds, by = [added(each, commit.time_ms) for each in commit.added], list(commit.partition_by)
        schema = Schema.from_arrow(arrow_schema_of(commit.columns))
        try:
            if self._table is None:
                create_table_with_add_actions(self._url, schema, adds, partition_by=by, commit_properties=properties)
            else:
                self._grow(self._table, schema)
                self._table.create_write_transaction(
                    adds, mode="append", schema=schema, partition_by=by, commit_properties=properties
                )
        except CommitFailedError as error:
            raise TakenError(str(error)) from error
        except DeltaError as error:
            if self._table is None and DeltaTable.is_deltatable(self._url):
                raise TakenError(str(error)) from error
            raise
        self._table = DeltaTable(self._url)

    def _grow(self, table: DeltaTable, schema: Schema) -> None:
        """Add new columns first, in a commit of their own. Raises UsageError for other changes."""
        if new := _new_fields(table, schema):
            table.alter.add_columns(new)
            table.update_incremental()


def _new_fields(table: DeltaTable, schema: Schema) -> list[Any]:
    """The columns that the table lacks. Raises UsageError for a column of another type."""
    known = {field.name: field for field in table.schema().fields}
    for field in schema.fields:
        if field.name in known and field.type != known[field.name].type:
            raise UsageError(
                f"Column '{field.name}' is {known[field.name].type} in the Delta table, and would be {field.type}, "
                "which Delta does not take: give the new one another name."
            )
    return [field for field in schema.fields if field.name not in known]


def added(file: File, time_ms: int) -> AddAction:
    stats = json.dumps({"numRecords": file.records})
    return AddAction(file.path, file.bytes, _texts(file.values), time_ms, True, stats)


def _texts(values: Mapping[str, Any]) -> dict[str, str | None]:
    """The values as Delta writes them in its log."""
    return {name: _text(value) for name, value in values.items()}


def _text(value: Any) -> str | None:
    if isinstance(value, bool):
        return str(value).lower()
    return None if value is None else str(value)
