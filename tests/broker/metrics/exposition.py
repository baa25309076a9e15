"""Reads Prometheus' text format (0.0.4), strictly, from its specification alone; and asks a broker for it."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from typing import Final

NAME: Final = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
SAMPLE: Final = re.compile(rf'({NAME})(?:\{{((?:[a-zA-Z_]\w*="(?:[^"\\\n]|\\[\\"n])*",?)*)\}})? (\S+)')
LABEL: Final = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"')
SUFFIXES: Final = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("_sum", "_count", "")}

Labels = frozenset[tuple[str, str]]


@dataclass
class Family:
    kind: str
    doc: str
    samples: dict[tuple[str, Labels], float] = field(default_factory=dict)


def parse(text: str) -> dict[str, Family]:
    """Families by name; AssertionError where it is not such a text."""
    families: dict[str, Family] = {}
    doc: tuple[str, str] | None = None
    current = ""
    assert text.endswith("\n")
    for line in text.splitlines():
        if line.startswith("# HELP "):
            name, _, told = line[7:].partition(" ")
            doc = (name, told)
        elif line.startswith("# TYPE "):
            current, _, kind = line[7:].partition(" ")
            assert kind in ("counter", "gauge", "histogram", "summary"), line
            assert current not in families, f"{current} comes twice"
            assert doc is not None, current
            assert doc[0] == current
            families[current] = Family(kind, doc[1])
        else:
            found = SAMPLE.fullmatch(line)
            assert found is not None, line
            name, labels, value = found.groups()
            family = families[current]
            assert name.removeprefix(current) in SUFFIXES.get(family.kind, ("",)), f"{name} stands under {current}"
            key = (name, frozenset(LABEL.findall(labels or "")))
            assert key not in family.samples, f"{line} comes twice"
            family.samples[key] = float(value)
    for name, family in families.items():
        if family.kind == "histogram":
            check_histogram(name, family)
    return families


def check_histogram(name: str, family: Family) -> None:
    """Buckets never fall, and the last, which has no bound, counts all."""
    rows: dict[Labels, list[tuple[float, float]]] = {}
    for (sample, labels), value in family.samples.items():
        if sample == f"{name}_bucket":
            (bound,) = (float(told) for label, told in labels if label == "le")
            rows.setdefault(frozenset(each for each in labels if each[0] != "le"), []).append((bound, value))
    for labels, buckets in rows.items():
        counts = [value for _, value in sorted(buckets)]
        assert counts == sorted(counts)
        assert max(bound for bound, _ in buckets) == float("inf")
        assert counts[-1] == family.samples[f"{name}_count", labels]


class Scrape:
    """One scrape's values, by name and labels."""

    def __init__(self, text: str) -> None:
        self.families = parse(text)
        self._values = {key: value for family in self.families.values() for key, value in family.samples.items()}

    def value(self, name: str, **labels: str) -> float:
        return self._values[name, frozenset(labels.items())]

    def get(self, name: str, **labels: str) -> float:
        """0 where it is not told."""
        return self._values.get((name, frozenset(labels.items())), 0.0)


async def ask(port: int, request: bytes = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n") -> tuple[str, str]:
    """The status line, and the body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        answer = (await reader.read()).decode()
    finally:
        writer.close()
    head, _, body = answer.partition("\r\n\r\n")
    return head.partition("\r\n")[0], body


async def scrape(port: int) -> Scrape:
    status, body = await ask(port)
    assert status == "HTTP/1.1 200 OK"
    return Scrape(body)
