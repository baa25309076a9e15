"""Files of broker configs: TOML, or Kafka's `server.properties`.

Promises: a name that is unknown is refused, with the one that was meant. Settings that Headrace has an option for, or
no use of, are left out, and that is said. No error repeats a value, which may be a secret.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from headrace.base.errors import UsageError
from headrace.base.properties import parse_properties
from headrace.cli.settings.suggestions import BROKER, meant


def read_configs(file: Path, tell: Callable[[str], None] | None) -> dict[str, str]:
    """The configs of a file. `tell` hears of those that are left out. Raises UsageError."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise UsageError(f"--config-file {file} cannot be read: {reason}.") from None
    found = _from_toml(file, text) if file.suffix == ".toml" else parse_properties(text)
    check_known(found, f"--config-file {file}")
    return _without_kafkas_own(found, file, tell)


def _from_toml(file: Path, text: str) -> dict[str, str]:
    try:
        return dict(_flat(tomllib.loads(text), ""))
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"--config-file {file} is no TOML: {error}.") from None


def _flat(table: Mapping[str, Any], above: str) -> Iterator[tuple[str, str]]:
    """`[log.retention]` with `ms = 5` is log.retention.ms=5."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{above}{key}.")
        elif isinstance(value, list):
            yield f"{above}{key}", ",".join(map(_text, value))
        else:
            yield f"{above}{key}", _text(value)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def check_known(names: Iterable[str], where: str) -> None:
    """Raises UsageError, naming all configs that are unknown."""
    from headrace.metadata.configs import broker_config_problem

    unknown = [name for name in names if (broker_config_problem({name: ""}) or "").startswith("Unknown ")]
    if not unknown:
        return
    said = []
    for name in unknown:
        found = meant(BROKER, name, at_start=True)
        said.append(f"{name:.80}" if found is None else f"{name:.80} (did you mean {found.key}?)")
    known = "no config that is known" if len(unknown) == 1 else "no configs that are known"
    raise UsageError(f"{where}: {', '.join(said)} {'is' if len(unknown) == 1 else 'are'} {known}; see docs/CONFIG.md.")


def _without_kafkas_own(found: Mapping[str, str], file: Path, tell: Callable[[str], None] | None) -> dict[str, str]:
    from headrace.metadata.known_configs import TOLD_OTHERWISE

    left = {name: TOLD_OTHERWISE[name] for name in found if name in TOLD_OTHERWISE}
    if left and tell is not None:
        tell(f"{file}: left out {', '.join(f'{name} ({why})' for name, why in left.items())}.")
    return {name: value for name, value in found.items() if name not in left}
