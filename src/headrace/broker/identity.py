"""Who this broker is: the identity file of its data directory, and the claim that it is the only one there.

Promises: an identity is written once, durably, before anything else is; a directory of another broker is refused with
one sentence; two processes never share a directory. Source: Kafka's meta.properties (KIP-866, KIP-858).
"""

from __future__ import annotations

import base64
import json
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headrace.base.errors import UsageError
from headrace.base.ids import BrokerId, ClusterId, DirectoryId
from headrace.base.ports import Disk, Lock, Random

VERSION: Final = 1
FILE_NAME: Final = "identity.json"
LOCK_NAME: Final = ".lock"


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What the data directory says of itself."""

    cluster_id: ClusterId
    broker_id: BrokerId
    directory_id: DirectoryId


def claim(disk: Disk, data: Path) -> Lock:
    """Claim the data directory for this process. Blocking. Raises UsageError where another process has it."""
    _make_durable_directory(disk, data)
    try:
        return disk.lock(data / LOCK_NAME)
    except BlockingIOError as error:
        raise UsageError(
            f"The data directory {data} is in use by another broker: stop that one, or choose another directory."
        ) from error


def _make_durable_directory(disk: Disk, path: Path) -> None:
    """Make it and its missing parents, each durable before anything is made in it.

    The parent is synced also where the directory is there: an earlier start may have been killed in between.
    """
    if disk.exists(path):
        with suppress(PermissionError):  # a parent that may not be read is not one that an earlier start wrote in
            disk.sync_directory(path.parent)
    else:
        _make_durable_directory(disk, path.parent)
        disk.make_directory(path)
        disk.sync_directory(path.parent)


def load_or_create(disk: Disk, data: Path, broker_id: BrokerId, random: Random) -> Identity:
    """The directory's identity; a new cluster's where the directory is empty. Blocking. Raises UsageError where it is
    another broker's, or damaged."""
    path = data / FILE_NAME
    if disk.exists(path):
        found = _load(disk, path)
        if found.broker_id != broker_id:
            raise UsageError(
                f"The data directory {data} belongs to broker {found.broker_id}, not {broker_id}: start it under "
                "that id, or choose another directory."
            )
        return found
    strangers = [name for name in disk.list_directory(data) if name not in (LOCK_NAME, FILE_NAME + ".tmp")]
    if strangers:
        raise UsageError(
            f"The data directory {data} holds {strangers[0]!r} but no {FILE_NAME}: choose an empty directory, or "
            "restore the file."
        )
    identity = Identity(
        cluster_id=ClusterId(_new_id(random)),
        broker_id=broker_id,
        directory_id=DirectoryId(uuid.UUID(int=random.getrandbits(128), version=4)),
    )
    _save(disk, path, identity)
    return identity


def _new_id(random: Random) -> str:
    """A random UUID in Kafka's form: 22 characters of URL-safe base64, never with a leading dash."""
    while True:
        text = base64.urlsafe_b64encode(uuid.UUID(int=random.getrandbits(128), version=4).bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text


def _load(disk: Disk, path: Path) -> Identity:
    file = disk.open(path)
    try:
        fields = json.loads(file.read(0, file.size()))
        return Identity(
            cluster_id=ClusterId(fields["cluster_id"]),
            broker_id=BrokerId(fields["broker_id"]),
            directory_id=DirectoryId(uuid.UUID(fields["directory_id"])),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is damaged: restore it from a copy, or start with an empty directory.") from error
    finally:
        file.close()


def _save(disk: Disk, path: Path, identity: Identity) -> None:
    """Written beside, synced, renamed, and the rename synced: there whole or not at all."""
    fields = {
        "version": VERSION,
        "cluster_id": identity.cluster_id,
        "broker_id": identity.broker_id,
        "directory_id": str(identity.directory_id),
    }
    temporary = path.with_name(path.name + ".tmp")
    file = disk.open(temporary, create=True)
    try:
        file.truncate(0)
        file.append([(json.dumps(fields, indent=1) + "\n").encode()])
        file.sync()
    finally:
        file.close()
    disk.rename(temporary, path)
    disk.sync_directory(path.parent)
