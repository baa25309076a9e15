"""The failures of the world and of the user, as types. A client's mistake is a Kafka error code, not an exception;
our own mistake is an `assert`."""

from __future__ import annotations

import errno
from typing import Final, TypeVar

AnyError = TypeVar("AnyError", bound=BaseException)


class HeadraceError(Exception):
    """Base of every failure that is raised on purpose. Its text is one sentence: what is wrong and what to do."""


class UsageError(HeadraceError):
    """The user asked for something that cannot be: a bad option, a directory of another cluster."""


class CorruptData(HeadraceError):  # noqa: N818 - a state of the data, named as Kafka names it
    """Bytes on a disk, in an object or from a client that are not what they claim to be."""


class NotAllowed(CorruptData):
    """A private API was asked by a user who lacks the right to: the connection ends, and the bytes are sound."""


class StorageFailure(HeadraceError):  # noqa: N818
    """A disk refused a write or a sync. Data that was not yet synced is in doubt and is never acknowledged."""


class NoRoom(StorageFailure):
    """A disk is full, or a quota used up. Nothing is in doubt: a write that failed may be tried again."""


class FullDisk(OSError):  # noqa: N818
    """A write found no room. A sync never raises this, whatever errno it fails with."""


OUT_OF_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)
"""The errno values with which a write fails on a full disk."""
OUT_OF_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE)
"""The errno values with which opening a file fails where the process, or the machine, has too many open files."""


def without_frames(error: AnyError) -> AnyError:
    """The error as a value that may be kept or returned: its frames, and those of its causes, are dropped. Frames would
    hold every object that was in scope there, and often the error itself, which only the garbage collector then
    frees."""
    link: BaseException | None = error
    while link is not None:
        link.__traceback__ = None
        link = link.__cause__ or link.__context__
    return error
