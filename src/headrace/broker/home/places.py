"""The directories of this broker: each records its owner, and the data directory records that it was made.

Promises:
- A broker never takes a missing directory of its own, such as an unmounted volume, for a new and empty one. It would
  lead empty logs, and its followers would truncate theirs to match.
- Each directory's owner is durable before the note that it was made. A crash in a first start leaves nothing that is
  refused later.

The owner file is as Kafka's meta.properties in each of log.dirs (KIP-858), in its format, so that Kafka's tools read
it.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Final

from headrace.base.errors import UsageError
from headrace.base.ports import Disk
from headrace.broker.home.identity import MADE, PLACES, Identity, make_durable_directory, write_durably

OWNER: Final = "meta.properties"


def check_places(disk: Disk, data: Path, identity: Identity) -> None:
    """Check that every directory that was made is still there. Changes nothing. Blocking. Raises UsageError,
    OSError."""
    made = _made(disk, data)
    for name in PLACES:
        owner = data / name / OWNER
        if disk.exists(owner):
            if f"directory.id={_id(identity)}\n" not in _read(disk, owner):
                raise UsageError(
                    f"{owner} names another broker's directory than this one: put this broker's own there, or mount it."
                )
        elif name in made:
            raise UsageError(
                f"{data / name} is not the directory that this broker has filled, for it lacks {OWNER}: mount its "
                "volume, or restore it. Where it is lost, and others have replicas, start the broker with an empty "
                f"data directory and --join; where nobody has, remove {data / MADE} to go on without what only that "
                "directory held."
            )


def make_places(disk: Disk, data: Path, identity: Identity) -> None:
    """Make the directories that never were. Called after `check_places`, once the commit log is there. Blocking. Raises
    OSError.

    A directory that is there and not noted as made is written again: a first start may have died before it was durable.
    """
    made = _made(disk, data)
    for name in PLACES:
        if name not in made or not disk.exists(data / name / OWNER):
            make_durable_directory(disk, data / name)
            write_durably(disk, data / name / OWNER, _text(identity))
    if set(made) != set(PLACES):
        write_durably(disk, data / MADE, json.dumps({"version": 1, "made": PLACES}) + "\n")


def _made(disk: Disk, data: Path) -> list[str]:
    if not disk.exists(data / MADE):
        return []
    try:
        return [str(name) for name in json.loads(_read(disk, data / MADE))["made"]]
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{data / MADE} is damaged: remove it, once all of {', '.join(PLACES)} are there.") from error


def _text(identity: Identity) -> str:
    return f"version=1\ncluster.id={identity.cluster_id}\nnode.id={identity.broker_id}\ndirectory.id={_id(identity)}\n"


def _id(identity: Identity) -> str:
    """Return the directory's id as Kafka writes ids."""
    return base64.urlsafe_b64encode(identity.directory_id.bytes).decode().rstrip("=")


def _read(disk: Disk, path: Path) -> str:
    file = disk.open(path)
    try:
        return file.read(0, file.size()).decode(errors="replace")
    finally:
        file.close()
