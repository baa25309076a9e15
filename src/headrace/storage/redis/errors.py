"""Failures of a Redis server, and of the way to it, as types.

Promises: every failure says whether the command may have been executed (`is_unknown`) and whether the same command may
succeed later (`is_retriable`). A refusal of the server means that nothing was executed: our functions write only after
all of their checks.
"""

from __future__ import annotations

from typing import ClassVar, Final

from headrace.base.errors import HeadraceError


class RedisFailure(HeadraceError):  # noqa: N818 - a failure of the world, as StorageFailure
    """Base of all failures of a Redis server."""

    is_retriable: ClassVar[bool] = False
    """Whether the same command may succeed later with nobody doing anything about it."""
    is_unknown: ClassVar[bool] = False
    """Whether the command may have been executed. The caller has to look before it sends it again."""


class RedisUnreachable(RedisFailure):
    """The command was not sent: there is no connection."""

    is_retriable = True


class RedisBusy(RedisFailure):
    """The command was not sent: too much is in flight already (base/limits.py)."""

    is_retriable = True


class RedisOutcomeUnknown(RedisFailure):
    """The command was sent and the answer did not come: the connection broke, or the server was silent too long."""

    is_retriable = True
    is_unknown = True


class RedisGarbled(RedisFailure):
    """The other side sent bytes that are not Redis's protocol, or an answer of another shape than the command has."""

    is_unknown = True


class RedisRefused(RedisFailure):
    """The server answered with an error, and executed nothing. `code` is its first word."""

    def __init__(self, text: str) -> None:
        super().__init__(f"Redis refused a command: {text}")
        self.code: Final = text.partition(" ")[0]
        self.text: Final = text


class RedisLoading(RedisRefused):
    """LOADING: the server reads its data after a start."""

    is_retriable = True


class RedisReadOnly(RedisRefused):
    """READONLY: the server is a replica now. The master has to be looked up again."""

    is_retriable = True


class RedisOutOfMemory(RedisRefused):
    """OOM: `maxmemory` is reached. Reads and deletions still work."""

    is_retriable = True


class RedisMisconfigured(RedisRefused):
    """MISCONF: the server cannot write its files, and therefore takes no writes."""

    is_retriable = True


class RedisDenied(RedisRefused):
    """NOAUTH, WRONGPASS or NOPERM: user or password is missing or wrong, or the user may not do this."""


class RedisNoReplicas(RedisRefused):
    """NOREPLICAS: fewer replicas are connected than `min-replicas-to-write` asks for."""

    is_retriable = True


class RedisClusterDown(RedisRefused):
    """CLUSTERDOWN: the cluster does not serve this slot now."""

    is_retriable = True


class RedisMasterDown(RedisRefused):
    """MASTERDOWN: a replica without its master, or a master that is being replaced."""

    is_retriable = True


class RedisTryAgain(RedisRefused):
    """TRYAGAIN: the slot is moving to another server and the keys are on both."""

    is_retriable = True


class RedisInScript(RedisRefused):
    """BUSY or UNKILLABLE: a script of somebody runs too long."""

    is_retriable = True


class RedisNoFunction(RedisRefused):
    """The library of functions is not loaded in this server. It is loaded again, and the command is sent again."""

    is_retriable = True


class RedisWrongType(RedisRefused):
    """WRONGTYPE: somebody else has written to one of our keys."""


class RedisElsewhere(RedisRefused):
    """MOVED or ASK: another server of the cluster serves the slot."""

    is_retriable = True

    def __init__(self, text: str) -> None:
        super().__init__(text)
        _, slot, place = text.split(" ")[:3]
        host, _, port = place.rpartition(":")
        self.slot: Final = int(slot)
        self.host: Final = host.strip("[]")
        """Empty: the host that answered."""
        self.port: Final = int(port)


class RedisMoved(RedisElsewhere):
    """MOVED: for good."""


class RedisAsk(RedisElsewhere):
    """ASK: for this one command, behind ASKING."""


_BY_CODE: Final[dict[str, type[RedisRefused]]] = {
    "LOADING": RedisLoading,
    "READONLY": RedisReadOnly,
    "OOM": RedisOutOfMemory,
    "MISCONF": RedisMisconfigured,
    "NOAUTH": RedisDenied,
    "WRONGPASS": RedisDenied,
    "NOPERM": RedisDenied,
    "NOREPLICAS": RedisNoReplicas,
    "CLUSTERDOWN": RedisClusterDown,
    "MASTERDOWN": RedisMasterDown,
    "TRYAGAIN": RedisTryAgain,
    "BUSY": RedisInScript,
    "UNKILLABLE": RedisInScript,
    "WRONGTYPE": RedisWrongType,
    "MOVED": RedisMoved,
    "ASK": RedisAsk,
}


def refusal(text: str) -> RedisRefused:
    """The error of a server as a typed failure. An error that is not known is a RedisRefused itself."""
    if text.startswith("ERR Function not found"):
        return RedisNoFunction(text)
    kind = _BY_CODE.get(text.partition(" ")[0], RedisRefused)
    try:
        return kind(text)
    except ValueError:  # a MOVED that is none
        return RedisRefused(text)
