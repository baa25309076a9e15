"""The client's side of SCRAM-SHA-256 and SCRAM-SHA-512. Sources: RFC 5802, RFC 7677, KIP-84.

Promises:
- The password itself is never sent.
- A broker is believed only once it has proven that it knows the user's keys, over this very exchange.
- A broker cannot have the password guessed from a handful of hashes, nor this side hash without end: iterations are
  bounded on both sides.

Differences from the RFC are Kafka's: no channel binding, no SASLprep.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from typing import Final

from headrace.base.errors import HeadraceError
from headrace.base.limits import SCRAM_CLIENT_ITERATIONS_MAX
from headrace.metadata.access.scram import ITERATIONS_MIN, ScramMechanism

_HEADER: Final = "n,,"
_FIRST: Final = re.compile(
    r"r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+),s=(?P<salt>[A-Za-z0-9+/]+={0,2}),i=(?P<rounds>[0-9]{1,9})(?:,.*)?"
)
_FINAL: Final = re.compile(r"(?:v=(?P<proof>[A-Za-z0-9+/]+={0,2})|e=(?P<error>[^,]+))(?:,.*)?")


class Distrusted(HeadraceError):  # noqa: N818 - a state
    """The broker's messages are malformed, weak, or prove nothing. The text says which, without a full stop."""


class ScramClient:
    """One exchange: `first`, `final`, then `check`."""

    def __init__(self, mechanism: ScramMechanism, user: str, password: str, *, nonce: str) -> None:
        """`nonce`: random and printable, without a comma, new for each exchange."""
        self._mechanism = mechanism
        self._password = password
        self._nonce = nonce
        self._bare = f"n={user.replace('=', '=3D').replace(',', '=2C')},r={nonce}"
        self._expected = b""

    def first(self) -> bytes:
        """The client's first message."""
        return f"{_HEADER}{self._bare}".encode()

    def final(self, challenge: bytes) -> bytes:
        """The client's proof, for the server's first message. Costs as many hashes as that says. Raises Distrusted."""
        found = _FIRST.fullmatch(_text(challenge))
        if found is None:
            raise Distrusted("its SCRAM message is malformed")
        nonce, rounds = found["nonce"], int(found["rounds"])
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise Distrusted("its SCRAM nonce does not go on from this side's")
        if not ITERATIONS_MIN <= rounds <= SCRAM_CLIENT_ITERATIONS_MAX:
            raise Distrusted(
                f"it asks for {rounds} SCRAM iterations, and {ITERATIONS_MIN} to {SCRAM_CLIENT_ITERATIONS_MAX} go"
            )
        digest = self._mechanism.digest
        salted = hashlib.pbkdf2_hmac(digest, self._password.encode(), _bytes(found["salt"]), rounds)
        unproven = f"c={base64.b64encode(_HEADER.encode()).decode()},r={nonce}"
        said = f"{self._bare},{found[0]},{unproven}".encode()
        key = hmac.digest(salted, b"Client Key", digest)
        signature = hmac.digest(hashlib.new(digest, key).digest(), said, digest)
        self._expected = hmac.digest(hmac.digest(salted, b"Server Key", digest), said, digest)
        proof = bytes(a ^ b for a, b in zip(key, signature, strict=True))
        return f"{unproven},p={base64.b64encode(proof).decode()}".encode()

    def check(self, outcome: bytes) -> None:
        """Check the server's proof. Raises Distrusted."""
        assert self._expected, "final comes before"
        found = _FINAL.fullmatch(_text(outcome))
        if found is None:
            raise Distrusted("its SCRAM message is malformed")
        if found["proof"] is None or not hmac.compare_digest(_bytes(found["proof"]), self._expected):
            raise Distrusted("it does not prove that it knows this user")


def _text(message: bytes) -> str:
    try:
        return message.decode("ascii")
    except UnicodeDecodeError as error:
        raise Distrusted("its SCRAM message is malformed") from error


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise Distrusted("its SCRAM message is malformed") from error
