"""Logs in the broker's directory at a start that are not its own any more.

Their topic was deleted, or their partition went elsewhere, while the broker was away or just before it died.

Promises:
- No log is touched that this broker holds, or keeps for its next owner, or that was written under another directory's
  id.
- A log that an earlier owner has left is removed: the image says that a later assignment has begun since, with all
  acknowledged records.
- An assignment that began with durable history alone lacks the records that history did not have. An earlier log is
  then set aside, for it may be their only copy.
- Every other log that is not held here is set aside under another name, whole, for an operator to remove. Kafka does so
  with its strays (`LogManager.isStrayKraftReplica`).

Such a log is not deleted, though the image is committed and newer than everything written here: it has this process's
own registration. Where an operator has put back an older copy of the metadata directory, that image does not know of
later records. These logs are then their only copy.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from headrace.base.errors import HeadraceError
from headrace.base.ids import BrokerId, DirectoryId, TopicPartition
from headrace.broker.kit.tasks import in_thread
from headrace.logs import get_logger
from headrace.metadata.image import MetadataImage
from headrace.metadata.values import PartitionImage
from headrace.storage.engine.engines import LogEngine, LogRemoval
from headrace.storage.engine.files import LogDirectories
from headrace.storage.engine.identity import LogIdentity

log = get_logger(__name__)

TOLD_MAX: Final = 20
"""The number of set-aside directories that one line names."""


class Strays:
    """One per engine."""

    def __init__(self, engine: LogEngine, node: BrokerId, directory_id: DirectoryId) -> None:
        self._engine = engine
        self._node = node
        self._directory_id = directory_id

    async def clear(self, image: MetadataImage) -> list[LogRemoval]:
        """Clear the directory, once, before any log is opened. `image` has this process's own registration. Returns
        what `LogEngine.begin_delete` has left. An engine whose logs are in no directory of this broker has no strays.
        """
        files = self._engine.files
        return [] if files is None else await in_thread(partial(self._clear, files, image))

    def _clear(self, files: LogDirectories, image: MetadataImage) -> list[LogRemoval]:
        """Clear the directory, in a worker thread."""
        try:
            found = files.identities()
        except OSError as error:
            log.warning("logs that are not held here any more were not looked for", reason=str(error))
            return []
        left, kept = [], []
        for identity in found:
            if identity.directory_id != self._directory_id or self._is_kept(identity, image):
                continue
            try:
                if files.stamped(identity) != identity:
                    continue  # another log is under its name: this is somebody's copy of one
                if self._is_left_behind(identity, image):
                    left.append(self._engine.begin_delete(identity))
                else:
                    kept.append(files.set_aside(identity))
            except (OSError, HeadraceError) as error:
                log.warning("a log that is not held here any more is left", log=str(identity), reason=str(error))
        if kept:
            log.warning(
                "logs that are not held here any more are set aside; remove them where nobody needs them",
                count=len(kept),
                kept_in=[str(directory) for directory in kept[:TOLD_MAX]],
            )
        return [each for each in left if each is not None]

    def _is_kept(self, identity: LogIdentity, image: MetadataImage) -> bool:
        """Whether the log is held here, or was sealed here and is kept until the move is finished."""
        partition = _partition(identity, image)
        return partition is not None and (self._node in partition.replicas or partition.left_by == self._node)

    def _is_left_behind(self, identity: LogIdentity, image: MetadataImage) -> bool:
        """Whether the partition has been handed over since this log was its own, and nothing was given up since."""
        partition = _partition(identity, image)
        if partition is None or may_hold_more(identity, image):
            return False
        return identity.assignment_epoch < partition.assignment_epoch


def may_hold_more(identity: LogIdentity, image: MetadataImage) -> bool:
    """Whether the partition has been recovered from durable history alone since this log was its own. Records
    acknowledged above that history may be nowhere else."""
    partition = _partition(identity, image)
    return partition is not None and identity.assignment_epoch < partition.recovered_epoch


def _partition(identity: LogIdentity, image: MetadataImage) -> PartitionImage | None:
    return image.partition(TopicPartition(identity.topic_id, identity.partition))
