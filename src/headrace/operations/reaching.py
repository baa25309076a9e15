"""How the cluster is reached: each caller has its own settings for that, and the work here its own patience."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from headrace.net.client.cluster import Cluster


class Reach(Protocol):
    """Make a client of the cluster. `settings`: of Cluster, other than the bootstrap list and the security."""

    def __call__(self, **settings: Any) -> Cluster: ...


def since(since_ms: int) -> str:
    """How long something has lasted that began then, by this machine's clock; empty where that is not known."""
    return f" (for {max(0, round(time.time() - since_ms / 1000))} s)" if since_ms else ""
