"""The arguments of a call, as its line in the log has them: bounded, and without what may be a secret."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from headrace.base.limits import MCP_ARGUMENT_CHARS_MAX
from headrace.mcp.plain import plain

HIDDEN: Final = "(hidden)"
ARGUMENTS_MAX: Final = 20
RECORD_PIECES: Final = {"consume": ("key", "has", "filter"), "plan_produce": ("key", "value", "headers")}
"""Arguments of tools that hold pieces of records."""
_SECRET: Final = re.compile(r"password|passwd|secret|token|credential|jaas|private|\.key$|(^|\.)key\.", re.IGNORECASE)
"""Names of configs whose values may be secrets."""


def told(tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Pieces of records are producers' data, and a config's value may be a secret: neither is told."""
    found: dict[str, Any] = {}
    for name, value in list(arguments.items())[:ARGUMENTS_MAX]:
        of_records = bool(value) and name in RECORD_PIECES.get(tool, ())
        of_a_secret = tool == "plan_config_set" and name == "value" and _is_secret(arguments.get("key"))
        if of_records or of_a_secret:
            found[name] = HIDDEN
        elif name == "configs" and isinstance(value, Mapping):
            found[name] = {
                plain(str(key)): HIDDEN if _is_secret(key) else _shown(each)
                for key, each in list(value.items())[:ARGUMENTS_MAX]
            }
        else:
            found[plain(name)] = HIDDEN if _SECRET.search(name) and name != "key" else _shown(value)
    return found


def _is_secret(key: object) -> bool:
    return not isinstance(key, str) or _SECRET.search(key) is not None


def _shown(value: object) -> object:
    if isinstance(value, str):
        return plain(value, MCP_ARGUMENT_CHARS_MAX)
    return value if isinstance(value, (int, float, bool, type(None))) else plain(repr(value), MCP_ARGUMENT_CHARS_MAX)
