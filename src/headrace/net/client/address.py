"""Host and port pairs, as users write them."""

from __future__ import annotations

from typing import NamedTuple

from headrace.base.errors import UsageError

DEFAULT_PORT = 9092


class Address(NamedTuple):
    """Where a broker listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """`HOST`, `HOST:PORT` or `[IPV6]:PORT`; the port defaults to 9092. Raises UsageError."""
    host, port = text.strip(), ""
    if host.startswith("["):
        host, _, port = host[1:].partition("]")
        if port and not port.startswith(":"):
            raise UsageError(f"'{text}' is not an address; write [IPV6]:PORT.")
        port = port[1:]
    elif host.count(":") == 1:
        host, _, port = host.partition(":")
    if not host or (port and not (port.isascii() and port.isdigit() and int(port) <= 65535)):
        raise UsageError(f"'{text}' is not an address; write HOST:PORT, for example 127.0.0.1:9092.")
    return Address(host, int(port) if port else DEFAULT_PORT)


def parse_bootstrap(text: str) -> tuple[Address, ...]:
    """A comma-separated list of addresses, in order, without repeats. Raises UsageError where it is empty."""
    found = dict.fromkeys(parse_address(part) for part in text.split(",") if part.strip())
    if not found:
        raise UsageError("No bootstrap address given; write --bootstrap HOST:PORT[,HOST:PORT].")
    return tuple(found)
