"""The listeners of a broker: where it binds each, what clients are told, and how each is protected.

Promises: the configs are read as Kafka's KafkaConfig reads them. Each that Kafka refuses is refused here, too, with one
sentence that says what to do. Never does: bind anything. Sources: Kafka's
SocketServerConfigs, and KafkaConfig.validateValues.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Final, NamedTuple

from headrace.base.addresses import Address, parse_address
from headrace.base.errors import UsageError
from headrace.base.values import Value
from headrace.metadata.access.listener_configs import METRICS, PREFIX, keys_of

LISTENERS: Final = "listeners"
ADVERTISED: Final = "advertised.listeners"
PROTOCOLS: Final = "listener.security.protocol.map"
INTER_BROKER: Final = "inter.broker.listener.name"
INTER_BROKER_PROTOCOL: Final = "security.inter.broker.protocol"
CLIENT_AUTH: Final = "ssl.client.auth"
INSECURE: Final = "headrace.insecure.listeners"
SECURITY: Final = "security"
"""The directory, in that of the data, where `headrace up --secure` keeps its files."""
BROKER_CONFIGS: Final = "broker.properties"
"""Among them, the configs of the brokers."""
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,100}")


class SecurityProtocol(StrEnum):
    """Kafka's security protocols."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def has_tls(self) -> bool:
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def has_sasl(self) -> bool:
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ListenerConfig(Value):
    """One listener. Its name is in capitals."""

    name: str
    protocol: SecurityProtocol
    bound: Address
    """Port 0: any free port. An empty host: every address of the machine."""
    advertised: Address | None
    """The address that clients are told; None: they are not told of this listener. Port 0: the bound port."""
    is_authenticated: bool
    """Whether every client has to say who it is, and prove it."""

    @property
    def is_open(self) -> bool:
        """Whether strangers on other machines may be served."""
        return not (self.is_authenticated or self.bound.is_loopback)

    def __str__(self) -> str:
        return f"{self.name}://{self.bound}"


class Listeners(NamedTuple):
    """The listeners of a broker, in the order of the config."""

    all: tuple[ListenerConfig, ...]
    inter_broker: str
    """The listener by which brokers reach each other. It is advertised."""

    @property
    def of_brokers(self) -> ListenerConfig:
        return next(each for each in self.all if each.name == self.inter_broker)


def read_listeners(configs: Mapping[str, str], *, bound: Address, advertised: Address | None) -> Listeners:
    """Read the configs. `bound` and `advertised` are those of the short form, one listener with the name of
    `security.inter.broker.protocol`. They count where `listeners` and `advertised.listeners` are not set. Raises
    UsageError.
    """
    protocols = _protocols(configs.get(PROTOCOLS))
    texts = configs.get(LISTENERS)
    here = [(_short_name(configs), bound)] if texts is None else list(_endpoints(LISTENERS, texts))
    _check_distinct(here, texts or "")
    for name, _ in here:
        if name not in protocols:
            raise UsageError(f"No security protocol is defined for listener {name}: add it to {PROTOCOLS}.")
    told = _advertised(configs.get(ADVERTISED), here, advertised, is_short=texts is None)
    listeners = tuple(
        ListenerConfig(
            name=name,
            protocol=protocols[name],
            bound=address,
            advertised=told.get(name),
            is_authenticated=protocols[name].has_sasl or _has_certificates(configs, name, protocols[name]),
        )
        for name, address in here
    )
    return Listeners(listeners, _inter_broker(configs, tuple(told), protocols))


def check_closed(listeners: Listeners, configs: Mapping[str, str]) -> None:
    """Raises UsageError where a listener is open, and the configs do not say that it may be."""
    is_allowed = _may_be_insecure(configs)
    if not is_allowed and (opened := next((each for each in listeners.all if each.is_open), None)):
        raise UsageError(
            f"Whoever reaches {opened.bound} could do everything, as listener {opened.name} asks nobody who it is: "
            f"secure it with 'headrace up --secure', give it SASL, or SSL with {CLIENT_AUTH}=required, or accept that "
            "with --insecure."
        )
    metrics = configs.get("metrics.listen", "")
    if not is_allowed and metrics and not configs.get("metrics.credentials"):
        address = parse_address(metrics)
        if not address.is_loopback:
            raise UsageError(
                f"Whoever reaches {address} could read the metrics: set metrics.credentials, or accept that with "
                "--insecure."
            )


def check_still_secured(directory: Path, listeners: Listeners, configs: Mapping[str, str]) -> None:
    """Raises UsageError where `headrace up --secure` made this directory, and no listener asks who comes. Every program
    of this machine would reach what was protected. Blocking."""
    own = directory / SECURITY / BROKER_CONFIGS
    if not own.exists() or _may_be_insecure(configs) or any(each.is_authenticated for each in listeners.all):
        return
    raise UsageError(
        f"{directory} was secured, and whoever reaches {listeners.of_brokers.bound} could do everything now: add "
        f"--secure (for 'headrace broker': --config-file {own}), or --insecure to serve whoever comes."
    )


def _may_be_insecure(configs: Mapping[str, str]) -> bool:
    return configs.get(INSECURE, "").strip().lower() == "true"


def check_named(listeners: Listeners, configs: Mapping[str, str]) -> None:
    """Raises UsageError where a config is for a listener that there is not: it would protect nothing."""
    prefixes = tuple(f"{PREFIX}{name}." for name in (*(each.name.lower() for each in listeners.all), METRICS))
    stray = next((key for key in configs if key.startswith(PREFIX) and not key.startswith(prefixes)), None)
    if stray is not None:
        names = ", ".join(each.name.lower() for each in listeners.all)
        raise UsageError(f"{stray} is for no listener of this broker: after {PREFIX} comes one of {names}.")


def described_open(configs: Mapping[str, str]) -> list[ListenerConfig]:
    """Return the open listeners of a broker that describes these configs. A broker of another release may describe them
    otherwise: what cannot be read is left out.
    """
    try:
        protocols = _protocols(configs.get(PROTOCOLS))
        here = list(_endpoints(LISTENERS, configs[LISTENERS])) if LISTENERS in configs else []
    except UsageError:
        return []
    found = (
        ListenerConfig(
            name=name,
            protocol=protocols[name],
            bound=address,
            advertised=None,
            is_authenticated=protocols[name].has_sasl or _has_certificates(configs, name, protocols[name]),
        )
        for name, address in here
        if name in protocols
    )
    return [each for each in found if each.is_open]


def _has_certificates(configs: Mapping[str, str], name: str, protocol: SecurityProtocol) -> bool:
    asked = next((configs[key] for key in keys_of(name, CLIENT_AUTH) if key in configs), "")
    return protocol.has_tls and asked.strip() == "required"


def _short_name(configs: Mapping[str, str]) -> str:
    """The name of the short form's listener: that of the protocol that brokers speak to each other."""
    return configs.get(INTER_BROKER_PROTOCOL, "PLAINTEXT").strip().upper()


def _protocols(text: str | None) -> Mapping[str, SecurityProtocol]:
    if text is None:
        return {str(protocol): protocol for protocol in SecurityProtocol}
    found: dict[str, SecurityProtocol] = {}
    for item in _items(text):
        name, colon, protocol = (part.strip() for part in item.partition(":"))
        if not colon or _NAME.fullmatch(name) is None:
            raise UsageError(f"{PROTOCOLS} is a list of NAME:PROTOCOL, for example CLIENT:SASL_SSL, not '{item}'.")
        if protocol.upper() not in SecurityProtocol.__members__:
            known = ", ".join(SecurityProtocol)
            raise UsageError(f"{PROTOCOLS} gives {name} the protocol '{protocol}': choose one of {known}.")
        found[name.upper()] = SecurityProtocol(protocol.upper())
    return found


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def _endpoints(key: str, text: str) -> Iterator[tuple[str, Address]]:
    items = _items(text)
    if not items:
        raise UsageError(f"{key} names no listener: write for example {key}=PLAINTEXT://127.0.0.1:9092.")
    for item in items:
        name, mark, address = item.partition("://")
        if not mark or _NAME.fullmatch(name) is None:
            raise UsageError(f"{key} is a list of NAME://HOST:PORT, for example SSL://10.0.0.1:9093, not '{item}'.")
        if not re.search(r":[0-9]+$", address):
            raise UsageError(f"{key} gives no port for {name}: write {item}:9092.")
        if address.startswith(":"):
            yield name.upper(), Address("", parse_address("any" + address).port)
        else:
            yield name.upper(), parse_address(address)


def _check_distinct(here: Sequence[tuple[str, Address]], text: str) -> None:
    names = Counter(name for name, _ in here)
    if repeated := [name for name, count in names.items() if count > 1]:
        raise UsageError(f"Each listener must have a different name, and {repeated[0]} comes again in {text}.")
    by_port: dict[int, list[str]] = {}
    for _, address in here:
        by_port.setdefault(address.port, []).append(address.host)
    for port, hosts in by_port.items():
        if port and len(hosts) > 1 and not _are_of_both_families(hosts):
            raise UsageError(
                f"Each listener must have a different port, unless one has an IPv4 address and the other an IPv6 "
                f"address, and {port} comes again in {text}."
            )


def _are_of_both_families(hosts: Sequence[str]) -> bool:
    try:
        families = [type(ip_address(host)) for host in hosts]
    except ValueError:
        return False
    return len(families) == 2 and set(families) == {IPv4Address, IPv6Address}


def _advertised(
    text: str | None, here: Sequence[tuple[str, Address]], short: Address | None, *, is_short: bool
) -> dict[str, Address]:
    """The addresses that clients are told, by listener. No client is told a wildcard, as nobody can connect to it."""
    if text is not None:
        if short is not None:
            raise UsageError(f"--advertise and {ADVERTISED} say the same thing: leave one of them out.")
        told = list(_endpoints(ADVERTISED, text))
        _check_advertised(told, [name for name, _ in here])
        return dict(told)
    if short is not None and not is_short:
        raise UsageError(f"--advertise is for one listener: set {ADVERTISED} beside {LISTENERS}.")
    if short is not None:
        if short.is_wildcard:
            raise UsageError(
                f"--advertise {short.host} is no address that clients can connect to: name the host, or the "
                "one address, at which they reach this broker."
            )
        return {here[0][0]: short}
    for name, address in here:
        if address.is_wildcard:
            add = "--advertise HOST:PORT" if is_short else f"{ADVERTISED} with {name}://HOST:PORT"
            raise UsageError(
                f"A broker that listens on {address}, every address of this machine, has to be told which of them "
                f"clients connect to: add {add}."
            )
    return dict(here)


def _check_advertised(told: Sequence[tuple[str, Address]], names: Sequence[str]) -> None:
    if len(dict(told)) < len(told):
        raise UsageError(f"Each listener must have a different name in {ADVERTISED}.")
    for name, address in told:
        if name not in names:
            raise UsageError(f"{ADVERTISED} names {name}, but {LISTENERS} only {', '.join(names)}.")
        if address.is_wildcard:
            raise UsageError(
                f"{ADVERTISED} cannot use {name}://{address}, to which nobody can connect: name the host, or the one "
                "address, at which clients reach this broker."
            )


def _inter_broker(configs: Mapping[str, str], told: Sequence[str], protocols: Mapping[str, SecurityProtocol]) -> str:
    """The name of the listener between brokers. Where neither config is set, it is PLAINTEXT or the only one."""
    name, protocol = configs.get(INTER_BROKER), configs.get(INTER_BROKER_PROTOCOL)
    if name is not None and protocol is not None:
        raise UsageError(f"Only one of {INTER_BROKER} and {INTER_BROKER_PROTOCOL} may be set.")
    if name is not None and name.upper() not in protocols:
        raise UsageError(f"{INTER_BROKER} is {name}, for which {PROTOCOLS} has no security protocol.")
    key = INTER_BROKER if protocol is None else INTER_BROKER_PROTOCOL
    wanted = (name or protocol or ("PLAINTEXT" if len(told) != 1 else told[0])).upper()
    if wanted not in told:
        raise UsageError(
            f"{key} has to be a listener that others are told of, and {wanted} is not: choose one of {', '.join(told)}."
        )
    return wanted
