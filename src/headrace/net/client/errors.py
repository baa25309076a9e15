"""The failures of a client, as types. Each text is one sentence, with advice where there is any."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headrace.base.addresses import Address
from headrace.base.errors import HeadraceError
from headrace.wire.errors import ErrorCode, error_of

FORBIDDEN: Final = frozenset(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
"""The user lacks a right."""


class ClientError(HeadraceError):
    """Base of the failures of this package."""

    retriable: bool = False
    """True: a repeated request may succeed after a pause, perhaps at another broker."""


class ConnectionLostError(ClientError):
    """There is no connection, or it broke or went silent."""

    retriable = True


class AnswerLostError(ConnectionLostError):
    """The request was sent, and the answer did not come. It may have been carried out, or may still be."""


class OutcomeUnknownError(ClientError):
    """The answer to a change was lost, and no effect of it was visible afterwards. The change was not requested
    twice.
    """

    def __init__(self, subject: str, reason: str, look: str) -> None:
        """`look`: the command that shows the result."""
        super().__init__(
            f"{subject}: whether the change was made is not known ({reason.rstrip('.')}), and nothing of it was seen "
            f"since; look with '{look}', then ask again."
        )


class NoBrokerError(ConnectionLostError):
    """No known broker, and none of the bootstrap list, accepts a connection."""

    def __init__(self, tried: Sequence[Address], last: ClientError | None, *, retriable: bool) -> None:
        """`retriable` where the cluster was reachable before and may come back."""
        places = ", ".join(str(address) for address in tried)
        reason = f" ({str(last).rstrip('.')})" if last is not None else ""
        super().__init__(
            f"No broker answers at {places}{reason}; start one with 'headrace up' or name another with "
            "--bootstrap HOST:PORT."
        )
        self.retriable = retriable


class AuthenticationError(ClientError):
    """The client and the broker do not accept each other. No pause changes that."""


class WrongCredentialsError(AuthenticationError):
    """The broker does not let this user in: the name, the password or the token is wrong."""


class TlsError(AuthenticationError):
    """There is no TLS between the two: a certificate is not accepted, or they have no version in common."""


class UnsupportedError(ClientError):
    """The broker and this client have no version of an API in common."""


class RefusedError(ClientError):
    """A broker answered with a Kafka error code."""

    def __init__(self, code: ErrorCode, subject: str, detail: str | None = None) -> None:
        """`subject` names the refused subject ("Topic 'orders'"); `detail` is the broker's own message, if any."""
        text = (detail or code.message).strip().rstrip(".")
        advice = "; 'headrace acl allow' gives a user its rights" if code in FORBIDDEN else ""
        said = text if text.startswith(subject) else f"{subject}: {text}"
        super().__init__(f"{said} ({code.name}){advice}.")
        self.code = code
        self.subject = subject
        self.detail = detail
        self.retriable = code.retriable


class GaveUpError(ClientError):
    """Every allowed try has failed. The last failure is the cause."""


def refusal(code: int, subject: str, detail: str | None = None) -> RefusedError | None:
    """The error for a response's code; None for success. Unknown codes become UNKNOWN_SERVER_ERROR."""
    return None if code == ErrorCode.NONE else RefusedError(error_of(code), subject, detail)


def check(code: int, subject: str, detail: str | None = None) -> None:
    """Raise RefusedError where `code` is not NONE."""
    if (error := refusal(code, subject, detail)) is not None:
        raise error
