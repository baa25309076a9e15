"""The users of SCRAM that a starting broker knows of its own configs, until the metadata tells more.

Credentials of SCRAM are in the metadata. A broker that starts gets the newest of that from others, and these log in
first. The name and the password by which a broker itself logs in are in its configs. So it lets the others in by these.

Promises: such a user counts at the listener between brokers alone, and only until this process has replayed its own
registration. By then it has replayed all that was committed before its start. An image that has just begun to move may
still lack the credentials. From then on the metadata alone says who has which password.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from headrace.base.ports import Random
from headrace.metadata.access.scram import ITERATIONS_MIN, ScramCredential, ScramMechanism
from headrace.security.jaas import LoginModule
from headrace.security.scram import credential_of

SALT_BYTES: Final = 18


class _Own(NamedTuple):
    user: str
    password: str
    credential: ScramCredential


class OwnUsers:
    """By mechanism. `is_registered` returns whether this process has replayed its own registration."""

    def __init__(self, is_registered: Callable[[], bool], random: Random) -> None:
        self._is_registered = is_registered
        self._random = random
        self._known: dict[ScramMechanism, _Own] = {}
        self._is_over = False

    def learn(self, mechanism: ScramMechanism, module: LoginModule | None) -> None:
        """Take the user of this login module, if it has one."""
        user, password = (module.options.get(each, "") if module else "" for each in ("username", "password"))
        known = self._known.get(mechanism)
        if not user or not password or (known is not None and (known.user, known.password) == (user, password)):
            return
        salt = self._random.getrandbits(8 * SALT_BYTES).to_bytes(SALT_BYTES, "big")
        credential = credential_of(mechanism, password, salt=salt, iterations=ITERATIONS_MIN)
        self._known[mechanism] = _Own(user, password, credential)

    def find(self, mechanism: ScramMechanism, user: str) -> ScramCredential | None:
        """Return the credential of a user that counts now."""
        if self._is_over or self._is_registered():
            self._is_over = True
            self._known.clear()
        own = self._known.get(mechanism)
        return own.credential if own is not None and own.user == user else None
