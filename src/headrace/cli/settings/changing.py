"""The work of `headrace config` and `headrace quota`: reads and changes settings, and finds what was meant.

Promises: a suggested command was tried without effect first (`validate_only`), so that it is not refused.
"""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

from headrace.base.errors import HeadraceError, UsageError
from headrace.base.reading import INT_MAX, fraction, natural
from headrace.cli.command_config import as_reached
from headrace.cli.settings.suggestions import TABLES, meant
from headrace.metadata.access.quotas import CLIENT_ID, IP, QUOTA_DOCS, USER, keys_of, quota_entity
from headrace.net.client.access import quotas as of_clients
from headrace.net.client.admin import Admin
from headrace.net.client.cluster import Cluster
from headrace.net.client.errors import RefusedError
from headrace.wire.errors import ErrorCode

ALL: Final = "all"
ENTITIES: Final = {"client": CLIENT_ID, "user": USER, "ip": IP}
"""Kinds of things whose settings are quotas, and Kafka's words for them."""
REFUSALS: Final = (ErrorCode.INVALID_CONFIG, ErrorCode.INVALID_REQUEST)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting, as it is in force."""

    name: str
    value: str | None
    """None: none, or a secret."""
    source: str
    is_default: bool
    documentation: str | None


@dataclass(frozen=True, slots=True)
class Subject:
    """The thing that settings are of."""

    kind: str
    """topic, broker, group, client, user or ip."""
    name: str

    @property
    def entity(self) -> Mapping[str, str | None]:
        """The parts of the quotas' entity."""
        return {ENTITIES[self.kind]: self.name}

    @property
    def broker(self) -> int | None:
        """The broker's id; None: all brokers. Raises UsageError."""
        if self.name == ALL:
            return None
        try:
            return natural(self.name, INT_MAX)
        except ValueError:
            raise UsageError(f"'{self.name:.60}' is no broker's id: give a number, or {ALL} for all brokers.") from None


async def settings_of(cluster: Cluster, subject: Subject) -> list[Setting]:
    """All settings of a thing, in the broker's order; of quotas those that are set. Raises ClientError."""
    admin = Admin(cluster)
    if subject.kind in ENTITIES:
        parts = subject.entity
        found = (await of_clients.quotas(cluster, parts, strict=True)).get(quota_entity(parts), {})
        return [quota_setting(key, value) for key, value in found.items()]
    if subject.kind == "topic":
        values = await admin.topic_configs(subject.name)
    elif subject.kind == "group":
        values = await admin.group_configs(subject.name)
    else:
        broker = subject.broker
        values = await (admin.default_broker_configs() if broker is None else admin.broker_configs(broker))
    return [
        Setting(
            name=each.name,
            value=each.value,
            source=each.source,
            is_default=each.is_default,
            documentation=each.documentation,
        )
        for each in values
    ]


def quota_setting(key: str, value: float) -> Setting:
    """A quota as a setting."""
    text = str(int(value)) if value.is_integer() else str(value)
    return Setting(name=key, value=text, source="CLIENT_QUOTA", is_default=False, documentation=QUOTA_DOCS.get(key))


async def change(
    cluster: Cluster,
    subject: Subject,
    set_: Mapping[str, str],
    unset: Sequence[str] = (),
    *,
    validate_only: bool = False,
) -> None:
    """Set and remove settings of one thing, all or none. Raises ClientError, UsageError."""
    admin = Admin(cluster)
    if subject.kind in ENTITIES:
        numbers = numbers_of(set_)
        await of_clients.alter(cluster, subject.entity, set_=numbers, delete=unset, validate_only=validate_only)
    elif subject.kind == "topic":
        await admin.alter_topic_configs(subject.name, set_=set_, delete=unset, validate_only=validate_only)
    elif subject.kind == "group":
        await admin.alter_group_configs(subject.name, set_=set_, delete=unset, validate_only=validate_only)
    else:
        await admin.alter_broker_configs(subject.broker, set_=set_, delete=unset, validate_only=validate_only)


def numbers_of(pairs: Mapping[str, str]) -> dict[str, float]:
    """Quotas' values. Raises UsageError."""
    found = {}
    for key, text in pairs.items():
        try:
            found[key] = fraction(text)
        except ValueError:
            raise UsageError(
                f"Quota {key} is a number: '{text:.60}' is none; write for example {key}=1048576."
            ) from None
    return found


async def unset(bootstrap: str, cluster: Cluster, subject: Subject, keys: Sequence[str]) -> None:
    """Take settings back to their defaults. Brokers take a name that is unknown for one that is not set. Raises
    HeadraceError."""
    if subject.kind not in ENTITIES and subject.name != ALL:
        known = [each.name for each in await settings_of(cluster, subject)]
        for key in keys:
            if key not in known:
                raise UsageError(unknown(subject, key, known, bootstrap))
    await change(cluster, subject, {}, keys)


async def change_or_suggest(bootstrap: str, cluster: Cluster, subject: Subject, set_: Mapping[str, str]) -> None:
    """Set settings; where one is refused, say what may have been meant. Raises HeadraceError."""

    async def allowed(pairs: Mapping[str, str]) -> None:
        await change(cluster, subject, pairs, validate_only=True)

    try:
        await change(cluster, subject, set_)
    except RefusedError as error:
        words = ["config", "set", subject.kind, subject.name]
        hint = await suggestion(error, bootstrap, subject.kind, set_, words, allowed)
        if hint is None:
            raise
        raise HeadraceError(hint) from error


async def suggestion(
    error: RefusedError,
    bootstrap: str,
    kind: str,
    pairs: Mapping[str, str],
    words: Sequence[str],
    allowed: Callable[[Mapping[str, str]], Awaitable[None]],
    option: str = "",
) -> str | None:
    """The error, with a command that would not be refused; None where none is known. `words` are the command's before
    its KEY=VALUE, each of which comes after `option`. `allowed` tries these, without effect."""
    if error.code not in REFUSALS:
        return None
    better = {key: likely(kind, key, value) for key, value in pairs.items()}
    changed = {key: found for key, found in better.items() if found != (key, pairs[key])}
    wanted = {key: value for key, value in better.values() if value is not None}
    if not changed or len(wanted) < len(pairs):
        return _looked_up(error, bootstrap, kind, changed, words)
    try:
        await allowed(wanted)
    except HeadraceError:
        return None
    given = [part for key, value in wanted.items() for part in (option, f"{key}={value}") if part]
    return _with_command(error, changed, ["headrace", *words, *given, *as_reached(bootstrap)])


def _looked_up(
    error: RefusedError, bootstrap: str, kind: str, changed: Mapping[str, tuple[str, str | None]], words: Sequence[str]
) -> str | None:
    """As `suggestion`, where the name is known and the value is not: a command that explains the config."""
    names = [name for name, _ in changed.values()]
    if not names or tuple(words[:2]) != ("config", "set") or kind in ENTITIES:
        return None
    return _with_command(error, changed, ["headrace", "config", "get", *words[2:], *names, *as_reached(bootstrap)])


def _with_command(error: RefusedError, changed: Mapping[str, tuple[str, str | None]], command: Sequence[str]) -> str:
    names = ", ".join(dict.fromkeys(name for name, _ in changed.values()))
    return f"{str(error).rstrip('.')}. Did you mean {names}? Run: {shlex.join(command)}"


def likely(kind: str, key: str, value: str) -> tuple[str, str | None]:
    """The setting that was meant, which may be this one."""
    if kind in ENTITIES:
        near = get_close_matches(key.lower().replace(".", "_"), keys_of(ENTITIES[kind]), n=1)
        return (near[0], value) if near else (key, value)
    known = TABLES[kind].get(key)
    if known is not None and known.dynamic and known.problem(value) is None:
        return key, value
    return meant(kind, key, value) or (key, value)


def unknown(subject: Subject, name: str, known: Sequence[str], bootstrap: str) -> str:
    """The error of a setting that a thing does not have."""
    near = [] if subject.kind in ENTITIES else [found.key for found in [meant(subject.kind, name)] if found is not None]
    words = ["config", "get", subject.kind, subject.name, near[0]] if near and near[0] in known else []
    command = shlex.join(
        ["headrace", *(words or ["config", "list", subject.kind, subject.name]), *as_reached(bootstrap)]
    )
    hint = f"Did you mean {near[0]}? Run: {command}" if words else f"Run: {command}"
    what = "quota" if subject.kind in ENTITIES else "config"
    return f"There is no {what} '{name:.80}' of {subject.kind} '{subject.name}'. {hint}"
