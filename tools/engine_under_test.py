"""The engine on which tests start their brokers: the local one, or the Redis engine on a server of this run.

Each data directory has a namespace of its own on that server. So brokers of different tests never meet, and a broker
that is started again finds its records. Brokers of one cluster (`broker-1`, `broker-2` ...) share one.
"""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from headrace.broker.config import BrokerConfig
from headrace.storage.redis.links.address import parse_redis_address

NAMESPACE = "redis.namespace"
_url: str | None = None


def use(url: str | None) -> None:
    """Start brokers on the Redis at this URL from now on; None: on local logs."""
    global _url
    _url = url


def is_redis() -> bool:
    return _url is not None


def on_engine(config: BrokerConfig) -> BrokerConfig:
    """The config of a broker in this process, on that engine."""
    if _url is None or config.redis is not None:
        return config
    configs = {NAMESPACE: _namespace(config.data), **config.configs}
    return replace(config, redis=parse_redis_address(_url), join=(), configs=configs)


def options(data: Path) -> list[str]:
    """The options of the command line for a broker of this directory."""
    if _url is None:
        return []
    return ["--engine", "redis", "--redis", _url, "--config", f"{NAMESPACE}={_namespace(data)}"]


def _namespace(data: Path) -> str:
    cluster = data.parent if data.name.startswith("broker-") else data
    return "t" + sha256(str(cluster).encode()).hexdigest()[:16]
