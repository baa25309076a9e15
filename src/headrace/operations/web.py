"""The console and the tools of agents share this: their certificate, the socket on which they listen, and TLS to the
servers of others.
"""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote, urlsplit, urlunsplit

from headrace.base.addresses import Address
from headrace.base.errors import HeadraceError, UsageError

if TYPE_CHECKING:
    import ssl

    from headrace.net.pem import PemStores


class Tls(NamedTuple):
    """The files of a server's certificate and its key, in PEM."""

    certificate: Path
    key: Path


def tls_of(certificate: Path | None, key: Path | None) -> Tls | None:
    """The files that options name; None: neither is given. Raises UsageError."""
    if (certificate is None) != (key is None):
        raise UsageError("--tls-certificate and --tls-key go together: give both files.")
    if certificate is None or key is None:
        return None
    for file in (certificate, key):
        if not file.is_file():
            raise UsageError(f"{file} is no file: --tls-certificate and --tls-key name files in PEM.")
    return Tls(certificate, key)


def shown(listen: Address) -> str:
    """The host in the address that is told: a server on all addresses is on this machine, too."""
    return "127.0.0.1" if listen.is_wildcard else listen.host


def bound(listen: Address, who: str) -> socket.socket:
    """A socket that listens there. `who` listens, for people. Raises HeadraceError."""
    host = {"": "0.0.0.0", "*": "0.0.0.0"}.get(listen.host, listen.host)
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, listen.port, type=socket.SOCK_STREAM)[0]
        with ExitStack() as failing:
            made = failing.enter_context(socket.socket(family, kind, proto))
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind(address)
            made.set_inheritable(True)
            failing.pop_all()
    except OSError as error:
        raise HeadraceError(f"{who} cannot listen on {listen}: {error.strerror or error}.") from error
    return made


class Site(NamedTuple):
    """The address of a server of others."""

    url: str
    """Without a name and password, and without a slash at its end."""
    login: tuple[str, str] | None
    """The name and password that the URL had."""

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or ""

    @property
    def place(self) -> str:
        """HOST:PORT, or HOST."""
        return urlsplit(self.url).netloc


def site_of(url: str) -> Site:
    """Raises ValueError, which does not repeat the URL, where it is none of http or https, or has a query."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ValueError("it is no URL") from None
    if not host or parts.scheme not in ("http", "https") or parts.query or parts.fragment:
        raise ValueError("it is no URL of http or https with a host and without a query")
    name = f"[{host}]" if ":" in host else host
    bare = urlunsplit((parts.scheme, name if port is None else f"{name}:{port}", parts.path.rstrip("/"), "", ""))
    login = None if parts.username is None else (unquote(parts.username), unquote(parts.password or ""))
    return Site(bare, login)


def trusting(stores: PemStores) -> ssl.SSLContext:
    """TLS to others' servers. It trusts these certificates; none: those of the operating system. Raises UsageError."""
    import ssl  # commands import this module for their help

    context = ssl.create_default_context()
    if stores.has_trust:
        stores.load_trust(context)
    return context


def is_safe(url: str) -> bool:
    """Whether nobody between overhears what goes there: over TLS, or on this machine."""
    parts = urlsplit(url)
    return parts.scheme == "https" or (parts.scheme == "http" and Address(parts.hostname or "", 0).is_loopback)
