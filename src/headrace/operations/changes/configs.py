"""Plans of configs of topics: one that is set, or goes back to its default."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from headrace.base.errors import UsageError
from headrace.net.client.admin import Admin
from headrace.net.client.cluster import Cluster
from headrace.operations.changes.plan import Plan


class Setting(NamedTuple):
    """One line of a plan."""

    key: str
    now: str | None
    """None: it is a secret."""
    then: str | None
    """None: the default."""
    documentation: str | None


async def setting(cluster: Cluster, topic: str, key: str, value: str | None) -> Plan:
    """The broker checks the value, and changes nothing. None: back to the default. `known` is the source of the present
    value. Raises UsageError, ClientError.
    """
    admin = Admin(cluster)
    known = {config.name: config for config in await admin.topic_configs(topic)}
    if (config := known.get(key)) is None:
        raise UsageError(f"There is no config '{key}'; 'headrace config list topic {topic}' shows all.")
    set_, delete = ({}, (key,)) if value is None else ({key: value}, ())
    change = partial(admin.alter_topic_configs, topic, set_=set_, delete=delete)
    await change(validate_only=True)
    is_same = config.is_default if value is None else config.value == value
    words = ["config", "unset", "topic", topic, key] if value is None else ["config", "set", "topic", topic]
    words += [] if value is None else [f"{key}={value}"]
    row = Setting(key, config.value, value, config.documentation)
    return Plan(words, [row], change, "It is so already." if is_same else "", config.source)
