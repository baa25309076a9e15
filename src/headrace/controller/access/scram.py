"""Decides which SCRAM credentials are set and deleted, as Kafka's ScramControlManager does. Source: KIP-554.

Promises: each user of a request is decided alone, and has one change in it at most.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace.base.limits import ACL_TEXT_CHARACTERS_MAX, SCRAM_SALT_BYTES_MAX, SCRAM_USERS_MAX
from headrace.controller.decision import Decision, Refusal
from headrace.metadata.access.scram import ITERATIONS_MAX, ITERATIONS_MIN, ScramCredential, ScramMechanism
from headrace.metadata.events import MetadataEvent, ScramCredentialChanged, SecretMade
from headrace.metadata.image import MetadataImage
from headrace.wire.errors import ErrorCode


@dataclass(frozen=True, slots=True)
class ScramAlteration:
    """A credential to set, or (None) to delete."""

    user: str
    mechanism: ScramMechanism
    credential: ScramCredential | None = field(default=None)


def alter_scram(
    image: MetadataImage, alterations: Sequence[ScramAlteration], secret: bytes = b""
) -> Decision[list[Refusal | None]]:
    """Return one answer for each alteration, in order; None: done. `secret`: random bytes. They become the cluster's
    secret where it has none yet."""
    times = Counter(each.user for each in alterations)
    room = SCRAM_USERS_MAX - len(image.scram)
    events: list[MetadataEvent] = []
    answers: list[Refusal | None] = []
    for each in alterations:
        refusal = _problem(image, each, is_repeated=times[each.user] > 1)
        if refusal is None and each.credential is not None and each.user not in image.scram:
            room -= 1
            if room < 0:
                message = f"There are credentials of {SCRAM_USERS_MAX} users already: delete some."
                refusal = Refusal(ErrorCode.POLICY_VIOLATION, message)
        if refusal is None:
            event = ScramCredentialChanged(user=each.user, mechanism=each.mechanism, credential=each.credential)
            events.append(event)
        answers.append(refusal)
    if events and secret and not image.secret:
        events.insert(0, SecretMade(secret=secret))
    return Decision(tuple(events), answers)


def _problem(image: MetadataImage, wanted: ScramAlteration, *, is_repeated: bool) -> Refusal | None:
    if is_repeated:
        message = f"The request changes user {wanted.user[:40]!r} twice: send one request for each change."
        return Refusal(ErrorCode.DUPLICATE_RESOURCE, message)
    if not wanted.user:
        return _unacceptable("A user has a name: give it.")
    if len(wanted.user) > ACL_TEXT_CHARACTERS_MAX:
        return _unacceptable(f"A user's name has at most {ACL_TEXT_CHARACTERS_MAX} characters.")
    if wanted.mechanism is ScramMechanism.UNKNOWN:
        message = "There are SCRAM-SHA-256 and SCRAM-SHA-512: choose one of them."
        return Refusal(ErrorCode.UNSUPPORTED_SASL_MECHANISM, message)
    if wanted.credential is None:
        if wanted.mechanism in image.scram.get(wanted.user, ()):
            return None
        message = f"User {wanted.user[:40]!r} has no credential for {wanted.mechanism.title}."
        return Refusal(ErrorCode.RESOURCE_NOT_FOUND, message)
    return _problem_of(wanted.mechanism, wanted.credential)


def _problem_of(mechanism: ScramMechanism, credential: ScramCredential) -> Refusal | None:
    if {len(credential.stored_key), len(credential.server_key)} != {mechanism.key_bytes}:
        return _unacceptable(f"A salted password for {mechanism.title} has {mechanism.key_bytes} bytes.")
    if not ITERATIONS_MIN <= credential.iterations <= ITERATIONS_MAX:
        return _unacceptable(f"Iterations are from {ITERATIONS_MIN} to {ITERATIONS_MAX}.")
    if not 0 < len(credential.salt) <= SCRAM_SALT_BYTES_MAX:
        return _unacceptable(f"A salt has 1 to {SCRAM_SALT_BYTES_MAX} bytes.")
    return None


def _unacceptable(message: str) -> Refusal:
    return Refusal(ErrorCode.UNACCEPTABLE_CREDENTIAL, message)
