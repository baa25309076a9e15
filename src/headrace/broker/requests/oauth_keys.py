"""Reads the public keys of an issuer of tokens, again and again: from a file, or over HTTPS. Source: KIP-768.

Promises:
- A start does not wait for an issuer, and fails only where a file cannot be read. While no keys are known, no token
  counts.
- Keys that were read stay in force while they cannot be read again.
- A token with an unknown key has them read again, at most once in a while, whoever sends how many of them.
"""

from __future__ import annotations

import asyncio
import urllib.request
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from headrace.base.addresses import Address
from headrace.base.errors import UsageError
from headrace.base.limits import OAUTH_KEYS_BYTES_MAX, OAUTH_KEYS_MS_MAX
from headrace.broker.kit.tasks import OnBug, started, wait_for_event
from headrace.logs import get_logger
from headrace.security.oauth import Keys

log = get_logger(__name__)


class OauthKeys:
    """The keys at one URL. Lives on the event loop; reads in a worker thread."""

    def __init__(self, url: str, *, refresh_ms: int, backoff_ms: int, backoff_ms_max: int, on_bug: OnBug) -> None:
        """Raises UsageError where the URL cannot be, or is of a file that cannot be read."""
        self._url = url
        self._refresh_ms = refresh_ms
        self._backoff_ms = backoff_ms
        self._backoff_ms_max = backoff_ms_max
        self._wanted = asyncio.Event()
        self._read_at = float("-inf")
        self.keys: Keys | None = None
        _check(url)
        if url.startswith("file:"):
            try:
                self._adopt(_read(url))
            except (OSError, ValueError) as error:
                raise UsageError(f"The keys at {url} cannot be read: {error}.") from error
        self._task = started(self._read_on(), "reading an issuer's keys", on_bug)

    def miss(self) -> None:
        """Called for a token whose key is not known."""
        if (asyncio.get_running_loop().time() - self._read_at) * 1000 >= self._backoff_ms_max:
            self._wanted.set()

    def stop(self) -> None:
        self._task.cancel()

    def _adopt(self, text: bytes) -> None:
        self.keys = Keys.read(text)

    async def _read_on(self) -> None:
        loop = asyncio.get_running_loop()
        failures = 0
        while True:
            wait_ms = self._refresh_ms
            if self.keys is None or failures or self._read_at > float("-inf"):
                try:
                    self._adopt(await loop.run_in_executor(None, _read, self._url))
                    failures = 0
                except (OSError, ValueError, HTTPException) as error:
                    wait_ms = min(self._backoff_ms << min(failures, 30), self._backoff_ms_max)
                    failures += 1
                    log.warning("the keys of tokens cannot be read", url=self._url, reason=str(error))
            self._read_at = loop.time()
            self._wanted.clear()
            await wait_for_event(self._wanted, wait_ms / 1000)


class _Stay(urllib.request.HTTPRedirectHandler):
    """Follows no redirection: it may lead away from HTTPS."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _check(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme == "file" and not parts.netloc and parts.path:
        return
    if parts.hostname and (parts.scheme == "https" or (parts.scheme == "http" and _is_here(parts.hostname))):
        return
    raise UsageError(
        f"sasl.oauthbearer.jwks.endpoint.url is {url}: it has to be https://HOST/..., file:///PATH, or http:// on this "
        "machine, for keys that anybody could change let anybody in."
    )


def _is_here(host: str) -> bool:
    return Address(host, 0).is_loopback


def _read(url: str) -> bytes:
    """Return the document. Blocking. Raises OSError or ValueError."""
    if url.startswith("file:"):
        with Path(unquote(urlsplit(url).path)).open("rb") as file:
            text = file.read(OAUTH_KEYS_BYTES_MAX + 1)
    else:
        opener = urllib.request.build_opener(_Stay)
        with opener.open(url, timeout=OAUTH_KEYS_MS_MAX / 1000) as answer:
            text = answer.read(OAUTH_KEYS_BYTES_MAX + 1)
    if len(text) > OAUTH_KEYS_BYTES_MAX:
        raise ValueError(f"it has more than {OAUTH_KEYS_BYTES_MAX} bytes")
    return bytes(text)
