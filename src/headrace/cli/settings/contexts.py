"""Named contexts: clusters that a user works with, each with its brokers and perhaps a file of client properties.

Promises: the file is readable by its owner alone, and is replaced whole. It has no secrets: these stay in the files of
properties, of which only the place is kept. Nothing of these is printed but what is surely no secret.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import typer

from headrace.base.errors import UsageError

_FIELDS: Final = {"bootstrap", "command_config"}
_PLAIN: Final = frozenset(
    {
        "bootstrap.servers",
        "client.id",
        "sasl.mechanism",
        "security.protocol",
        "ssl.ca.location",
        "ssl.certificate.location",
        "ssl.enabled.protocols",
        "ssl.endpoint.identification.algorithm",
        "ssl.key.location",
        "ssl.keystore.location",
        "ssl.keystore.type",
        "ssl.truststore.location",
        "ssl.truststore.type",
    }
)
"""Properties whose values may be shown."""
HIDDEN: Final = "[hidden]"


@dataclass(frozen=True, slots=True)
class Place:
    """How a cluster is reached."""

    bootstrap: str
    command_config: str | None = None


@dataclass(slots=True)
class Contexts:
    """All contexts, and the one in use."""

    current: str | None = None
    places: dict[str, Place] = field(default_factory=dict)

    def named(self, name: str) -> Place:
        """Raises UsageError."""
        if name not in self.places:
            known = ", ".join(sorted(self.places)) or "none yet"
            raise UsageError(
                f"There is no context '{name:.80}', only {known}: add it with 'headrace context add {name:.80} "
                "--bootstrap HOST:PORT'."
            )
        return self.places[name]


def path() -> Path:
    """The file: in XDG_CONFIG_HOME, or where the system keeps the settings of programs."""
    return Path(typer.get_app_dir("headrace")) / "contexts.json"


def load() -> Contexts:
    """The contexts of this user. Raises UsageError."""
    try:
        text = path().read_text(encoding="utf-8")
    except FileNotFoundError:
        return Contexts()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise UsageError(f"Contexts cannot be read from {path()}: {reason}.") from error
    try:
        return _read(json.loads(text))
    except (ValueError, TypeError, AttributeError):
        raise UsageError(f"{path()} has no contexts: remove it, and add them again.") from None


def _read(found: Any) -> Contexts:
    places = {}
    for name, fields in found["contexts"].items() if "contexts" in found else ():
        if not set(fields) <= _FIELDS or not isinstance(fields["bootstrap"], str):
            raise ValueError(name)
        places[name] = Place(**fields)
    current = found.get("current")
    return Contexts(current if current in places else None, places)


def save(contexts: Contexts) -> None:
    """Replace the file. Raises UsageError."""
    file = path()
    text = {"current": contexts.current, "contexts": {name: asdict(each) for name, each in contexts.places.items()}}
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=file.parent, prefix=".contexts")  # it has mode 0600
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            json.dump(text, out, indent=2)
        os.replace(name, file)
    except OSError as error:
        raise UsageError(f"Contexts cannot be written to {file}: {error.strerror}.") from error


def shown(properties: Mapping[str, str]) -> dict[str, str]:
    """Properties as they may be printed."""
    return {key: value if key in _PLAIN else HIDDEN for key, value in properties.items()}
