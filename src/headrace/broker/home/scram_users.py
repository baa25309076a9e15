"""Users with SCRAM credentials that a cluster is born with, as Kafka's `kafka-storage format --add-scram` takes them.

`SCRAM-SHA-256=[name=admin,password=secret]`, and where wanted `iterations=` and `salt=`. Instead of the password there
may be `saltedpassword=`, with a salt. Both are Base64. Values may be quoted, so that they may hold a comma. Source:
Kafka's ScramParser. Never does: show a password.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Final

from headrace.base.errors import UsageError
from headrace.base.limits import ACL_TEXT_CHARACTERS_MAX, SCRAM_SALT_BYTES_MAX
from headrace.base.ports import Random
from headrace.metadata.access.scram import ITERATIONS_MAX, ITERATIONS_MIN, ScramCredential, ScramMechanism
from headrace.metadata.events import ScramCredentialChanged
from headrace.security.scram import credential_of, credential_of_salted

MECHANISMS: Final = {each.title: each for each in ScramMechanism if each is not ScramMechanism.UNKNOWN}
SALT_BYTES: Final = 26
"""As many as Kafka's tools make."""
_WHOLE: Final = re.compile(r"(?P<mechanism>[A-Z0-9-]+)=\[(?P<options>.*)\]", re.DOTALL)
_OPTION: Final = re.compile(r"""\s*(?P<key>[a-z]+)=(?:"(?P<quoted>[^"]*)"|(?P<bare>[^,"]*?))\s*(?:,|$)""")


def scram_user(text: str, random: Random) -> ScramCredentialChanged:
    """Return the event that makes this user. Raises UsageError. Blocks for as long as the hashes take, some 10 ms."""
    whole = _WHOLE.fullmatch(text.strip())
    if whole is None or whole["mechanism"] not in MECHANISMS:
        raise UsageError(f"A SCRAM user is MECHANISM=[name=NAME,password=PASSWORD], with {' or '.join(MECHANISMS)}.")
    mechanism, options = MECHANISMS[whole["mechanism"]], _options(whole["options"])
    name = options.get("name", "")
    if not 0 < len(name) <= ACL_TEXT_CHARACTERS_MAX:
        raise UsageError(f"A SCRAM user has a name of 1 to {ACL_TEXT_CHARACTERS_MAX} characters: name=NAME.")
    return ScramCredentialChanged(user=name, mechanism=mechanism, credential=_credential(mechanism, options, random))


def _credential(mechanism: ScramMechanism, options: Mapping[str, str], random: Random) -> ScramCredential:
    iterations = options.get("iterations", str(ITERATIONS_MIN))
    if not iterations.isascii() or not iterations.isdigit() or not ITERATIONS_MIN <= int(iterations) <= ITERATIONS_MAX:
        raise UsageError(f"The iterations of a SCRAM user are from {ITERATIONS_MIN} to {ITERATIONS_MAX}.")
    password, salted = options.get("password"), options.get("saltedpassword")
    if (password is None) == (salted is None) or password == "":
        raise UsageError("A SCRAM user has password=PASSWORD, or saltedpassword=BASE64.")
    salt = _decoded("salt", options["salt"]) if "salt" in options else _random_salt(random)
    if not 0 < len(salt) <= SCRAM_SALT_BYTES_MAX:
        raise UsageError(f"The salt of a SCRAM user has 1 to {SCRAM_SALT_BYTES_MAX} bytes.")
    if password is not None:
        return credential_of(mechanism, password, salt=salt, iterations=int(iterations))
    assert salted is not None, "one of them is given"
    key = _decoded("saltedpassword", salted)
    if len(key) != mechanism.key_bytes or "salt" not in options:
        raise UsageError(f"A salted password for {mechanism.title} has {mechanism.key_bytes} bytes, and salt=BASE64.")
    return credential_of_salted(mechanism, key, salt=salt, iterations=int(iterations))


def _random_salt(random: Random) -> bytes:
    letters = b"0123456789abcdefghijklmnopqrstuvwxyz"
    return bytes(letters[random.randrange(0, len(letters))] for _ in range(SALT_BYTES))


def _options(text: str) -> dict[str, str]:
    options: dict[str, str] = {}
    at = 0
    while at < len(text):
        found = _OPTION.match(text, at)
        if found is None or found["key"] not in ("name", "password", "saltedpassword", "salt", "iterations"):
            raise UsageError("The options of a SCRAM user are name, password, saltedpassword, salt and iterations.")
        if found["key"] in options:
            raise UsageError(f"The option {found['key']} of a SCRAM user comes twice.")
        options[found["key"]] = found["bare"] if found["quoted"] is None else found["quoted"]
        at = found.end()
    return options


def _decoded(key: str, text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise UsageError(f"The option {key} of a SCRAM user is no Base64.") from error
