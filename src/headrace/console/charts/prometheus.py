"""Figures of more than an hour, from a Prometheus that scrapes the brokers.

Promises:
- Its address may hold a password, and is in no repr, error, log or answer.
- It answers within some seconds, in bounded bytes and points, or the caller is told that it does not.
- All viewers share an answer for a while. Texts of an answer are others' data: no chart has any of them.

Source: Prometheus' HTTP API, "Range queries".
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Self

import httpx2

from headrace.base.errors import UsageError
from headrace.base.limits import CONSOLE_PAST_BYTES_MAX, CONSOLE_PAST_KEPT_MS, CONSOLE_PAST_MS_MAX, CONSOLE_PAST_POINTS
from headrace.console.charts.ranges import Past, Span
from headrace.net.pem import NO_STORES, PemStores
from headrace.operations.web import is_safe, site_of, trusting

WRITTEN: Final = "kafka_server_brokertopicmetrics_messagesin_total"
"""Records that producers appended, by broker and topic (docs/METRICS.md)."""
QUERY: Final = "/api/v1/query_range"
_LABEL: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where Prometheus is, and which of its series are this cluster's."""

    url: str = field(repr=False)
    """Without a name and password."""
    login: tuple[str, str] | None = field(default=None, repr=False)
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels that the series of this cluster have."""
    stores: PemStores = NO_STORES
    """Certificates to trust; none: those that the operating system trusts."""

    @classmethod
    def of(cls, url: str, labels: Mapping[str, str], stores: PemStores = NO_STORES) -> Self:
        """Raises UsageError. It does not repeat the URL."""
        try:
            httpx2.URL(url)
            site = site_of(url)
        except (ValueError, httpx2.InvalidURL):
            raise UsageError("--prometheus is no URL: write it like https://prometheus.example.org.") from None
        if not is_safe(site.url):
            raise UsageError(
                "--prometheus has to be https://HOST/..., or http:// on this machine, without a query: a name and "
                "password before the host are sent to it."
            )
        for name in labels:
            if _LABEL.fullmatch(name) is None:
                raise UsageError(f"--prometheus-label '{name:.40}' is no label's name: write it like job=headrace.")
        return cls(url=site.url + QUERY, login=site.login, labels=labels, stores=stores)

    def written(self, span: Span) -> str:
        """The query for the records that are written each second, of all brokers."""
        matched = ",".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in self.labels.items())
        return f"sum(rate({WRITTEN}{{{matched}}}[{span.rate_s}s]))"


class Prometheus:
    """One Prometheus, with its last answers."""

    def __init__(
        self,
        source: Source,
        *,
        ms_max: int = CONSOLE_PAST_MS_MAX,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """Raises UsageError where there is no trusting such certificates."""
        self._source = source
        self._tls = trusting(source.stores)
        self._s_max = ms_max / 1000
        self._clock = clock
        self._wall_clock = wall_clock
        self._asked: dict[str, tuple[float, asyncio.Task[Past]]] = {}
        """By the span's name: when Prometheus was asked, and what it says. All who ask meanwhile share that."""

    async def written(self, span: Span) -> Past:
        """Records that were written each second, of all brokers."""
        now = self._clock()
        known = self._asked.get(span.name)
        if known is None or now - known[0] >= CONSOLE_PAST_KEPT_MS / 1000 or known[1].cancelled():
            known = self._asked[span.name] = now, asyncio.create_task(self._answer(span))
        return await asyncio.shield(known[1])

    async def _answer(self, span: Span) -> Past:
        begin = int(self._wall_clock()) - span.seconds
        try:
            async with asyncio.timeout(self._s_max):
                status, body = await self._read(self._source.written(span), begin, span)
        except (TimeoutError, httpx2.TimeoutException):
            return Past(missing=f"Prometheus does not answer within {self._s_max:g} seconds")
        except (httpx2.HTTPError, OSError):
            return Past(missing="Prometheus cannot be reached")
        if status != 200:
            return Past(missing=f"Prometheus answers {status}, and no figures")
        if len(body) > CONSOLE_PAST_BYTES_MAX:
            return Past(missing="Prometheus answers with more than was asked for")
        try:
            data = points_of(body, begin, span.step_s)
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            return Past(missing="Prometheus answers with something else than figures")
        if all(value is None for value in data[1]):
            return Past(missing=f"Prometheus has no {WRITTEN} of this time (it has to scrape each metrics.listen)")
        return Past(data)

    async def _read(self, query: str, begin: int, span: Span) -> tuple[int, bytes]:
        """The status and the body of an answer, as far as it is wanted. Raises httpx2.HTTPError."""
        asked: dict[str, str | int] = {"query": query, "start": begin, "end": begin + span.seconds, "step": span.step_s}
        plain = {"accept-encoding": "identity"}  # so few bytes cannot unfold to many
        async with (
            httpx2.AsyncClient(
                verify=self._tls, auth=self._source.login, timeout=self._s_max, follow_redirects=False
            ) as client,
            client.stream("GET", self._source.url, params=asked, headers=plain) as answer,
        ):
            body = b""
            async for chunk in answer.aiter_raw():
                body += chunk
                if len(body) > CONSOLE_PAST_BYTES_MAX:
                    break
            return answer.status_code, body


def points_of(body: bytes, begin: int, step_s: int) -> list[list[float | None]]:
    """The points of a range query's answer: each time that was asked for, and its value. Raises ValueError, and others
    that say that the answer is none.
    """
    said = json.loads(body)
    if said["status"] != "success" or said["data"]["resultType"] != "matrix" or len(said["data"]["result"]) > 1:
        raise ValueError("it is no sum over time")
    values: list[float | None] = [None] * (CONSOLE_PAST_POINTS + 1)
    for series in said["data"]["result"]:
        for at, text in series["values"]:
            place = round((at - begin) / step_s)
            value = float(text)
            if 0 <= place < len(values) and math.isfinite(value):
                values[place] = round(value, 3)
    return [[float(begin + place * step_s) for place in range(len(values))], values]
