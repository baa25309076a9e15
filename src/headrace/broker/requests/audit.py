"""The audit log: who was allowed or denied what, a line of JSON for each, in a file that is rotated.

Promises:
- Denials are written, grants only where that is asked for. No line has a payload or a secret, and no name can break
  out of its line.
- Each file is its owner's alone, also after it was put aside.
- Writing takes a thread of its own, and a bounded queue. One client cannot fill the log: it has a rate, and all of
  them have one together. The next line of a client tells how many of its lines were left out. Failed logins of an
  address have one rate, whatever names they claim.

Never does: keep a request waiting.
"""

from __future__ import annotations

import json
import logging
import logging.handlers
import os
import queue
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime
from io import TextIOWrapper
from pathlib import Path
from typing import Any, Final

from headrace.base.limits import (
    ACL_TEXT_CHARACTERS_MAX,
    AUDIT_LINES_BURST_MAX,
    AUDIT_LINES_OF_A_CLIENT_BURST_MAX,
    AUDIT_LINES_OF_A_CLIENT_PER_SECOND_MAX,
    AUDIT_LINES_PER_SECOND_MAX,
    AUDIT_QUEUE_LINES_MAX,
    AUDITED_CLIENTS_MAX,
)
from headrace.base.ports import Clock
from headrace.broker.requests.rights import Decided
from headrace.security.authorizer import Client
from headrace.wire.apis import api

LINES: Final = logging.Formatter("%(message)s")


class _OwnersFile(logging.handlers.RotatingFileHandler):
    """Files that nobody else may read, each one that it opens."""

    def _open(self) -> TextIOWrapper:
        return open(self.baseFilename, "a", encoding="utf-8", opener=lambda name, how: os.open(name, how, 0o600))


class _Bucket:
    """Tokens that come at a rate, up to a burst; and how many were refused since the last that was given."""

    __slots__ = ("_at", "_burst", "_rate", "_tokens", "left_out")

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self._rate, self._burst = rate, burst
        self._tokens, self._at = burst, now
        self.left_out = 0

    def has_one(self, now: float) -> bool:
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
        self._at = now
        return self._tokens >= 1

    def take(self) -> None:
        self._tokens -= 1


class AuditLog:
    """See the module. `start` opens the file."""

    def __init__(self, path: Path, clock: Clock, *, grants: bool, bytes_max: int, files: int) -> None:
        """`grants`: whether they are written, too. `bytes_max`: of a file, before it is put aside. `files`: how many
        are kept beside the one that is written."""
        self._path, self._clock = path, clock
        self.hears_of_grants = grants
        self._bytes_max, self._files = bytes_max, files
        self._queue: queue.Queue[Any] = queue.Queue(AUDIT_QUEUE_LINES_MAX)
        self._listener: logging.handlers.QueueListener | None = None
        now = clock.monotonic()
        self._all = _Bucket(AUDIT_LINES_PER_SECOND_MAX, AUDIT_LINES_BURST_MAX, now)
        self._clients: OrderedDict[Client, _Bucket] = OrderedDict()

    def start(self) -> None:
        """Open the file. Raises OSError."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        handler = _OwnersFile(self._path, maxBytes=self._bytes_max, backupCount=self._files, encoding="utf-8")
        handler.setFormatter(LINES)
        self._listener = logging.handlers.QueueListener(self._queue, handler)
        self._listener.start()

    def stop(self) -> None:
        """Write what is queued, and close the file. Idempotent."""
        if (listener := self._listener) is not None:
            self._write(self._left_out())
            self._listener = None
            listener.stop()
            for handler in listener.handlers:
                handler.close()

    def decided(self, decided: Decided) -> None:
        """`Audit`: an authorizer has decided."""
        if decided.verdict.is_allowed and not self.hears_of_grants:
            return
        self._tell(decided.client, lambda: _facts(decided))

    def authenticated(self, principal: str, host: str, listener: str, mechanism: str, problem: str | None) -> None:
        """`Witness`: a client has proven who it is, or (`problem`) has not."""
        if problem is None and not self.hears_of_grants:
            return
        client = Client(principal[:ACL_TEXT_CHARACTERS_MAX], host)
        facts = {"event": "authentication", "listener": listener, "mechanism": mechanism, "allowed": problem is None}
        if problem is None:
            self._tell(client, lambda: facts)
        else:
            self._tell(client, lambda: {**facts, "reason": problem}, Client("", host))

    def _tell(self, client: Client, facts: Callable[[], dict[str, Any]], payer: Client | None = None) -> None:
        """`payer`: whose rate it is; None: that of the client. One that has not logged in may
        claim any name."""
        now = self._clock.monotonic()
        bucket = self._bucket(payer or client, now)
        if not (bucket.has_one(now) and self._all.has_one(now)):
            bucket.left_out += 1
            return
        line: dict[str, Any] = {"at": _time(self._clock), "principal": client.principal, "address": client.host}
        line |= facts()
        if bucket.left_out:
            line["left_out"] = bucket.left_out
        if self._write(line):
            bucket.take()
            self._all.take()
            bucket.left_out = 0
        else:
            bucket.left_out += 1

    def _bucket(self, client: Client, now: float) -> _Bucket:
        if (bucket := self._clients.get(client)) is None:
            bucket = self._clients[client] = _Bucket(
                AUDIT_LINES_OF_A_CLIENT_PER_SECOND_MAX, AUDIT_LINES_OF_A_CLIENT_BURST_MAX, now
            )
            if len(self._clients) > AUDITED_CLIENTS_MAX:
                _, gone = self._clients.popitem(last=False)
                self._all.left_out += gone.left_out
        self._clients.move_to_end(client)
        return bucket

    def _write(self, line: dict[str, Any]) -> bool:
        if self._listener is None:
            return False
        record = logging.LogRecord("audit", logging.INFO, "", 0, json.dumps(line), None, None)
        try:
            self._queue.put_nowait(record)
        except queue.Full:
            return False
        return True

    def _left_out(self) -> dict[str, Any]:
        count = self._all.left_out + sum(each.left_out for each in self._clients.values())
        return {"at": _time(self._clock), "event": "stopped", "left_out": count}


def _facts(decided: Decided) -> dict[str, Any]:
    operation, kind, name = decided.action
    acl = decided.verdict.acl
    known = api(decided.api)
    return {
        "event": "authorization",
        "listener": decided.listener,
        "api": str(decided.api) if known is None else known.name,
        "operation": operation.name,
        "resource": f"{kind.name}:{name[:ACL_TEXT_CHARACTERS_MAX]}",
        "allowed": decided.verdict.is_allowed,
        "acl": None
        if acl is None
        else {
            "pattern": f"{acl.pattern.pattern_type.name}:{acl.pattern.name}",
            "principal": acl.rule.principal,
            "host": acl.rule.host,
            "operation": acl.rule.operation.name,
            "permission": acl.rule.permission.name,
        },
    }


def _time(clock: Clock) -> str:
    return datetime.fromtimestamp(clock.now_ms() / 1000, UTC).isoformat(timespec="milliseconds")
