"""A config of a topic: set, or back to its default."""

from __future__ import annotations

from functools import partial
from typing import Final, NamedTuple
from urllib.parse import quote

from headrace.base.errors import UsageError
from headrace.console.changes import Change, Plan
from headrace.console.state import Console
from headrace.net.client.admin import Admin


class Asked(NamedTuple):
    """A wish, as the form has it."""

    topic: str
    key: str
    value: str
    """Empty: back to the default."""


class Row(NamedTuple):
    """One line of the plan."""

    key: str
    now: str | None
    then: str | None
    """None: the default."""
    documentation: str | None


async def _plan(console: Console, asked: Asked) -> Plan:
    """The broker checks the value, and changes nothing."""
    admin = Admin(console.cluster)
    known = {config.name: config for config in await admin.topic_configs(asked.topic)}
    if (config := known.get(asked.key)) is None:
        raise UsageError(f"There is no config '{asked.key}'; 'headrace config list topic {asked.topic}' shows all.")
    set_ = {asked.key: asked.value} if asked.value else {}
    delete = () if asked.value else (asked.key,)
    change = partial(admin.alter_topic_configs, asked.topic, set_=set_, delete=delete)
    await change(validate_only=True)
    row = Row(asked.key, config.value, asked.value or None, config.documentation)
    is_same = config.value == asked.value if asked.value else config.is_default
    return Plan([row], change, "It is so already." if is_same else "")


def _words(asked: Asked) -> list[str]:
    if asked.value:
        return ["config", "set", "topic", asked.topic, f"{asked.key}={asked.value}"]
    return ["config", "unset", "topic", asked.topic, asked.key]


CHANGE: Final = Change(
    path="/topic-config",
    template="setting.html",
    title=lambda asked: f"Configs of {asked.topic}",
    asked=Asked,
    is_asked=lambda asked: bool(asked.topic and asked.key),
    plan=_plan,
    words=_words,
    after=lambda asked: f"/topics/{quote(asked.topic)}#configs",
)
