"""Schemas by their ids, from a registry that speaks Confluent's API: Apicurio's and Karapace's compatible ones, too.

Promises:
- Answers are bounded, and so is the number of schemas that are kept. An id that is not known is asked for again only
  after a while, and so is a registry that does not answer.
- The user and password are in no repr, error or log. They go to the registry's own address alone: redirects are not
  followed.

Source: Confluent's Schema Registry API reference, `GET /schemas/ids/{id}` and
`GET /subjects/{subject}/versions/{version}`.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

import httpx2

from headrace.base.errors import HeadraceError, UsageError
from headrace.base.limits import (
    SCHEMA_ASKS_AT_ONCE_MAX,
    SCHEMA_BYTES_MAX,
    SCHEMA_NAME_CHARS_MAX,
    SCHEMA_REFERENCES_DEPTH_MAX,
    SCHEMA_REFERENCES_MAX,
    SCHEMA_REGISTRY_AGAIN_MS,
    SCHEMA_REGISTRY_MS_MAX,
    SCHEMA_UNKNOWN_MS,
    SCHEMAS_MAX,
)
from headrace.base.reading import INT_MAX, json_value
from headrace.net.pem import NO_STORES, PemStores
from headrace.operations.schemas.schema import AVRO, REGISTRY_USER, Cache, Schema, avro_schema
from headrace.operations.web import Site, is_safe, site_of, trusting

ACCEPT: Final = "application/vnd.schemaregistry.v1+json, application/json"


class RegistryError(HeadraceError):
    """The registry does not answer, or not as a registry does."""


class _UnresolvedError(Exception):
    """A schema, or one that it refers to, cannot be had. It says so in one sentence."""


@dataclass(frozen=True, slots=True)
class Place:
    """The address of a registry, and the console's name there."""

    site: Site = field(repr=False)
    user: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    stores: PemStores = NO_STORES
    """Certificates to trust; none: those that the operating system trusts."""

    @classmethod
    def of(cls, url: str, user_info: str = "", stores: PemStores = NO_STORES) -> Place:
        """By the URL of an option, perhaps with `USER:PASSWORD@`. Raises UsageError, which does not repeat it."""
        try:
            site = site_of(url)
        except ValueError:
            raise UsageError("--schema-registry has to be a URL like https://registry.example.org:8081.") from None
        user, password = site.login or user_info.partition(":")[::2]
        if user and not is_safe(site.url):
            raise UsageError(
                f"--schema-registry would send a password to {site.host} in clear text: give its address with https."
            )
        return cls(site, user, password, stores)


class Registry:
    """One registry, and its schemas that were used last."""

    def __init__(self, place: Place, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises UsageError where the certificates to trust cannot be read."""
        self._place = place
        self._clock = clock
        self._context = trusting(place.stores)
        self._found: Cache[int] = Cache()
        self._unknown: OrderedDict[int, float] = OrderedDict()
        """Ids that it does not know, with the time at which it said so."""
        self._trouble: tuple[float, str] | None = None

    @property
    def named(self) -> str:
        return f"The schema registry at {self._place.site.place}"

    @property
    def trouble(self) -> str:
        """The reason, in one sentence, for which it is asked nothing at present. Empty: it may be asked."""
        if self._trouble is None or self._clock() - self._trouble[0] >= SCHEMA_REGISTRY_AGAIN_MS / 1000:
            return ""
        return self._trouble[1]

    def get(self, schema_id: int) -> Schema | None:
        """The schema, if it is kept here."""
        return self._found.get(schema_id)

    def is_unknown(self, schema_id: int) -> bool:
        """Whether the registry has said lately that it does not know it."""
        said = self._unknown.get(schema_id)
        return said is not None and self._clock() - said < SCHEMA_UNKNOWN_MS / 1000

    async def ask(self, schema_ids: Sequence[int], ms_max: float) -> None:
        """Have these kept, or noted as unknown, as far as the registry answers in time: see `trouble`."""
        gate = asyncio.Semaphore(SCHEMA_ASKS_AT_ONCE_MAX)

        async def one(client: httpx2.AsyncClient, schema_id: int) -> None:
            async with gate:
                self._keep(schema_id, await self._schema(client, schema_id))

        try:
            async with asyncio.timeout(ms_max / 1000), self._client() as client, asyncio.TaskGroup() as group:
                for each in schema_ids:
                    group.create_task(one(client, each))
        except* TimeoutError:
            self._trouble = self._clock(), f"{self.named} does not answer in time."
        except* (RegistryError, httpx2.HTTPError) as errors:
            self._trouble = self._clock(), self._said(errors)

    def _said(self, errors: BaseExceptionGroup[Exception]) -> str:
        first: BaseException = errors
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        if isinstance(first, RegistryError):
            return str(first)
        reason = str(first)[:SCHEMA_NAME_CHARS_MAX] or type(first).__name__
        return f"{self.named} does not answer: {reason.rstrip('.')}."

    def _keep(self, schema_id: int, schema: Schema | None) -> None:
        self._unknown.pop(schema_id, None)
        if schema is not None:
            self._found.put(schema_id, schema)
            return
        self._unknown[schema_id] = self._clock()
        while len(self._unknown) > SCHEMAS_MAX:
            self._unknown.popitem(last=False)

    async def _schema(self, client: httpx2.AsyncClient, schema_id: int) -> Schema | None:
        """The schema with this id; None: the registry knows none. Raises RegistryError, httpx2.HTTPError."""
        place = f"schema {schema_id}"
        try:
            said = await self._read(client, f"/schemas/ids/{schema_id}")
            if said is None:
                return None
            text, kind = said.get("schema"), said.get("schemaType", AVRO)
            if not isinstance(text, str) or not isinstance(kind, str):
                raise RegistryError(f"{self.named} answers without a schema: --schema-registry may be another address.")
            if kind != AVRO:
                named = kind[:SCHEMA_NAME_CHARS_MAX]
                return Schema(place, "", named, name=named)  # its text is not used
            needed = await _References(self, client, len(text)).of(said, 0)
        except _UnresolvedError as error:
            return Schema(place, "", problem=f"It cannot be read with {place}: {error}")
        return avro_schema(text, place, tuple(needed))

    async def version(self, client: httpx2.AsyncClient, subject: str, version: int) -> Mapping[str, Any] | None:
        """A version of a subject; None: there is none. Raises _UnresolvedError, RegistryError, httpx2.HTTPError."""
        return await self._read(client, f"/subjects/{quote(subject, safe='')}/versions/{version}")

    async def _read(self, client: httpx2.AsyncClient, path: str) -> Mapping[str, Any] | None:
        """An object; None: the registry has none there. Raises _UnresolvedError where it is too large, RegistryError,
        httpx2.HTTPError.
        """
        async with client.stream("GET", self._place.site.url + path) as answer:
            if answer.status_code == 404:
                return None
            if answer.status_code in (401, 403):
                raise RegistryError(
                    f"{self.named} refuses the console ({answer.status_code}): give USER:PASSWORD by {REGISTRY_USER}."
                )
            if answer.status_code != 200:
                raise RegistryError(f"{self.named} answers {answer.status_code}.")
            data = b""
            async for chunk in answer.aiter_raw():  # a compressed answer would have no bound
                data += chunk
                if len(data) > 2 * SCHEMA_BYTES_MAX:
                    raise _UnresolvedError("it is too large.")
        try:
            said = json_value(data)
        except ValueError:
            said = None
        if not isinstance(said, dict):
            raise RegistryError(f"{self.named} answers without JSON: --schema-registry may be another address.")
        return said

    def _client(self) -> httpx2.AsyncClient:
        known = self._place
        return httpx2.AsyncClient(
            auth=(known.user, known.password) if known.user else None,
            headers={"accept": ACCEPT, "accept-encoding": "identity"},
            verify=self._context,
            timeout=SCHEMA_REGISTRY_MS_MAX / 1000,
            follow_redirects=False,
        )


class _References:
    """The schemas that one refers to, each once, bounded in number, depth and bytes."""

    def __init__(self, registry: Registry, client: httpx2.AsyncClient, size: int) -> None:
        """Raises _UnresolvedError."""
        self._registry = registry
        self._client = client
        self._size = 0
        self._add(size)
        self._met: set[tuple[str, int]] = set()

    async def of(self, said: Mapping[str, Any], depth: int) -> list[str]:
        """Their texts; each comes behind those that it needs itself. Raises _UnresolvedError, RegistryError,
        httpx2.HTTPError.
        """
        given = said.get("references")
        found: list[str] = []
        for each in given if isinstance(given, list) else ():
            subject, version = (each.get("subject"), each.get("version")) if isinstance(each, dict) else (None, None)
            if not isinstance(subject, str) or not isinstance(version, int) or not 0 < version <= INT_MAX:
                raise _UnresolvedError("one of its references names no version of a subject.")
            if (subject, version) in self._met:
                continue
            self._met.add((subject, version))
            if depth >= SCHEMA_REFERENCES_DEPTH_MAX or len(self._met) > SCHEMA_REFERENCES_MAX:
                raise _UnresolvedError("it refers to too many others.")
            named = f"version {version} of '{subject:.100}'"
            other = await self._registry.version(self._client, subject, version)
            if other is None:
                raise _UnresolvedError(f"it refers to {named}, which the registry does not know.")
            text = other.get("schema")
            if not isinstance(text, str):
                raise _UnresolvedError(f"it refers to {named}, which has no text.")
            self._add(len(text))
            found += [*await self.of(other, depth + 1), text]
        return found

    def _add(self, size: int) -> None:
        """Raises _UnresolvedError."""
        self._size += size
        if self._size > SCHEMA_BYTES_MAX:
            raise _UnresolvedError(f"it has more than {SCHEMA_BYTES_MAX:,} characters with those that it refers to.")
