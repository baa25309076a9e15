"""The failures of the world and of the user, as types. A client's mistake is a Kafka error code, not an exception;
our own mistake is an `assert`."""

from __future__ import annotations


class HeadraceError(Exception):
    """Base of every failure that is raised on purpose. Its text is one sentence: what is wrong and what to do."""


class UsageError(HeadraceError):
    """The user asked for something that cannot be: a bad option, a directory of another cluster."""


class CorruptData(HeadraceError):  # noqa: N818 - a state of the data, named as Kafka names it
    """Bytes on a disk, in an object or from a client that are not what they claim to be."""


class StorageFailure(HeadraceError):  # noqa: N818
    """A disk refused a write or a sync: what was not yet synced is in doubt and is never acknowledged."""
