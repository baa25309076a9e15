"""A broker whose metadata is from before a forced recovery of the quorum: it stops, remembers why, and can come back.

Promises:
- A broker that has heard of a later lineage never serves again from its old metadata, in this process or the next.
- Its metadata is set aside only after it has heard so. A member of the lineage that holds would forget its votes.
- It forgets its votes in the lineage that is over, too. It remembers the recovery, and never votes in an earlier one.
- The partitions' logs, and the directory's id, stay.
- Interrupted anywhere, `rejoin` is done or can be asked for again.

Blocking.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from headrace.base.errors import CorruptData, UsageError
from headrace.base.ports import Disk
from headrace.broker.home import identity
from headrace.storage.raftlog.metadata_log import image_of_snapshot
from headrace.storage.raftlog.raft_log import open_commit_log, read_commit_log

FILE_NAME: Final = "superseded.json"
METADATA: Final = "metadata"


class Superseded(UsageError):  # noqa: N818 - a state
    """The quorum was recovered without this broker. The text says what to do."""


def note_superseded(disk: Disk, data: Path, reason: str) -> None:
    """Write the reason down for the next start."""
    identity.write_durably(disk, data / FILE_NAME, json.dumps({"reason": reason}, indent=1) + "\n")


def check_superseded(disk: Disk, data: Path) -> None:
    """Raises Superseded where an earlier process noted that the quorum was recovered without it."""
    if reason := superseded_by(disk, data):
        raise Superseded(reason)


def superseded_by(disk: Disk, data: Path) -> str:
    """Return what an earlier process noted of a recovery without it; empty: nothing."""
    path = data / FILE_NAME
    if not disk.exists(path):
        return ""
    file = disk.open(path)
    try:
        return str(json.loads(file.read(0, file.size()))["reason"])
    except (ValueError, KeyError, TypeError):
        return f"{path} says that this broker's metadata counts no more: 'headrace quorum rejoin --data {data}'."
    finally:
        file.close()


def rejoin(disk: Disk, data: Path) -> Path | None:
    """Set the metadata of a superseded broker aside, so that it joins again as a learner. Returns where the metadata
    lies now; None where an earlier try had moved it. The directory is claimed. Raises UsageError."""
    if not disk.exists(data / FILE_NAME):
        raise UsageError(
            f"Nothing in {data} says that its metadata is superseded: start the broker with --join and an address of "
            "the recovered cluster, so that it is told, before it rejoins."
        )
    known = identity.read(disk, data)
    least = max(known.recovery_least, _followed(disk, data) + 1)
    identity.write(disk, data, replace(known, voters=(), recovery_least=least))
    kept = set_aside(disk, data) if disk.exists(data / METADATA) else None
    log, _ = open_commit_log(disk, data / METADATA)
    log.close()
    disk.sync_directory(data)
    disk.remove(data / FILE_NAME)
    disk.sync_directory(data)
    return kept


def _followed(disk: Disk, data: Path) -> int:
    """The number of the recovery that the metadata follows; 0: none, or it cannot be read."""
    if not disk.exists(data / METADATA):
        return 0
    with suppress(CorruptData):
        return image_of_snapshot(read_commit_log(disk, data / METADATA).snapshot).lineage.number
    return 0


def set_aside(disk: Disk, data: Path) -> Path:
    """Rename the metadata, and return its new path."""
    kept = unused(disk, data, f"{METADATA}.superseded")
    disk.rename(data / METADATA, kept)
    disk.sync_directory(data)
    return kept


def unused(disk: Disk, data: Path, name: str) -> Path:
    """Return a path in `data`, made of `name` and a number, that does not exist yet."""
    number = 1
    while disk.exists(data / f"{name}-{number}"):
        number += 1
    return data / f"{name}-{number}"
