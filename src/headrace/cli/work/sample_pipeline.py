"""The commented file that `headrace pipeline init` writes: a pipeline that runs as it is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

NAME_MAX: Final = 100
"""A topic's name may be longer."""
MATERIALISES: Final = """\
# A table of a topic, each record once. Look first, then run:
#
#   headrace pipeline run {file} --dry-run
#   headrace pipeline run {file}
#
# A later run goes on where this one ended. docs/PIPELINES.md has all keys.
pipeline = "materialise"          # or audit, compact, replay, statistics
name = {name}                     # owns the table: one pipeline writes a table

[source]
bootstrap = {bootstrap}           # brokers, as HOST:PORT[,HOST:PORT]
topic = {topic}                   # or topicPattern = "orders.*"
# store = "file:///srv/store"     # reads durable history there, and from brokers only what is newer
# startingOffsets = "latest"      # without it, from the beginning

[decode]
key = "string"                    # or binary
value = "string"                  # or binary; for JSON, the two lines below in place of this one
# value = "json"
# schema = "id bigint, city string, amount double"   # the fields become columns

[columns]
day = "to_date(timestamp)"        # further columns, by SQL expressions

[table]
path = {path}                     # a directory, or s3://BUCKET/PREFIX
partition_by = ["day"]
# format = "delta"                # or "iceberg": the same files, also in a table of that format

# [run]
# continuous = true               # goes on until Ctrl-C

# [spark]
# master = "local[2]"             # processors that it uses; without it, all
"""


def sample(*, file: str, topic: str, bootstrap: str, path: str) -> str:
    """The text of a file called `file`."""
    name = topic.lstrip("._-")[:NAME_MAX] or "table"
    values = {"name": name, "bootstrap": bootstrap, "topic": topic, "path": path}
    return "".join(f"{_filled(line, values)}\n" for line in MATERIALISES.replace("{file}", file).splitlines())


def _filled(line: str, values: Mapping[str, str]) -> str:
    """The line with its value in place of a name in braces. Its comment stays in its column, where there is room."""
    before, brace, rest = line.partition("= {")
    name, brace, after = rest.partition("}")
    if not brace:
        return line
    key = f"{before}= {json.dumps(values[name], ensure_ascii=False)}"
    return f"{key.ljust(line.index('#') - 1)} {after.strip()}"
