"""Objects in a store that obstore reaches: S3 and compatible stores, Google, Azure, memory.

Promises:
- A put-if-absent never overwrites an existing key (see `RemoteObjects.put` for large objects).
- Every call ends, the longest after a few times STORE_REQUEST_MS_MAX.
- Credentials come from the environment alone, and are in no URL and in no error.

The store itself makes a put atomic and durable. All calls block: never make them on the event loop.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlsplit

from headrace.base.errors import StorageFailure, UsageError
from headrace.base.limits import (
    OBJECT_PART_BYTES,
    OBJECT_PARTS_AT_ONCE_MAX,
    OBJECT_SINGLE_BYTES_MAX,
    STORE_CONNECT_MS_MAX,
    STORE_REQUEST_MS_MAX,
    STORE_RETRIES_MAX,
    STORE_RETRY_MS_MAX,
)
from headrace.base.ports import Buffer, ObjectMeta
from headrace.storage.objects import check_key

if TYPE_CHECKING:
    from obstore.store import ObjectStore

T = TypeVar("T")
_SECRET: Final = re.compile(r"(AWS|GOOGLE|GCP|AZURE|OBJECT_STORE)_\w*(KEY|SECRET|TOKEN|PASSWORD|SIGNATURE|SAS)\w*\Z")
"""Names of variables whose values are secret."""
_SECRET_CHARS_MIN: Final = 4
"""Shorter values are not searched for in texts: that would hide half of the text."""


class RemoteObjects:
    """See the module. Made by `open`."""

    def __init__(self, store: ObjectStore, url: str, *, api: Any = None) -> None:
        """`api` stands in for the package obstore; None: obstore itself."""
        if api is None:
            import obstore

            api = obstore
        self._api: Any = api
        self._store = store
        self._url = url

    @classmethod
    def open(cls, url: str) -> RemoteObjects:
        """Raises UsageError where the URL names no store, or holds credentials, or obstore is not installed."""
        parts = urlsplit(url)
        if "@" in parts.netloc or parts.query or parts.fragment:
            raise UsageError(
                f"The URL of a store at {parts.scheme}:// must be scheme, place and path alone: give credentials in "
                "the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and the like)."
            )
        try:
            from obstore.store import from_url
        except ImportError as error:
            raise UsageError(
                f"A store at {parts.scheme}:// needs the package obstore: pip install 'headrace[s3]'."
            ) from error
        try:
            store: Any = from_url(url) if parts.scheme == "memory" else from_url(url, **_patience())
        except Exception as error:
            raise UsageError(f"'{url}' is no store that can be opened: {_told(error)}.") from None
        return cls(store, url)

    def put(self, key: str, data: Buffer, *, if_absent: bool = True) -> bool:
        """As `Objects.put`.

        An object larger than OBJECT_SINGLE_BYTES_MAX is sent in parts, for which stores know no condition. An existing
        key is still left alone, but if two callers send at the same time, the later one wins. Durable segments are
        named by their bytes and by a leader epoch that only one process has, so no two such objects differ.
        """
        check_key(key)
        if len(data) > OBJECT_SINGLE_BYTES_MAX:
            if if_absent and self._exists(key):
                return False
            self._call(key, lambda: self._put_in_parts(key, data))
            return True
        mode = "create" if if_absent else "overwrite"
        try:
            self._call(key, lambda: self._api.put(self._store, key, data, mode=mode, use_multipart=False))
        except self._api.exceptions.AlreadyExistsError:
            return False
        return True

    def _put_in_parts(self, key: str, data: Buffer) -> None:
        """The object is invisible until its last part is there."""
        self._api.put(
            self._store,
            key,
            data,
            use_multipart=True,
            chunk_size=OBJECT_PART_BYTES,
            max_concurrency=OBJECT_PARTS_AT_ONCE_MAX,
        )

    def _exists(self, key: str) -> bool:
        try:
            self.size(key)
        except FileNotFoundError:
            return False
        return True

    def get(self, key: str) -> bytes:
        return bytes(self._call(key, lambda: self._api.get(self._store, check_key(key)).bytes()))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        try:
            data = self._api.get_range(self._store, check_key(key), start=start, length=length)
        except self._api.exceptions.BaseError as error:
            if self.size(key) < start + length:
                raise EOFError(f"Object '{key}' ends before byte {start + length}.") from error
            raise StorageFailure(f"Object '{key}' could not be read from {self._url}: {_told(error)}.") from None
        if len(data) != length:
            raise EOFError(f"Object '{key}' ends before byte {start + length}.")
        return bytes(data)

    def size(self, key: str) -> int:
        return int(self._call(key, lambda: self._api.head(self._store, check_key(key)))["size"])

    def list(self, prefix: str) -> Iterable[ObjectMeta]:
        base = prefix.rpartition("/")[0]
        pages = self._call(prefix, lambda: list(self._api.list(self._store, prefix=base or None)))
        found = (
            ObjectMeta(item["path"], item["size"], int(item["last_modified"].timestamp() * 1000))
            for page in pages
            for item in page
        )
        return iter(sorted(meta for meta in found if meta.key.startswith(prefix)))

    def directories(self, prefix: str) -> Sequence[str]:
        base = prefix.rpartition("/")[0]
        found = self._call(prefix, lambda: self._api.list_with_delimiter(self._store, prefix=base or None))
        return sorted(each.rstrip("/").removeprefix(prefix) for each in found["common_prefixes"])

    def delete(self, key: str) -> None:
        try:
            self._call(key, lambda: self._api.delete(self._store, check_key(key)))
        except FileNotFoundError:
            return

    def discard_unfinished(self, before_ms: int) -> int:
        """Uploads in parts cannot be listed through obstore. The store's own rules have to end them."""
        return 0

    def _call(self, key: str, act: Callable[[], T]) -> T:
        """Carry out one call; the store's failures become StorageFailure. FileNotFoundError passes through."""
        try:
            return act()
        except self._api.exceptions.AlreadyExistsError:
            raise
        except self._api.exceptions.NotFoundError as error:
            raise FileNotFoundError(f"No object '{key}' in {self._url}.") from error
        except self._api.exceptions.BaseError as error:  # its text may hold the request with its signature
            raise StorageFailure(f"Object '{key}' in {self._url}: {_told(error)}.") from None


def _patience() -> dict[str, Any]:
    """The limits of one call: it gives up soon, since callers try again later by themselves."""
    milliseconds = {"connect_timeout": STORE_CONNECT_MS_MAX, "timeout": STORE_REQUEST_MS_MAX}
    retry = {
        "max_retries": STORE_RETRIES_MAX,
        "backoff": {"max_backoff": timedelta(milliseconds=STORE_RETRY_MS_MAX)},
        "retry_timeout": timedelta(milliseconds=STORE_REQUEST_MS_MAX),
    }
    options: dict[str, Any] = {name: timedelta(milliseconds=value) for name, value in milliseconds.items()}
    if os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("1", "true"):  # obstore ignores it beside other options
        options["allow_http"] = True
    return {"client_options": options, "retry_config": retry}


def _told(error: Exception) -> str:
    """The first line of the store's message, without credentials that it may repeat."""
    text = str(error).strip().split("\n", 1)[0].rstrip(".")
    for name, value in os.environ.items():
        if len(value) >= _SECRET_CHARS_MIN and _SECRET.match(name):
            text = text.replace(value, "***")
    return text[:300] or type(error).__name__
