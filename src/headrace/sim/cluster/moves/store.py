"""A simulated object store, and each process's access to it: it stands in for obstore beneath the shipped driver.

The store is a service of its own, which no fault of a broker affects. A request takes time. It may be refused, hang
beyond the driver's patience, or lose its answer after it was carried out. A request on its way arrives even if its
sender is dead by then. Like real stores, it shows an object whole or not at all: an interrupted upload in parts stays
invisible. Listings may be outdated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, ClassVar, Final, NamedTuple, TypeVar

from headrace.base.errors import CorruptData
from headrace.base.limits import STORE_REQUEST_MS_MAX, STORE_RETRIES_MAX
from headrace.base.ports import ObjectMeta, Random
from headrace.metadata.segments import SegmentDescriptor
from headrace.sim.clock import BORN_MS
from headrace.sim.loop import VirtualLoop
from headrace.storage.remote import RemoteObjects
from headrace.storage.tier.format import decode_footer
from headrace.storage.tier.packed import batches_of

T = TypeVar("T")
URL: Final = "sim://store"
SECONDS: Final = (0.001, 0.015)
"""Time of a request, and of its answer."""
BORN: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """Faults of requests, as probabilities for each request."""

    refused: float = 0.0
    lost: float = 0.0
    """The request is carried out, and its answer is lost."""
    hangs: float = 0.0
    slowness: float = 1.0
    listing_lag_seconds: float = 0.0
    """Time for which listings do not show a new object."""


class BaseError(Exception):
    """Stands for obstore's BaseError."""


class NotFoundError(BaseError):
    """The object does not exist."""


class AlreadyExistsError(BaseError):
    """A put-if-absent found the object."""


class Stored(NamedTuple):
    data: bytes
    since: float
    """In virtual time."""


class SimStore:
    """The service. `objects` is its present content; `trouble` may be changed at any time."""

    def __init__(self, loop: VirtualLoop, random: Random) -> None:
        self.loop = loop
        self.random = random
        self.objects: dict[str, Stored] = {}
        self.trouble = Trouble()
        self.lacking: frozenset[str] = frozenset()
        """Objects that are hidden for a while, as in a store that is only partly mounted."""
        self.on_put: Callable[[str], object] = _ignored
        """Called for each object that was just stored."""
        self.on_delete: Callable[[str], object] = _ignored
        """Called for each object that was just deleted."""
        self.requests = self.failures = self.torn = self.ranges = 0

    def heal(self) -> None:
        """End the faults, except outdated listings: no store promises fresh ones."""
        self.trouble = Trouble(listing_lag_seconds=self.trouble.listing_lag_seconds)
        self.lacking = frozenset()

    def worsen(self, **trouble: float) -> None:
        self.trouble = replace(self.trouble, **trouble)

    def mount(self) -> RemoteObjects:
        """The shipped driver over this store."""
        return RemoteObjects(None, URL, api=Requests(self))  # type: ignore[arg-type]  # it hands it through

    # effects of requests, which are atomic

    def put(self, key: str, data: bytes, *, if_absent: bool) -> None:
        if if_absent and key in self.objects:
            raise AlreadyExistsError(f"'{key}' exists")
        self.objects[key] = Stored(data, self.loop.time())
        self.on_put(key)

    def get(self, key: str) -> bytes:
        if key not in self.objects or key in self.lacking:
            raise NotFoundError(f"'{key}' does not exist")
        return self.objects[key].data

    def get_range(self, key: str, start: int, length: int) -> bytes:
        self.ranges += 1
        data = self.get(key)
        if start >= len(data):
            raise BaseError("the range is not satisfiable")
        return data[start : start + length]

    def keys(self, base: str | None) -> list[str]:
        """The keys below a directory, as far as listings show them."""
        shown = self.loop.time() - self.trouble.listing_lag_seconds
        prefix = "" if base is None else f"{base}/"
        found = (key for key, each in self.objects.items() if key.startswith(prefix) and each.since <= shown)
        return sorted(key for key in found if key not in self.lacking)

    def delete(self, key: str) -> None:
        if self.objects.pop(key, None) is not None:
            self.on_delete(key)


class Shelf:
    """Read access to a store's content from outside: nothing takes time, and nothing fails."""

    def __init__(self, store: SimStore) -> None:
        self._store = store

    def get(self, key: str) -> bytes:
        if key not in self._store.objects:
            raise FileNotFoundError(key)
        return self._store.objects[key].data

    def get_range(self, key: str, start: int, length: int) -> bytes:
        data = self.get(key)[start : start + length]
        if len(data) < length:
            raise EOFError(key)
        return data

    def size(self, key: str) -> int:
        return len(self.get(key))

    def list(self, prefix: str) -> list[ObjectMeta]:
        found = sorted(item for item in self._store.objects.items() if item[0].startswith(prefix))
        return [ObjectMeta(key, len(stored.data), BORN_MS + int(stored.since * 1000)) for key, stored in found]


class _Answered(NamedTuple):
    """The outcome of a request that was carried out."""

    result: Any
    error: BaseError | None


class Road:
    """The path to the service and back. For worker threads only."""

    def __init__(self, store: SimStore) -> None:
        self._store = store

    def _ask(self, carry_out: Callable[[], T]) -> T:
        """Carry out a request with the library's own retries. The second try of a successful put is told that the
        object exists."""
        for _ in range(STORE_RETRIES_MAX):
            try:
                return self._once(carry_out)
            except TimeoutError as error:
                raise BaseError(str(error)) from None
            except ConnectionError:
                continue
        try:
            return self._once(carry_out)
        except OSError as error:
            raise BaseError(str(error)) from None

    def _once(self, carry_out: Callable[[], T]) -> T:
        store, chance, trouble = self._store, self._store.random, self._store.trouble
        if store.loop.workers.running is None:
            raise RuntimeError("a request to the store on the event loop would block the broker")
        store.requests += 1
        least, most = SECONDS
        there, back = (trouble.slowness * (least + chance.random() * (most - least)) for _ in range(2))
        roll = chance.random()
        if roll < trouble.hangs:
            store.failures += 1
            if chance.random() < 0.5:  # and may arrive at any later time
                self._carry_later(chance.random() * STORE_REQUEST_MS_MAX / 1000, carry_out)
            store.loop.workers.pause(STORE_REQUEST_MS_MAX / 1000)
            raise TimeoutError("the request took too long")
        if roll < trouble.hangs + trouble.refused:
            store.failures += 1
            store.loop.workers.pause(there + back)
            raise ConnectionError("503 Service Unavailable")
        if there + back > STORE_REQUEST_MS_MAX / 1000:
            self._carry_later(there, carry_out)
            store.loop.workers.pause(STORE_REQUEST_MS_MAX / 1000)
            raise TimeoutError("the request took too long")
        answers = self._carry_later(there, carry_out)
        store.loop.workers.pause(there + back)
        [answered] = answers
        if roll < trouble.hangs + trouble.refused + trouble.lost:
            store.failures += 1
            raise ConnectionError("the connection was closed before the answer came")
        if answered.error is not None:
            raise answered.error
        result: T = answered.result
        return result

    def _carry_later(self, seconds: float, carry_out: Callable[[], T]) -> list[_Answered]:
        """Carry it out at the store, whatever happens to the requester."""
        answers: list[_Answered] = []

        def act() -> None:
            try:
                answers.append(_Answered(carry_out(), None))
            except BaseError as error:
                answers.append(_Answered(None, error))

        self._store.loop.call_later(seconds, act, context=self._store.loop.no_process.copy())
        return answers


class Requests(Road):
    """One process's functions of obstore, as the shipped driver calls them."""

    exceptions: ClassVar[Any] = SimpleNamespace(
        BaseError=BaseError, NotFoundError=NotFoundError, AlreadyExistsError=AlreadyExistsError
    )

    def put(
        self,
        _: object,
        key: str,
        data: Any,
        *,
        mode: str = "overwrite",
        use_multipart: bool,
        chunk_size: int = 1,
        max_concurrency: int = 1,
    ) -> None:
        body = bytes(data)
        if use_multipart:
            self._put_parts(len(body) // chunk_size + 1)
        self._ask(lambda: self._store.put(key, body, if_absent=mode == "create"))

    def _put_parts(self, count: int) -> None:
        """Send parts one after the other. A process that dies, or gives up, between them leaves nothing visible."""
        try:
            for _ in range(count):
                self._ask(lambda: None)
        except BaseException:
            self._store.torn += 1
            raise

    def get(self, _: object, key: str) -> Any:
        data = self._ask(lambda: self._store.get(key))
        return SimpleNamespace(bytes=lambda: data)

    def get_range(self, _: object, key: str, *, start: int, length: int) -> bytes:
        return self._ask(lambda: self._store.get_range(key, start, length))

    def head(self, _: object, key: str) -> dict[str, Any]:
        return {"path": key, "size": len(self._ask(lambda: self._store.get(key)))}

    def list(self, _: object, *, prefix: str | None) -> Iterator[list[dict[str, Any]]]:
        keys = self._ask(lambda: self._store.keys(prefix))
        known = self._store.objects
        yield [
            {"path": key, "size": len(known[key].data), "last_modified": _date(known[key].since)}
            for key in keys
            if key in known
        ]

    def list_with_delimiter(self, _: object, *, prefix: str | None) -> dict[str, Any]:
        keys = self._ask(lambda: self._store.keys(prefix))
        start = 0 if prefix is None else len(prefix) + 1
        found = {key[:end] for key in keys if (end := key.find("/", start)) >= 0}
        return {"common_prefixes": sorted(found), "objects": []}

    def delete(self, _: object, key: str) -> None:
        self._ask(lambda: self._store.delete(key))


def _ignored(key: str) -> None:
    """The default callback, which does nothing."""


def _date(since: float) -> datetime:
    return BORN + timedelta(milliseconds=BORN_MS + int(since * 1000))


def batches_in(data: bytes, segment: SegmentDescriptor) -> bytes:
    """The batches of an object that is sound, in its descriptor's form; nothing where it is none."""
    if not segment.is_packed:
        return data[: segment.batch_bytes]
    try:
        return bytes(batches_of(data, decode_footer(data)))
    except CorruptData:
        return b""
