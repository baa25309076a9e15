"""The server's side of SCRAM-SHA-256 and SCRAM-SHA-512. Sources: RFC 5802, RFC 7677, KIP-84.

Promises:
- A client is authenticated only if it knows the password, or the key that follows from it.
- A name that is unknown is answered as one that is known, until the proof fails: with a salt of its own. Salt and
  iterations look as they do for one of the users, so they do not tell it from them.
- Keys and proofs are compared in constant time.

Differences from the RFC are Kafka's: no channel binding, no SASLprep, and names of ASCII characters alone. A client's
last message may have more before the nonce: librdkafka repeats its own part there, in releases before 2.6.1.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from headrace.base.errors import HeadraceError
from headrace.metadata.access.scram import (
    ITERATIONS_MIN,
    NO_SCRAM,
    ScramCredential,
    ScramCredentials,
    ScramMechanism,
)

Find: TypeAlias = Callable[[str], ScramCredential | None]
"""The credential of a user for the mechanism of the exchange."""

_SASL_NAME: Final = r"(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+"
_VALUE: Final = r"[\x01-\x2b\x2d-\x7f]+"
_NONCE: Final = r"[\x21-\x2b\x2d-\x7e]+"
_EXTENSIONS: Final = rf"(?:,[A-Za-z]+={_VALUE})*"
_BASE64: Final = r"[A-Za-z0-9+/]+={0,2}"
_FIRST: Final = re.compile(
    rf"(?P<header>n,(?:a=(?P<authorization>{_SASL_NAME}))?,)"
    rf"(?P<bare>n=(?P<name>{_SASL_NAME}),r=(?P<nonce>{_NONCE})(?P<extensions>{_EXTENSIONS}))"
)
_FINAL: Final = re.compile(
    rf"(?P<unproven>c=(?P<binding>{_BASE64}),r=(?P<nonce>{_NONCE}){_EXTENSIONS}),p=(?P<proof>{_BASE64})"
)


class Look(NamedTuple):
    """The parts of a credential that a client sees before it has proven anything, but for the salt's own bytes."""

    iterations: int
    salt_bytes: int
    is_text: bool
    """Whether the salt has small letters and digits alone, as Kafka's tools make it."""

    @classmethod
    def of(cls, credential: ScramCredential) -> Look:
        salt = credential.salt
        return cls(credential.iterations, len(salt), not salt.translate(None, _TEXT))


_TEXT: Final = b"0123456789abcdefghijklmnopqrstuvwxyz"
USUAL_LOOK: Final = Look(ITERATIONS_MIN, 26, is_text=True)


class AuthenticationFailed(HeadraceError):  # noqa: N818 - reads as a sentence
    """The client is not who it says. The text may be told to it, and leaves open whether name or password is wrong."""


FAILED: Final = "Authentication failed: user name or password is wrong."
MALFORMED: Final = "Authentication failed: the SCRAM message is malformed."


class ScramServer:
    """One exchange: `first`, then `final`."""

    def __init__(
        self,
        mechanism: ScramMechanism,
        find: Find,
        *,
        nonce: str,
        secret: bytes,
        usual_look: Callable[[float], Look] = lambda _: USUAL_LOOK,
    ) -> None:
        """`nonce`: random and printable, without a comma, new for each exchange. `secret`: of the cluster, the same on
        each broker and after a restart; the salts of unknown names follow from it. `usual_look`: see
        `KnownUsers`."""
        self._mechanism = mechanism
        self._find = find
        self._nonce = nonce
        self._secret = secret
        self._usual_look = usual_look
        self._credential: ScramCredential | None = None
        self._is_known = False
        self._said = self._header = ""
        self.claimed = ""
        """The name that the client gave."""
        self.user: str | None = None
        """The user that was authenticated; None: none yet."""

    def first(self, message: bytes) -> bytes:
        """Return the answer to the client's first message. Raises AuthenticationFailed."""
        found = _FIRST.fullmatch(_text(message))
        if found is None:
            raise AuthenticationFailed(MALFORMED)
        name = _decoded(found["name"])
        authorization = found["authorization"]
        if authorization is not None and _decoded(authorization) != name:
            raise AuthenticationFailed("Authentication failed: a client may act for itself alone.")
        credential = self._find(name)
        self._is_known = credential is not None
        self._credential = credential = credential or self._made_up(name)
        self.claimed, self._nonce, self._header = name, found["nonce"] + self._nonce, found["header"]
        answer = f"r={self._nonce},s={_encoded(credential.salt)},i={credential.iterations}"
        self._said = f"{found['bare']},{answer}"
        return answer.encode()

    def final(self, message: bytes) -> bytes:
        """Check the client's proof, and return the server's. Raises AuthenticationFailed."""
        credential, self._credential = self._credential, None
        assert credential is not None, "first comes first, once"
        found = _FINAL.fullmatch(_text(message))
        if found is None:
            raise AuthenticationFailed(MALFORMED)
        said = f"{self._said},{found['unproven']}".encode()
        proof = _bytes(found["proof"])
        signature = self._hmac(credential.stored_key, said)
        nonce = self._nonce.encode()
        is_of_this = hmac.compare_digest(found["nonce"].encode()[-len(nonce) :], nonce)
        is_of_this &= _bytes(found["binding"]) == self._header.encode()
        is_proven = len(proof) == len(signature) and hmac.compare_digest(
            self._hash(bytes(a ^ b for a, b in zip(proof, signature, strict=True))), credential.stored_key
        )
        if not (self._is_known and is_of_this and is_proven):
            raise AuthenticationFailed(FAILED)
        self.user = self.claimed
        return f"v={_encoded(self._hmac(credential.server_key, said))}".encode()

    def _made_up(self, name: str) -> ScramCredential:
        """A credential for a name that has none. It is the same each time, as far as the users are."""
        made = hmac.digest(self._secret, f"{self._mechanism.title} {name}".encode(), "sha512")
        look = self._usual_look(int.from_bytes(made[-8:], "big") / 2**64)
        salt = hashlib.shake_256(made).digest(look.salt_bytes)
        if look.is_text:
            salt = bytes(_TEXT[each % len(_TEXT)] for each in salt)
        keys = made[: self._mechanism.key_bytes]
        return ScramCredential(salt, keys, keys, look.iterations)

    def _hmac(self, key: bytes, message: bytes) -> bytes:
        return hmac.digest(key, message, self._mechanism.digest)

    def _hash(self, message: bytes) -> bytes:
        return hashlib.new(self._mechanism.digest, message).digest()


Looks: TypeAlias = Mapping[ScramMechanism, Sequence[tuple[Look, int]]]
"""How many users have each look, by mechanism, sorted."""


def looks_of(credentials: ScramCredentials) -> Looks:
    """Count them. Takes some 3 ms for 1,000 users."""
    found: dict[ScramMechanism, Counter[Look]] = {}
    for of_user in credentials.values():
        for mechanism, credential in of_user.items():
            found.setdefault(mechanism, Counter())[Look.of(credential)] += 1
    return {mechanism: sorted(counts.items()) for mechanism, counts in found.items()}


class KnownUsers:
    """The users that have credentials."""

    def __init__(self) -> None:
        self.credentials = NO_SCRAM
        self.counted = NO_SCRAM
        """The credentials of which `looks` are; they may be older ones."""
        self.looks: Looks = {}

    def find(self, mechanism: ScramMechanism, user: str) -> ScramCredential | None:
        credentials = self.credentials.get(user)
        return None if credentials is None else credentials.get(mechanism)

    def usual_look(self, mechanism: ScramMechanism, place: float) -> Look:
        """The look of the user at this place, in [0, 1), where users are sorted by it. So an unknown name looks like
        some user, and as often as users look so."""
        counts = self.looks.get(mechanism) or ((USUAL_LOOK, 1),)
        rest = place * sum(number for _, number in counts)
        for look, number in counts:
            rest -= number
            if rest < 0:
                return look
        return counts[-1][0]


def credential_of(mechanism: ScramMechanism, password: str, *, salt: bytes, iterations: int) -> ScramCredential:
    """The credential of this password: `iterations` hashes of work."""
    salted = hashlib.pbkdf2_hmac(mechanism.digest, password.encode(), salt, iterations)
    return credential_of_salted(mechanism, salted, salt=salt, iterations=iterations)


def credential_of_salted(
    mechanism: ScramMechanism, salted_password: bytes, *, salt: bytes, iterations: int
) -> ScramCredential:
    """The credential of a password that the client has salted itself, as AlterUserScramCredentials sends it."""
    client_key = hmac.digest(salted_password, b"Client Key", mechanism.digest)
    return ScramCredential(
        salt=salt,
        stored_key=hashlib.new(mechanism.digest, client_key).digest(),
        server_key=hmac.digest(salted_password, b"Server Key", mechanism.digest),
        iterations=iterations,
    )


def _text(message: bytes) -> str:
    try:
        return message.decode("ascii")
    except UnicodeDecodeError as error:
        raise AuthenticationFailed(MALFORMED) from error


def _decoded(name: str) -> str:
    return name.replace("=2C", ",").replace("=3D", "=")


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise AuthenticationFailed(MALFORMED) from error
