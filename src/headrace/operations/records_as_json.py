"""Records as JSON. A record that went through it is the same record, also where its bytes are no text: these stand in
base64 under `..._base64`.
"""

from __future__ import annotations

import base64
import json
from typing import Any

from headrace.net.client.states import State
from headrace.wire.records import NAMES_KEEP_BYTES, Record, readable_name


def as_json_line(topic: str, partition: int, record: Record, state: State = None) -> bytes:
    """The record as one line of JSON, with the state of its transaction, where it has one."""
    told = {} if state is None else {"transaction": state.value}
    return (json.dumps(as_json(topic, partition, record) | told, ensure_ascii=False) + "\n").encode()


def as_json(topic: str, partition: int, record: Record) -> dict[str, Any]:
    """A record for JSON: bytes that are UTF-8 as text, others under `..._base64`; the timestamp in ms since 1970."""
    return {
        "topic": topic,
        "partition": partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        **_bytes_field("key", record.key),
        **_bytes_field("value", record.value),
        "headers": [{**_name_field(name), **_bytes_field("value", value)} for name, value in record.headers],
    }


def _bytes_field(name: str, data: bytes | None) -> dict[str, str | None]:
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": _base64(data)}


def _name_field(name: str) -> dict[str, str]:
    readable = readable_name(name)
    return {"name": readable} if readable == name else {"name_base64": _base64(name.encode(errors=NAMES_KEEP_BYTES))}


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
