"""Checks the names of topics, alone and beside those of existing topics.

Promises: a name that differs from another only in `.` and `_` is refused. Kafka's metrics write both as `_` and would
count the two topics as one. Source: Kafka's Topic.validate and Topic.hasCollision.
"""

from __future__ import annotations

import re
from functools import cached_property
from itertools import product
from typing import Final

from headrace.base.limits import ALIKE_NAMES_TRIED_MAX, TOPIC_NAME_CHARS_MAX
from headrace.metadata.image import MetadataImage
from headrace.metadata.values import INTERNAL_TOPICS

_NAME: Final = re.compile(r"[a-zA-Z0-9._-]+")


def topic_name_problem(name: str) -> str | None:
    """Return why this cannot be a topic's name; None where it can: 1 to 249 of `[a-zA-Z0-9._-]`, not `.` or `..`."""
    if not name:
        return "Topic name is invalid: it is empty."
    if name in (".", ".."):
        return "Topic name is invalid: it is '.' or '..'."
    if len(name) > TOPIC_NAME_CHARS_MAX:
        return f"Topic name is invalid: it has {len(name)} characters, more than {TOPIC_NAME_CHARS_MAX}."
    if not _NAME.fullmatch(name):
        return f"Topic name is invalid: '{name}' has characters other than ASCII letters, digits, '.', '_' and '-'."
    return None


class NamesTaken:
    """The names of one request's topics as they are taken, beside those of the image."""

    def __init__(self, image: MetadataImage) -> None:
        self._image = image
        self._made: dict[str, str] = {_plain(name): name for name in INTERNAL_TOPICS}

    def take(self, name: str) -> None:
        """Note that a topic of this name is created."""
        self._made[_plain(name)] = name

    def problem(self, name: str) -> str | None:
        """Return why the name is too much like another's; None where it is not. No other topic has the same name."""
        if name in INTERNAL_TOPICS or ("." not in name and "_" not in name):
            return None
        made = self._made.get(_plain(name))
        other = made if made not in (None, name) else self._there(name)
        if other is None:
            return None
        return (
            f"Topic '{name}' collides with topic '{other}': their names differ only in '.' and '_', which metrics "
            "write alike; choose another name."
        )

    def _there(self, name: str) -> str | None:
        places = name.count(".") + name.count("_")
        if 2**places > ALIKE_NAMES_TRIED_MAX:
            return next((other for other in self._index.get(_plain(name), ()) if other != name), None)
        parts = re.split("[._]", name)
        for marks in product("._", repeat=places):
            other = "".join(part + mark for part, mark in zip(parts, (*marks, ""), strict=True))
            if other != name and self._image.topic(other) is not None:
                return other
        return None

    @cached_property
    def _index(self) -> dict[str, list[str]]:
        """The names of all topics, by their form in metrics."""
        found: dict[str, list[str]] = {}
        for topic in self._image.topics.values():
            found.setdefault(_plain(topic.name), []).append(topic.name)
        return found


def _plain(name: str) -> str:
    return name.replace(".", "_")
