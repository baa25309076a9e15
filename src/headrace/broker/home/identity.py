"""The identity file of a broker's data directory, and the lock that claims the directory for one process.

Promises:
- An identity is written once, durably, before anything else is.
- A broker refuses the directory of another broker, with one sentence.
- Two processes never share a directory.
- A cluster is born once: by a broker that starts alone, or by the voters that `up --nodes N` names to all before any of
  them starts. A broker that joins a cluster has no voters in its identity.

Source: Kafka's meta.properties (KIP-866, KIP-858, KIP-853).
"""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from headrace.base.errors import UsageError
from headrace.base.ids import BrokerId, ClusterId, DirectoryId
from headrace.base.ports import Disk, Lock, Random
from headrace.base.values import Value

VERSION: Final = 2
FILE_NAME: Final = "identity.json"
LOCK_NAME: Final = ".lock"
PLACES: Final = ("logs", "journal")
"""Directories of the data directory that may be volumes of their own (`places`)."""
LOCAL: Final = "local"
BESIDE: Final = ("redis", "security")
"""Directories of `headrace up`: of a Redis that it runs for this broker, and of what --secure makes. They may be there
before the identity."""
MADE: Final = "places.json"
"""The file that notes that these directories were made once."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class BornVoter(Value):
    """A voter of the cluster's birth, and the address where it listened then (None: it was alone)."""

    broker_id: BrokerId
    directory_id: DirectoryId
    host: str | None = None
    port: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Identity(Value):
    """The contents of the identity file."""

    cluster_id: ClusterId
    broker_id: BrokerId
    directory_id: DirectoryId
    voters: tuple[BornVoter, ...]
    """The voters of the cluster's birth; empty where this broker joined an existing cluster. The commit log holds the
    voters of today."""
    engine: str = LOCAL
    """The keeper of the cluster's logs (`metadata.values.Engine`)."""
    recovery_least: int = 0
    """The number of the recovery that superseded this broker's old metadata. Until it has a new log, it follows no
    earlier recovery. 0: there was none."""


def claim(disk: Disk, data: Path) -> Lock:
    """Claim the data directory for this process. Blocking. Raises UsageError where another process has it."""
    make_durable_directory(disk, data)
    try:
        return disk.lock(data / LOCK_NAME)
    except BlockingIOError as error:
        raise UsageError(
            f"The data directory {data} is in use by another broker: stop that one, or choose another directory."
        ) from error


def make_durable_directory(disk: Disk, path: Path) -> None:
    """Make the directory and its missing parents. Each is durable before anything is made in it.

    The parent is synced even where the directory exists: an earlier start may have been killed in between.
    """
    if disk.exists(path):
        with suppress(PermissionError):  # a parent that may not be read is not one that an earlier start wrote in
            disk.sync_directory(path.parent)
    else:
        make_durable_directory(disk, path.parent)
        disk.make_directory(path)
        disk.sync_directory(path.parent)


def load_or_create(disk: Disk, data: Path, broker_id: BrokerId, random: Random) -> Identity:
    """Return the directory's identity. In an empty directory, write and return that of a new cluster of this broker
    alone. Blocking. Raises UsageError where the directory is another broker's, or damaged."""
    found = load(disk, data, broker_id)
    if found is None:
        (found,) = born(random, {broker_id: None})
        write(disk, data, found)
    return found


def load(disk: Disk, data: Path, broker_id: BrokerId, engine: str = LOCAL) -> Identity | None:
    """Return the directory's identity; None where the directory is empty. Blocking. Raises UsageError, also where its
    broker has another engine."""
    path = data / FILE_NAME
    if disk.exists(path):
        found = _load(disk, path)
        if found.broker_id != broker_id:
            raise UsageError(
                f"The data directory {data} belongs to broker {found.broker_id}, not {broker_id}: start it under "
                "that id, or choose another directory."
            )
        if found.engine != engine:
            raise UsageError(
                f"The data directory {data} belongs to a broker of the engine '{found.engine}': start it with --engine "
                f"{found.engine}, or choose another directory."
            )
        return found
    names = [name for name in disk.list_directory(data) if name not in (LOCK_NAME, FILE_NAME + ".tmp", *BESIDE)]
    strangers = [name for name in names if name not in PLACES or disk.list_directory(data / name)]  # mount points
    if strangers:
        raise UsageError(
            f"The data directory {data} holds {strangers[0]!r} but no {FILE_NAME}: choose an empty directory, or "
            "restore the file."
        )
    return None


def check_memory(disk: Disk, data: Path) -> None:
    """Refuse to start without the commit log where this broker has worked before. The log says how the broker voted:
    without it, the broker could vote twice in one term. Blocking. Raises UsageError."""
    metadata = data / "metadata"
    logs = data / "logs"
    later = [logs] if disk.exists(logs) and disk.list_directory(logs) else []  # an empty one may be a mount point
    later += [data / MADE] if disk.exists(data / MADE) else []
    if not later:  # both are made after the commit log
        return
    if not disk.exists(metadata) or not any(name.endswith(".wal") for name in disk.list_directory(metadata)):
        raise UsageError(
            f"{metadata} is empty, but {later[-1]} is there: restore it, or, where other brokers keep the "
            "cluster's metadata, start this one with an empty data directory and --join."
        )


def born(random: Random, brokers: Mapping[BrokerId, tuple[str, int] | None]) -> list[Identity]:
    """Return the identities of a new cluster of these brokers. All are voters, and each broker's value is the address
    where it listens."""
    cluster_id = new_cluster_id(random)
    voters = tuple(
        BornVoter(
            broker_id=broker_id,
            directory_id=new_directory_id(random),
            host=address[0] if address else None,
            port=address[1] if address else None,
        )
        for broker_id, address in brokers.items()
    )
    return [
        Identity(cluster_id=cluster_id, broker_id=voter.broker_id, directory_id=voter.directory_id, voters=voters)
        for voter in voters
    ]


def joining(random: Random, cluster_id: ClusterId, broker_id: BrokerId, engine: str = LOCAL) -> Identity:
    """Return the identity of a broker that joins an existing cluster."""
    directory_id = new_directory_id(random)
    return Identity(cluster_id=cluster_id, broker_id=broker_id, directory_id=directory_id, voters=(), engine=engine)


def new_directory_id(random: Random) -> DirectoryId:
    return DirectoryId(uuid.UUID(int=random.getrandbits(128), version=4))


def new_cluster_id(random: Random) -> ClusterId:
    """Return a random UUID in Kafka's form: 22 characters of URL-safe base64, never with a leading dash."""
    while True:
        text = base64.urlsafe_b64encode(uuid.UUID(int=random.getrandbits(128), version=4).bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return ClusterId(text)


def read(disk: Disk, data: Path) -> Identity:
    """Return the identity of the directory, whichever broker's it is. Blocking. Raises UsageError where it is no
    broker's, or damaged."""
    path = data / FILE_NAME
    if not disk.exists(path):
        raise UsageError(f"{data} is no broker's data directory (it has no {FILE_NAME}): name one with --data.")
    return _load(disk, path)


def _load(disk: Disk, path: Path) -> Identity:
    file = disk.open(path)
    try:
        return decode(json.loads(file.read(0, file.size())))
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is damaged: restore it from a copy, or start with an empty directory.") from error
    finally:
        file.close()


def _voter(fields: Mapping[str, Any]) -> BornVoter:
    return BornVoter(
        broker_id=BrokerId(fields["broker_id"]),
        directory_id=DirectoryId(uuid.UUID(fields["directory_id"])),
        host=fields.get("host"),
        port=fields.get("port"),
    )


def write(disk: Disk, data: Path, identity: Identity) -> None:
    """Write the identity file, whole or not at all. Blocking."""
    write_durably(disk, data / FILE_NAME, json.dumps(encode(identity), indent=1) + "\n")


def encode(identity: Identity) -> dict[str, Any]:
    """Return the identity as a JSON object."""
    return {
        "version": VERSION,
        "cluster_id": identity.cluster_id,
        "broker_id": identity.broker_id,
        "directory_id": str(identity.directory_id),
        "voters": [asdict(voter) | {"directory_id": str(voter.directory_id)} for voter in identity.voters],
        "recovery_least": identity.recovery_least,
        **({} if identity.engine == LOCAL else {"engine": identity.engine}),
    }


def decode(fields: Mapping[str, Any]) -> Identity:
    """Raises ValueError, KeyError and TypeError on what `encode` did not make."""
    broker_id, directory_id = BrokerId(fields["broker_id"]), DirectoryId(uuid.UUID(fields["directory_id"]))
    alone = ({"broker_id": broker_id, "directory_id": str(directory_id)},)  # version 1 knew no other voter
    return Identity(
        cluster_id=ClusterId(fields["cluster_id"]),
        broker_id=broker_id,
        directory_id=directory_id,
        voters=tuple(_voter(voter) for voter in fields.get("voters", alone)),
        engine=str(fields.get("engine", LOCAL)),
        recovery_least=int(fields.get("recovery_least", 0)),
    )


def write_durably(disk: Disk, path: Path, text: str) -> None:
    """Write the file beside `path`, sync it, rename it, and sync the rename. Blocking."""
    temporary = path.with_name(path.name + ".tmp")
    file = disk.open(temporary, create=True)
    try:
        file.truncate(0)
        file.append([text.encode()])
        file.sync()
    finally:
        file.close()
    disk.rename(temporary, path)
    disk.sync_directory(path.parent)
