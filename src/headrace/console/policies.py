"""The policies of topics for old records, in words."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from headrace.net.client.admin import Admin
from headrace.net.client.cluster import Cluster

POLICY_KEYS: Final = ("cleanup.policy", "retention.ms")
POLICY_S: Final = 30.0
"""Policies that were asked for longer ago are asked for again."""
FOREVER: Final = "-1"


class Policies:
    """Policies of topics that are shown, kept for a moment."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[float, str]] = {}

    async def of(self, cluster: Cluster, names: Sequence[str]) -> dict[str, str]:
        """`delete after 7 d`, or `compact`, by topic."""
        now = time.monotonic()
        self._known = {name: known for name, known in self._known.items() if known[0] > now - POLICY_S}
        lacking = [name for name in names if name not in self._known]
        if lacking:
            admin = Admin(cluster)
            policies, ages = [await admin.one_config_of_topics(lacking, key) for key in POLICY_KEYS]
            for name in lacking:
                self._known[name] = (now, described(policies.get(name, ""), ages.get(name, "")))
        return {name: self._known[name][1] for name in names}


def described(policy: str, age_ms: str) -> str:
    """The policy in words."""
    words = []
    if "compact" in policy:
        words.append("compact")
    if "delete" in policy:
        words.append("keep" if age_ms == FOREVER else f"delete after {age(age_ms)}")
    return " and ".join(words)


def age(milliseconds: str) -> str:
    """`7 d`, `36 h`, `5 min`, `10 s`."""
    try:
        seconds = int(milliseconds) / 1000
    except ValueError:
        return milliseconds
    for unit, of in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= of and seconds % of == 0:
            return f"{seconds / of:,.0f} {unit}"
    return f"{seconds:,.0f} s" if seconds >= 1 else f"{milliseconds} ms"
