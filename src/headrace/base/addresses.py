"""Host and port pairs, as users write them and as messages show them.

Promises: `parse_address` reads whatever `str` makes of an address, and so do Kafka's clients. An IPv6 host stands in
brackets. An address that can be read in two ways is refused.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final, NamedTuple

from headrace.base.errors import UsageError

DEFAULT_PORT: Final = 9092
_PORT: Final = re.compile(r"[0-9]{1,5}")
_HOST: Final = re.compile(r"[^\s\[\]:/?#@,]+")
_ZERO: Final = re.compile(r"(?:0x)?0+(?:\.(?:0x)?0+){0,3}", re.IGNORECASE)
"""The ways in which systems let one write 0.0.0.0."""


class Address(NamedTuple):
    """The address where a broker listens, or where clients reach it. The host has no brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_wildcard(self) -> bool:
        """Whether it means every address of the machine, so that nobody can connect to it from elsewhere."""
        address = _number(self.host)
        return self.host in ("", "*") or (address is not None and address.is_unspecified)

    @property
    def is_loopback(self) -> bool:
        """Whether only its own machine reaches it, as far as the text shows."""
        address = _number(self.host)
        return self.host.lower().rstrip(".") == "localhost" or (address is not None and address.is_loopback)


def _number(host: str) -> IPv4Address | IPv6Address | None:
    if _ZERO.fullmatch(host):
        return ip_address("0.0.0.0")
    try:
        found = ip_address(host)
    except ValueError:
        return None
    return found.ipv4_mapped or found if isinstance(found, IPv6Address) else found


def parse_address(text: str, *, default_port: int = DEFAULT_PORT) -> Address:
    """Parse `HOST`, `HOST:PORT`, `[IPV6]` or `[IPV6]:PORT`. Raises UsageError, also for an IPv6 address without
    brackets."""
    text = text.strip()
    host, colon, port = text.partition(":")
    if text.startswith("["):
        host, closing, rest = text[1:].partition("]")
        colon, port = rest[:1], rest[1:]
        if not closing or colon not in ("", ":") or not _is_ipv6(host):
            raise UsageError(f"'{text}' is not an address: write [IPV6]:PORT, for example [::1]:9092.")
    elif ":" in port:
        example = f"[{text}]:{default_port or DEFAULT_PORT}" if _is_ipv6(text) else "[::1]:9092"
        raise UsageError(f"'{text}' is not an address: write HOST:PORT, or [IPV6]:PORT, for example {example}.")
    elif _HOST.fullmatch(host) is None:
        raise _not_an_address(text)
    if not colon and _PORT.fullmatch(host) is not None and int(host):
        raise UsageError(f"'{text}' is a port without its host: write HOST:PORT, for example 127.0.0.1:{text}.")
    if colon and (_PORT.fullmatch(port) is None or int(port) > 65535):
        raise _not_an_address(text)
    return Address(host, int(port) if colon else default_port)


def parse_bootstrap(text: str) -> tuple[Address, ...]:
    """Parse a comma-separated list of addresses; return them in order, without repeats. Raises UsageError where it is
    empty."""
    found = dict.fromkeys(parse_address(part) for part in text.split(",") if part.strip())
    if not found:
        raise UsageError("No bootstrap address given; write --bootstrap HOST:PORT[,HOST:PORT].")
    return tuple(found)


def _not_an_address(text: str) -> UsageError:
    return UsageError(f"'{text}' is not an address; write HOST:PORT, for example 127.0.0.1:9092.")


def _is_ipv6(host: str) -> bool:
    try:
        IPv6Address(host)
    except ValueError:
        return False
    return True
