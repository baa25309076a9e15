"""One schema, and the cache that holds some of them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from headrace.base.limits import SCHEMA_NAME_CHARS_MAX, SCHEMAS_BYTES_MAX, SCHEMAS_MAX
from headrace.base.reading import json_value

AVRO: Final = "AVRO"
JSON: Final = "JSON"
REGISTRY_USER: Final = "HEADRACE_SCHEMA_REGISTRY_USER"
"""The variable of the environment with USER:PASSWORD at a registry, for a URL that has none."""

K_ = TypeVar("K_", bound=Hashable)


@dataclass(frozen=True, slots=True, eq=False)
class Schema:
    """A schema as its source has it. Two of them are the same only where they are one object."""

    place: str
    """Its id or file, for people."""
    text: str
    kind: str = AVRO
    """The registry's schemaType."""
    needed: tuple[str, ...] = ()
    """Texts of the schemas that it refers to; each comes behind those that it needs itself."""
    name: str = ""
    """Its full name in Avro, or its kind."""
    problem: str = ""
    """The reason, in one sentence, for which nothing can be read with it."""

    @property
    def told(self) -> str:
        """Its name and place, for people."""
        return f"{self.name} ({self.place})" if self.name else self.place

    @property
    def size(self) -> int:
        return len(self.text) + sum(map(len, self.needed))


def avro_schema(text: str, place: str, needed: tuple[str, ...] = ()) -> Schema:
    """A schema of Avro, with its name."""
    try:
        name = _name_of(json_value(text))
    except ValueError as error:
        problem = f"It cannot be read with {place}, which is no schema of Avro: {str(error)[:SCHEMA_NAME_CHARS_MAX]}."
        return Schema(place, "", problem=problem)
    return Schema(place, text, AVRO, needed, name[:SCHEMA_NAME_CHARS_MAX])


def _name_of(found: Any) -> str:
    """The full name of a named type, and the type of another."""
    if isinstance(found, str):
        return found
    if isinstance(found, list):
        return "union"
    if not isinstance(found, dict):
        raise ValueError("it is neither an object, nor a list, nor a name")
    name, space = found.get("name"), found.get("namespace")
    if not isinstance(name, str):
        return str(found.get("type"))
    return f"{space}.{name}" if isinstance(space, str) and space and "." not in name else name


class Cache(Generic[K_]):
    """The schemas that were used last, bounded in number and bytes."""

    def __init__(self) -> None:
        self._found: OrderedDict[K_, Schema] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._found)

    def get(self, key: K_) -> Schema | None:
        if (schema := self._found.get(key)) is not None:
            self._found.move_to_end(key)
        return schema

    def put(self, key: K_, schema: Schema) -> None:
        if (before := self._found.pop(key, None)) is not None:
            self._bytes -= before.size
        self._found[key] = schema
        self._bytes += schema.size
        while len(self._found) > SCHEMAS_MAX or self._bytes > SCHEMAS_BYTES_MAX:
            self._bytes -= self._found.popitem(last=False)[1].size
