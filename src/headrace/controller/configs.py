"""Decides on changes of topic, broker and group configs.

Promises: each resource of a request is decided on its own, whole: with one bad key, none of its keys change. A refusal
names the key. Sources: KIP-339 (incremental), KIP-133 (the older API, which replaces all), KIP-226 (brokers).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

from headrace.base.ids import BrokerId, TopicPartition
from headrace.base.limits import GROUP_CONFIGS_MAX, GROUP_NAME_CHARS_MAX
from headrace.base.reading import INT_MAX, is_natural, items, natural
from headrace.controller.decision import Decision, Refusal, Verdict
from headrace.controller.topic_names import topic_name_problem
from headrace.metadata.access.listener_configs import METRICS, PREFIX
from headrace.metadata.configs import (
    EVERY_BROKER_DEF,
    EVERY_TOPIC_DEF,
    GROUP_DEFS,
    ConfigDef,
    ConfigType,
    broker_config_problem,
    group_config_conflict,
    group_config_problem,
    topic_config_conflict,
    topic_config_problem,
)
from headrace.metadata.events import ConfigChanged, GroupConfigChanged, MetadataEvent
from headrace.metadata.image import MetadataImage
from headrace.metadata.values import TopicImage
from headrace.wire.errors import ErrorCode

NOBODY: Final = BrokerId(-1)


class ResourceType(IntEnum):
    """The protocol's numbers of resources with configs; loggers and client metrics have none here."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class AlterOp(IntEnum):
    """The operations of IncrementalAlterConfigs, by number (KIP-339)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True)
class Alteration:
    """One key to change. `op` is an `AlterOp`'s number, as it came."""

    key: str
    op: int
    value: str | None


@dataclass(frozen=True, slots=True)
class ResourceAlteration:
    """One resource to change. `kind` is a `ResourceType`'s number, as it came. `name` is a topic's, a group's, a
    broker's id, or empty for all brokers."""

    kind: int
    name: str
    alterations: tuple[Alteration, ...]


@dataclass(frozen=True, slots=True)
class _Target:
    """An existing resource, with its own configs and the table that rules them."""

    topic: TopicImage | None
    broker_id: BrokerId | None
    configs: Mapping[str, str]
    table: Mapping[str, ConfigDef]
    group: str | None = None


class _Bounds(NamedTuple):
    """The limits of group configs: the configs of this broker, which was started with `broker_configs`."""

    broker_configs: Mapping[str, str]
    node: BrokerId


def alter_configs(
    image: MetadataImage,
    resources: Sequence[ResourceAlteration],
    *,
    replace_all: bool = False,
    validate_only: bool = False,
    broker_configs: Mapping[str, str] | None = None,
    node: BrokerId = NOBODY,
) -> Decision[list[Refusal | None]]:
    """Return one answer for each resource, in order; None: done. `replace_all`: every key that is not named goes back
    to its default (the older AlterConfigs). The configs of broker `node`, which was started with `broker_configs`,
    limit those of groups."""
    bounds = _Bounds(broker_configs or {}, node)
    seen: set[tuple[int, str]] = set()
    events: list[MetadataEvent] = []
    answers: list[Refusal | None] = []
    for resource in resources:
        identity = (resource.kind, resource.name)
        if identity in seen:
            verdict: Verdict = Refusal(ErrorCode.INVALID_REQUEST, f"'{resource.name}' is in the request twice.")
        else:
            verdict = _alter(image, resource, replace_all, bounds)
        seen.add(identity)
        answers.append(verdict if isinstance(verdict, Refusal) else None)
        if not isinstance(verdict, Refusal):
            events.extend(verdict)
    return Decision(() if validate_only else tuple(events), answers)


def _alter(image: MetadataImage, resource: ResourceAlteration, replace_all: bool, bounds: _Bounds) -> Verdict:
    target = _target(image, resource)
    if isinstance(target, Refusal):
        return target
    changes: dict[str, str | None] = dict.fromkeys(target.configs) if replace_all else {}
    named: set[str] = set()
    for alteration in resource.alterations:
        if alteration.key in named:
            return Refusal(ErrorCode.INVALID_REQUEST, f"Config {alteration.key} is in the request more than once.")
        named.add(alteration.key)
        value = _altered(image, target, alteration, bounds)
        if isinstance(value, Refusal):
            return value
        changes[alteration.key] = value
    changes = {key: value for key, value in changes.items() if target.configs.get(key) != value}
    if not changes:
        return []
    if target.topic is not None and (refusal := _topic_refusal(image, target.topic, changes)) is not None:
        return refusal
    if target.group is not None:
        after = {key: value for key, value in {**target.configs, **changes}.items() if value is not None}
        conflict = group_config_conflict(image, after, bounds.broker_configs, node=bounds.node) if after else None
        return _bad(conflict) if conflict else [GroupConfigChanged(group=target.group, changes=changes)]
    topic_id = None if target.topic is None else target.topic.id
    return [ConfigChanged(topic_id=topic_id, broker_id=target.broker_id, changes=changes)]


def _topic_refusal(image: MetadataImage, topic: TopicImage, changes: Mapping[str, str | None]) -> Refusal | None:
    """Return why a topic cannot have these configs, each valid by itself, beside its state and other configs; None
    where it can."""
    after = {key: value for key, value in {**topic.configs, **changes}.items() if value is not None}
    if problem := topic_config_conflict(image, after):
        return _bad(problem)
    return _compacts_history(image, topic, changes)


def _compacts_history(image: MetadataImage, topic: TopicImage, changes: Mapping[str, str | None]) -> Refusal | None:
    """Refuse compaction for a topic with history, which is not compacted: keys deleted from the log would come back
    from there."""
    policy = changes.get("cleanup.policy")
    if policy is None or "compact" not in policy:
        return None
    if "compact" in topic.configs.get("cleanup.policy", ""):
        return None
    keys = (TopicPartition(topic.id, partition.index) for partition in topic.partitions)
    if not any(image.durable(key).entries for key in keys):
        return None
    return Refusal(
        ErrorCode.INVALID_CONFIG,
        f"Config cleanup.policy of topic '{topic.name}' cannot have compact added: the topic has durable history, "
        "which is not compacted; create another topic with it and copy the records there.",
    )


def _target(image: MetadataImage, resource: ResourceAlteration) -> _Target | Refusal:
    match resource.kind:
        case ResourceType.TOPIC:
            topic = image.topic(resource.name)
            if topic is None and not resource.name:
                return Refusal(ErrorCode.INVALID_REQUEST, "Configs are of one topic: name it.")
            if topic is None and (problem := topic_name_problem(resource.name)):
                return Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
            if topic is None:
                return Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic '{resource.name}' does not exist")
            return _Target(topic, None, topic.configs, EVERY_TOPIC_DEF)
        case ResourceType.BROKER:
            broker_id = named_broker(image, resource.name)
            if isinstance(broker_id, Refusal):
                return broker_id
            return _Target(None, broker_id, image.broker_configs.get(broker_id) or {}, EVERY_BROKER_DEF)
        case ResourceType.GROUP:
            return _group_target(image, resource.name)
        case _:
            return Refusal(ErrorCode.INVALID_REQUEST, f"Resources of type {resource.kind} have no configs here.")


def _group_target(image: MetadataImage, name: str) -> _Target | Refusal:
    if not 0 < len(name) <= GROUP_NAME_CHARS_MAX:
        message = f"Configs are of one group: name it, with 1 to {GROUP_NAME_CHARS_MAX} characters."
        return Refusal(ErrorCode.INVALID_REQUEST, message)
    configs = image.group_configs.get(name)
    if configs is None and len(image.group_configs) >= GROUP_CONFIGS_MAX:
        message = f"{GROUP_CONFIGS_MAX} groups have configs of their own: remove those of another one first."
        return Refusal(ErrorCode.POLICY_VIOLATION, message)
    return _Target(None, None, configs or {}, GROUP_DEFS, name)


def named_broker(image: MetadataImage, name: str) -> BrokerId | Refusal | None:
    """Return the broker of a config resource's name; None: all brokers."""
    if not name:
        return None
    if not is_natural(name, INT_MAX) or BrokerId(natural(name)) not in image.brokers:
        return Refusal(ErrorCode.INVALID_REQUEST, f"'{name[:20]}' is not the id of a registered broker.")
    return BrokerId(natural(name))


def _altered(image: MetadataImage, target: _Target, alteration: Alteration, bounds: _Bounds) -> str | Refusal | None:
    """Return the key's new value; None: removed."""
    key, value = alteration.key, alteration.value
    if (definition := target.table.get(key)) is None:
        if alteration.op == AlterOp.DELETE:  # it is not set; Kafka's tools remove what they might have set
            return None
        fixed = f"Config {key} cannot be changed while a broker runs: set it where the broker is started."
        problem = _problem(image, target, {key: value}, bounds)  # none, where it is a listener's
        return _bad(problem or _no_listener(image, target, key) or fixed)
    if value is None and alteration.op != AlterOp.DELETE:
        return Refusal(ErrorCode.INVALID_REQUEST, f"Null value not supported for config {key}.")
    if not definition.dynamic:
        return _bad(f"Config {key} cannot be changed while a broker runs: set it where the broker is started.")
    match alteration.op:
        case AlterOp.DELETE:
            return None
        case AlterOp.SET:
            pass
        case AlterOp.APPEND | AlterOp.SUBTRACT if definition.type is ConfigType.LIST and value is not None:
            value = _edited(target.configs.get(key, definition.default or ""), alteration.op, value)
        case AlterOp.APPEND | AlterOp.SUBTRACT:
            return _bad(f"Config {key} is not a list: nothing can be appended to it or subtracted from it.")
        case _:
            return Refusal(ErrorCode.INVALID_REQUEST, f"Unknown operation {alteration.op} on config {key}.")
    if problem := _problem(image, target, {key: value}, bounds):
        return _bad(problem)
    assert value is not None, "null is a problem"
    return definition.kept(value)


def _no_listener(image: MetadataImage, target: _Target, key: str) -> str | None:
    """Return why a config with a listener's prefix would be for nothing: none of these brokers has the listener. Kafka
    accepts it, for a listener may come there while a broker runs."""
    brokers = [known for known in image.brokers.values() if target.broker_id in (None, known.id)]
    names = sorted({each.listener.lower() for known in brokers for each in known.endpoints})
    if not key.startswith(PREFIX) or key.startswith(tuple(f"{PREFIX}{name}." for name in (*names, METRICS))):
        return None
    whose = "any broker" if target.broker_id is None else f"broker {target.broker_id}"
    return f"Config {key} is for no listener of {whose}: after {PREFIX} comes one of {', '.join(names)}."


def _edited(current: str, op: int, value: str) -> str:
    present, named = [item for item in items(current) if item], items(value)
    if op == AlterOp.APPEND:
        return ",".join([*present, *(item for item in named if item not in present)])
    return ",".join(item for item in present if item not in named)


def _problem(image: MetadataImage, target: _Target, configs: Mapping[str, str | None], bounds: _Bounds) -> str | None:
    if target.group is not None:
        return group_config_problem(image, configs, bounds.broker_configs, node=bounds.node)
    return topic_config_problem(configs) if target.topic is not None else broker_config_problem(configs)


def _bad(problem: str | None) -> Refusal:
    assert problem is not None, "only what is wrong is refused"
    return Refusal(ErrorCode.INVALID_CONFIG, problem)
