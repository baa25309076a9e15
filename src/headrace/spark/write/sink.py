"""The options and columns of a write: parsed, checked against each other, and named where they are wrong.

Names are those of Spark's own Kafka sink where it has them. An unknown, mistyped or contradictory option or column is
refused when the write is planned, with one sentence of advice. Makes no request to a broker.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from headrace.base.errors import UsageError
from headrace.net.client.security.settings import PLAIN, ClientSecurity
from headrace.spark.options import OPTIONS as READ_OPTIONS
from headrace.spark.options import boolean, positive, without_security
from headrace.spark.synonyms import own_names
from headrace.wire.compression import Compression

OPTIONS: Final = (
    "bootstrap",
    "topic",
    "compression",
    "batchBytes",
    "deliveryTimeoutMs",
    "includeIdentity",
    "queryId",
    "delivery",
)
AT_LEAST_ONCE: Final = "at-least-once"
EXACTLY_ONCE: Final = "exactly-once"
BATCH_BYTES: Final = 512 * 1024
DELIVERY_TIMEOUT_MS: Final = 120_000
QUERY_ID_MAX: Final = 200

BYTES: Final = ("binary", "string")
COLUMNS: Final[dict[str, tuple[str, ...]]] = {
    "key": BYTES,
    "value": BYTES,
    "topic": ("string",),
    "partition": ("int",),
    "timestamp": ("timestamp",),
    "headers": ("array<struct<key:string,value:binary>>",),
}
"""The columns of a record, with their Spark types."""
LEFT_OUT: Final = ("offset", "timestampType")
"""Additional columns of a reader's rows. A written record gets its own values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """Options of ``df.write`` or ``df.writeStream``."""

    bootstrap: str
    security: ClientSecurity = PLAIN
    """How brokers let this side in."""
    topic: str | None
    """None: each row's own."""
    compression: Compression
    batch_bytes: int
    """Maximum bytes of a batch before compression, except for one larger record. It is less where the topic allows
    less.
    """
    delivery_timeout_ms: int
    include_identity: bool
    """Whether headers of each record name the query, batch and task that wrote it, and the row's number."""
    query_id: str | None
    """Query id of a batch write; None: a new one."""
    exactly_once: bool = False
    """Whether rows are written in transactions that the driver ends."""


def parse_write_options(options: Mapping[str, str], *, streaming: bool) -> WriteOptions:
    """Parse options; their names are case-insensitive. Raises UsageError."""
    given, security = without_security(options)
    given = own_names(given, OPTIONS)
    if "path" in given:
        raise UsageError("A topic has no path: leave it out of save() or start(), and give option topic.")
    for own in ("checkpointlocation", "queryname"):  # Spark's own
        given.pop(own, None)
    if unknown := set(given) - {name.lower() for name in OPTIONS}:
        name = min(unknown)
        of_reading = {each.lower(): each for each in READ_OPTIONS}
        if name in of_reading:
            raise UsageError(f"Option {of_reading[name]} is for reading alone: leave it out of the write.")
        raise UsageError(f"There is no option '{name}' of a write; there are: {', '.join(OPTIONS)}.")
    bootstrap = given.get("bootstrap", "").strip()
    if not bootstrap:
        raise UsageError("Option bootstrap is missing: .option('bootstrap', HOST:PORT), the brokers to write to.")
    return WriteOptions(
        bootstrap=bootstrap,
        security=security,
        topic=_topic(given),
        compression=_compression(given),
        batch_bytes=positive("batchBytes", given, "bytes") or BATCH_BYTES,
        delivery_timeout_ms=positive("deliveryTimeoutMs", given, "milliseconds") or DELIVERY_TIMEOUT_MS,
        include_identity=boolean("includeIdentity", given, default=False),
        query_id=_query_id(given, streaming),
        exactly_once=_delivery(given) == EXACTLY_ONCE,
    )


def _topic(given: Mapping[str, str]) -> str | None:
    if "topic" not in given:
        return None
    topic = given["topic"].strip()
    if not topic or "," in topic:
        raise UsageError(f"Option topic must name one topic, not '{topic:.200}': for several, have a column topic.")
    return topic


def _compression(given: Mapping[str, str]) -> Compression:
    text = given.get("compression", "none").strip()
    names = [codec.name.lower() for codec in Compression]
    if text.lower() not in names:
        raise UsageError(f"Option compression must be one of {', '.join(names)}, not '{text:.50}'.")
    return Compression[text.upper()]


def _delivery(given: Mapping[str, str]) -> str:
    text = given.get("delivery", AT_LEAST_ONCE).strip().lower()
    if text not in (AT_LEAST_ONCE, EXACTLY_ONCE):
        raise UsageError(f"Option delivery must be {AT_LEAST_ONCE} or {EXACTLY_ONCE}, not '{text:.50}'.")
    return text


def _query_id(given: Mapping[str, str], streaming: bool) -> str | None:
    text = given.get("queryid")
    if text is None:
        return None
    if streaming:
        raise UsageError("Option queryId is for df.write alone: a stream's id is in its checkpoint; leave it out.")
    if not re.fullmatch(r"[\x21-\x7e]+", text) or len(text) > QUERY_ID_MAX:
        raise UsageError(f"Option queryId must be up to {QUERY_ID_MAX} letters without spaces, not '{text:.50}'.")
    if not boolean("includeIdentity", given, default=False) and _delivery(given) != EXACTLY_ONCE:
        raise UsageError(
            f"Option queryId needs includeIdentity=true or delivery={EXACTLY_ONCE}: without them, nothing says who "
            "wrote a record."
        )
    return text


def check_columns(columns: Sequence[tuple[str, str]], options: WriteOptions) -> None:
    """Check names and types, the latter in Spark's notation (`simpleString`). Raises UsageError."""
    there = dict(columns)
    if len(there) < len(columns):
        twice = next(name for name, _ in columns if [each for each, _ in columns].count(name) > 1)
        raise UsageError(f"Column {twice} is there twice: select each once.")
    for name, kind in columns:
        if name in LEFT_OUT:
            continue
        if name not in COLUMNS:
            raise UsageError(
                f"Column {name} cannot be written: a record has {', '.join(COLUMNS)}; select these alone, and put "
                "what else there is into value, by to_json(struct(...)) for example."
            )
        if kind not in COLUMNS[name]:
            raise UsageError(f"Column {name} must be {' or '.join(COLUMNS[name])}, not {kind}: cast it.")
    if "value" not in there:
        raise UsageError("Column value is missing: select what is to be written as value, binary or string.")
    if options.topic is None and "topic" not in there:
        raise UsageError("No topic is named: .option('topic', NAME), or a column topic.")
