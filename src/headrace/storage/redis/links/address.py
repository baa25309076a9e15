"""Where Redis is, as users write it: one server, a Unix socket, Sentinels or a Cluster.

Promises: a password is in no `str` or `repr` of an address. User and password come from the environment, from a file
that it names, or from the URL. Each refusal is one sentence.

| URL | Meaning |
|---|---|
| `redis://[USER:PASSWORD@]HOST[:PORT][/DB]` | one server; a server of a Cluster stands for the whole Cluster |
| `rediss://...` | the same over TLS |
| `unix://[USER:PASSWORD@]/PATH[?db=DB]` | a Unix socket |
| `redis+sentinel://[USER:PASSWORD@]HOST[:PORT][,HOST...]/SERVICE[/DB]` | the master that Sentinels name |
| `redis+cluster://[USER:PASSWORD@]HOST[:PORT][,HOST...]` | a Cluster, of which some servers are named |

`rediss+sentinel` and `rediss+cluster` are those over TLS. Options of TLS are redis-py's: `ssl_ca_certs`,
`ssl_certfile`, `ssl_keyfile`, each a path.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, unquote

from headrace.base.addresses import Address, parse_address
from headrace.base.errors import UsageError
from headrace.base.reading import natural

REDIS_PORT: Final = 6379
SENTINEL_PORT: Final = 26379
DATABASE_MAX: Final = 2**31 - 1
USER_VARIABLE: Final = "HEADRACE_REDIS_USER"
PASSWORD_VARIABLE: Final = "HEADRACE_REDIS_PASSWORD"
PASSWORD_FILE_VARIABLE: Final = "HEADRACE_REDIS_PASSWORD_FILE"
SENTINEL_USER_VARIABLE: Final = "HEADRACE_REDIS_SENTINEL_USER"
SENTINEL_PASSWORD_VARIABLE: Final = "HEADRACE_REDIS_SENTINEL_PASSWORD"
_FORM: Final = "write redis://HOST:PORT/0, for example redis://127.0.0.1:6379/0"


class Topology(Enum):
    SERVER = "server"
    SENTINEL = "sentinel"
    CLUSTER = "cluster"


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """User and password. An empty user is Redis's `default`; an empty password means that none is sent."""

    user: str = ""
    password: str = field(default="", repr=False)

    @property
    def hello(self) -> tuple[bytes, ...]:
        """The arguments that HELLO takes for them."""
        if not self.password:
            return ()
        return (b"AUTH", (self.user or "default").encode(), self.password.encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """Paths of PEM files; empty where the system's own authorities are meant, or no client certificate is sent."""

    authorities: str = ""
    certificate: str = ""
    key: str = ""

    def context(self) -> ssl.SSLContext:
        """A context that checks the server's certificate and name. Raises UsageError where a file cannot be read."""
        try:
            context = ssl.create_default_context(cafile=self.authorities or None)
            if self.certificate:
                context.load_cert_chain(self.certificate, self.key or None)
        except (OSError, ssl.SSLError) as error:
            raise UsageError(f"The TLS files for Redis cannot be read: {error}.") from None
        return context


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisAddress:
    """One parsed URL. `str` gives the URL without user and password."""

    topology: Topology = Topology.SERVER
    hosts: tuple[Address, ...] = ()
    """Empty for a Unix socket. Sentinels, or servers of a Cluster, are several."""
    path: str = ""
    """The Unix socket; empty for TCP."""
    service: str = ""
    """The name by which Sentinels know the master."""
    database: int = 0
    credentials: Credentials = Credentials()
    sentinel_credentials: Credentials = Credentials()
    tls: TlsFiles | None = None

    def __str__(self) -> str:
        if self.path:
            return f"unix://{self.path}" + (f"?db={self.database}" if self.database else "")
        scheme = "redis" if self.tls is None else "rediss"
        scheme += "" if self.topology is Topology.SERVER else f"+{self.topology.value}"
        path = f"/{self.service}" if self.service else ""
        path += f"/{self.database}" if self.database or self.topology is Topology.SERVER else ""
        return f"{scheme}://{','.join(map(str, self.hosts))}{path}"


def parse_redis_address(url: str, environment: Mapping[str, str] | None = None) -> RedisAddress:
    """Parse a URL; user and password that it lacks come from `environment`. Raises UsageError."""
    scheme, colon, rest = url.strip().partition("://")
    secure, topology = _scheme(scheme if colon else "")
    place, _, query = rest.partition("?")
    options = _options(query, secure=secure, unix=scheme == "unix")
    userinfo, _, place = place.rpartition("@")
    credentials = _credentials(userinfo, environment or {})
    tls = None
    if secure:
        names = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
        tls = TlsFiles(
            **dict(zip(("authorities", "certificate", "key"), (options.get(n, "") for n in names), strict=True))
        )
    if scheme == "unix":
        if not place.startswith("/"):
            raise UsageError(f"'{_shown(url)}' names no Unix socket; write unix:///PATH with an absolute path.")
        return RedisAddress(path=unquote(place), database=_database(options.get("db", "0")), credentials=credentials)
    hosts, _, path = place.partition("/")
    parts = [unquote(part) for part in path.split("/")] if path else []
    default_port = SENTINEL_PORT if topology is Topology.SENTINEL else REDIS_PORT
    service, database = _of_path(parts, topology)
    return RedisAddress(
        topology=topology,
        hosts=_hosts(hosts, default_port, topology, url),
        service=service,
        database=_database(options.get("db", database)),
        credentials=credentials,
        sentinel_credentials=Credentials(
            user=(environment or {}).get(SENTINEL_USER_VARIABLE, ""),
            password=(environment or {}).get(SENTINEL_PASSWORD_VARIABLE, ""),
        ),
        tls=tls,
    )


def _scheme(scheme: str) -> tuple[bool, Topology]:
    """Whether it means TLS, and which topology."""
    kinds = {"redis": Topology.SERVER, "redis+sentinel": Topology.SENTINEL, "redis+cluster": Topology.CLUSTER}
    kinds |= {name.replace("redis", "rediss", 1): kind for name, kind in kinds.items()}
    kinds["unix"] = Topology.SERVER
    if (kind := kinds.get(scheme)) is None:
        raise UsageError(f"This is no address of a Redis server; {_FORM}, or one with {', '.join(sorted(kinds))}.")
    return scheme.startswith("rediss"), kind


def _options(query: str, *, secure: bool, unix: bool) -> dict[str, str]:
    options = dict(parse_qsl(query, keep_blank_values=True))
    known = {"db"} | ({"ssl_ca_certs", "ssl_certfile", "ssl_keyfile"} if secure else set())
    if unknown := sorted(options.keys() - known):
        kind = "a unix://" if unix else "a rediss://" if secure else "a redis://"
        raise UsageError(f"The option '{unknown[0]}' is not known in {kind} URL; known are {', '.join(sorted(known))}.")
    return options


def _credentials(userinfo: str, environment: Mapping[str, str]) -> Credentials:
    user, colon, password = userinfo.partition(":")
    if not colon and user:
        raise UsageError("The Redis URL names a user and no password; write USER:PASSWORD@, or leave both out.")
    user = unquote(user) or environment.get(USER_VARIABLE, "")
    password = unquote(password) or environment.get(PASSWORD_VARIABLE, "")
    if not password and (path := environment.get(PASSWORD_FILE_VARIABLE, "")):
        try:
            password = Path(path).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"The file of {PASSWORD_FILE_VARIABLE} cannot be read: {error}.") from None
    if user and not password:
        raise UsageError(f"{USER_VARIABLE} names a user and no password; set {PASSWORD_VARIABLE} too.")
    return Credentials(user=user, password=password)


def _hosts(text: str, default_port: int, topology: Topology, url: str) -> tuple[Address, ...]:
    try:
        found = tuple(dict.fromkeys(parse_address(part, default_port=default_port) for part in text.split(",")))
    except UsageError:
        raise UsageError(f"'{_shown(url)}' is no address of a Redis server; {_FORM}.") from None
    if topology is Topology.SERVER and len(found) > 1:
        raise UsageError("A redis:// URL names one server; write redis+cluster:// or redis+sentinel:// for several.")
    return found


def _of_path(parts: list[str], topology: Topology) -> tuple[str, str]:
    """Sentinel's service and the database, as the URL's path has them."""
    if topology is Topology.SENTINEL:
        if not parts or not parts[0] or len(parts) > 2:
            raise UsageError("A Sentinel URL names a service; write redis+sentinel://HOST:26379/SERVICE/0.")
        return parts[0], (parts[1] if len(parts) == 2 else "") or "0"
    if len(parts) > 1 or (topology is Topology.CLUSTER and any(part not in ("", "0") for part in parts)):
        more = "a Cluster has database 0 only" if topology is Topology.CLUSTER else _FORM
        raise UsageError(f"The path of a Redis URL is its database: {more}.")
    return "", (parts[0] if parts else "") or "0"


def _database(text: str) -> int:
    try:
        return natural(text, DATABASE_MAX)
    except ValueError:
        raise UsageError(f"'{text:.40}' is no number of a Redis database; {_FORM}.") from None


def _shown(url: str) -> str:
    """The URL without user and password."""
    scheme, colon, rest = url.partition("://")
    return f"{scheme}{colon}{rest.rpartition('@')[2]}"
