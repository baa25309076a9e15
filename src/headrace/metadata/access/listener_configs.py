"""Configs of one listener, or of one of its mechanisms: `listener.name.NAME.KEY`, `listener.name.NAME.MECHANISM.KEY`.

Promises: a prefixed config has the type and the bounds of the config without the prefix, and goes before it. Names of
listeners and mechanisms are in lower case there, as in Kafka. Source: Kafka's AbstractConfig.valuesWithPrefixOverride.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from headrace.metadata.access.sasl_configs import JAAS
from headrace.metadata.config_defs import ConfigDef

PREFIX: Final = "listener.name."
METRICS: Final = "metrics"
"""The endpoint of metrics has certificates as a listener of this name."""
MECHANISMS: Final = ("plain", "scram-sha-256", "scram-sha-512", "oauthbearer", "gssapi")
_FIRST_PARTS: Final = ("ssl.", "sasl.")
_OF_MECHANISMS: Final = ("sasl.", "connections.max.reauth.ms")
_WHOLE: Final = ("connections.max.reauth.ms",)


def listener_def(key: str, defs: Mapping[str, ConfigDef]) -> ConfigDef | None:
    """The definition of a config with a prefix, under its whole name; None: it has none, or is not known. `defs`: the
    configs without one."""
    bare = _without_mechanism(key)
    if bare is not None:
        return _renamed(key, bare, defs)
    if not key.startswith(PREFIX):
        return None
    rest = key.removeprefix(PREFIX)
    for at, sign in enumerate(rest):
        if sign != "." or not at:
            continue
        of_listener = rest[at + 1 :]
        bare = _without_mechanism(of_listener)
        if bare is None and (of_listener in _WHOLE or of_listener.startswith(_FIRST_PARTS)):
            bare = of_listener if of_listener != JAAS.key else None
        if bare is not None and (found := _renamed(key, bare, defs)) is not None:
            return found
    return None


def keys_of(listener: str, key: str, mechanism: str | None = None) -> tuple[str, ...]:
    """The names under which a value for the listener is looked for, the nearest first. The last is the bare one."""
    prefix = f"{PREFIX}{listener.lower()}."
    bare = (prefix + key, key)
    if mechanism is None:
        return bare
    of_mechanism = f"{mechanism.lower()}.{key}"
    return (prefix + of_mechanism, of_mechanism, *bare)


def _without_mechanism(key: str) -> str | None:
    """The rest of a key that begins with a mechanism, where mechanisms have such a config."""
    mechanism, _, rest = key.partition(".")
    return rest if mechanism in MECHANISMS and rest.startswith(_OF_MECHANISMS) else None


def _renamed(key: str, bare: str, defs: Mapping[str, ConfigDef]) -> ConfigDef | None:
    found = JAAS if bare == JAAS.key else defs.get(bare)
    return None if found is None else replace(found, key=key)
