"""SCRAM credentials of users, as the cluster keeps them: enough to check a password, and not the password. Sources:
RFC 5802, KIP-84, KIP-554.

Never does: show its keys, in a repr or in the image for people.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, TypeAlias

import immutables

from headrace.base.values import Value


class ScramMechanism(IntEnum):
    """By Kafka's numbers."""

    UNKNOWN = 0
    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2

    @property
    def title(self) -> str:
        """The name by which clients ask for it."""
        return self.name.replace("_", "-")

    @property
    def digest(self) -> str:
        """The name of its hash function in `hashlib`."""
        return self.name.removeprefix("SCRAM_").replace("_", "").lower()

    @property
    def key_bytes(self) -> int:
        """The length of its keys."""
        return 64 if self is ScramMechanism.SCRAM_SHA_512 else 32


ITERATIONS_MIN: Final = 4_096
ITERATIONS_MAX: Final = 16_384
"""Both as in Kafka. Each costs whoever tries a password."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ScramCredential(Value):
    """The knowledge of a server about a password, for one mechanism."""

    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int


ScramCredentials: TypeAlias = immutables.Map[str, immutables.Map[ScramMechanism, ScramCredential]]
"""By user, without `User:`, then by mechanism. A user with none is absent."""
NO_SCRAM: Final[ScramCredentials] = immutables.Map()
_NONE: Final[immutables.Map[ScramMechanism, ScramCredential]] = immutables.Map()


def with_credential(
    known: ScramCredentials, user: str, mechanism: ScramMechanism, credential: ScramCredential | None
) -> ScramCredentials:
    """These, with that one in the place of the user's last one for the mechanism. None: without one."""
    mine = known.get(user, _NONE)
    if mine.get(mechanism) == credential:
        return known
    mine = mine.delete(mechanism) if credential is None else mine.set(mechanism, credential)
    return known.set(user, mine) if mine else known.delete(user)
