"""Cases of what security costs.

TLS with SCRAM, and new connections with TLS, are measured beside Kafka. An authorizer is measured beside none.
Each rival has a plain listener, through which topics are made and counted, and one that the load goes through.
"""

from __future__ import annotations

import socket
import ssl
import time
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import SystemRandom
from typing import Final

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from benchmarks.load.cases import About, Entrant, Figures, Target, at_least, at_most, portion
from benchmarks.load.perf_tools import Fetch, Filled, Produce
from benchmarks.load.raw.raw_client import Raw
from benchmarks.load.rivals import Door, Durability, Headrace, Kafka, Rival
from headrace.base.addresses import Address
from headrace.base.properties import encode_properties
from headrace.broker.home.ports import HeldPorts
from headrace.broker.home.securing import secure
from headrace.wire.apis import ApiKey, api
from headrace.wire.headers import encode_request_frame
from headrace.wire.messages.api_versions import ApiVersionsRequest

HEADRACE_SECURED: Final = "headrace-secured"
KAFKA_SECURED: Final = "kafka-secured"
HEADRACE_WITH_LOGIN: Final = "headrace-login"
HEADRACE_WITH_ACLS: Final = "headrace-acls"
HOST: Final = "127.0.0.1"
USER: Final = "bench"
PASSWORD: Final = "of the benchmark"
ITERATIONS: Final = 4_096
ANSWER_TIMEOUT_S: Final = 60.0
LENGTH_BYTES: Final = 4
PLAIN_MODULE: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"
STANDARD_AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
PLAIN_LISTENER: Final = {
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.load.plain.sasl.jaas.config": f'{PLAIN_MODULE} required user_{USER}="{PASSWORD}";',
}
ACLS: Final = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:ANONYMOUS"}
"""The plain listener lets everybody do everything, also the broker. The load may do what its ACLs say."""


def _ports(owner: object, count: int) -> list[int]:
    held = HeldPorts.free(HOST, count, SystemRandom())
    weakref.finalize(owner, held.release)
    return held.numbers


def _scram_listener(files: Path) -> dict[str, str]:
    """SCRAM-SHA-512 over TLS, with certificates that are made in `files`."""
    secure(files, [Address(HOST, 0)])
    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(files / "broker.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(files / "ca.pem"),
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "listener.name.load.scram-sha-512.sasl.jaas.config": f"{SCRAM_MODULE} required;",
    }


def _door(port: int, files: Path, *, over_tls: bool) -> Door:
    module, mechanism = (SCRAM_MODULE, "SCRAM-SHA-512") if over_tls else (PLAIN_MODULE, "PLAIN")
    properties = {
        "security.protocol": "SASL_SSL" if over_tls else "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f'{module} required username="{USER}" password="{PASSWORD}";',
    }
    if over_tls:
        properties |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(files / "ca.pem")}
    config = files / "load.properties"
    config.write_text(encode_properties(properties))
    return Door(f"{HOST}:{port}", config)


def _make_user(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, ITERATIONS)
    wanted = UserScramCredentialUpsertion(USER, info, PASSWORD.encode())
    for done in admin.alter_user_scram_credentials([wanted]).values():
        done.result(ANSWER_TIMEOUT_S)


def _allow_load(bootstrap: str) -> None:
    """It may write to topics of any name: by one ACL of many."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    literal, prefixed = ResourcePatternType.LITERAL, ResourcePatternType.PREFIXED
    allow = AclPermissionType.ALLOW
    acls = [
        AclBinding(ResourceType.TOPIC, "authorised-", prefixed, f"User:{USER}", "*", each, allow)
        for each in (AclOperation.WRITE, AclOperation.READ)
    ]
    acls += [
        AclBinding(ResourceType.TOPIC, f"of-{number}", literal, f"User:{number}", "*", AclOperation.WRITE, allow)
        for number in range(1_000)
    ]
    for done in admin.create_acls(acls).values():
        done.result(ANSWER_TIMEOUT_S)


class GuardedHeadrace(Headrace):
    """With a second listener, by the name of LOAD."""

    def __init__(self, directory: Path, *, name: str, over_tls: bool, configs: Mapping[str, str] | None = None) -> None:
        self._has_acls = bool(configs)
        files = directory.with_name(f"{directory.name}-files")
        files.mkdir(parents=True)
        own, port = _ports(self, 2)
        listener = _scram_listener(files) if over_tls else PLAIN_LISTENER
        super().__init__(
            directory,
            name=name,
            configs={
                "listeners": f"PLAINTEXT://{HOST}:{own},LOAD://{HOST}:{port}",
                "listener.security.protocol.map": f"PLAINTEXT:PLAINTEXT,LOAD:SASL_{'SSL' if over_tls else 'PLAINTEXT'}",
                "inter.broker.listener.name": "PLAINTEXT",
                **listener,
                **(configs or {}),
            },
        )
        self.door: Final = _door(port, files, over_tls=over_tls)
        self.trust: Final = files / "ca.pem"
        self._over_tls = over_tls

    def start(self) -> None:
        super().start()
        if self._over_tls:
            _make_user(self.bootstrap)
        if self._has_acls:
            _allow_load(self.bootstrap)


class GuardedKafka(Kafka):
    """Kafka with the same second listener and the same files."""

    def __init__(self, directory: Path) -> None:
        files = directory.with_name(f"{directory.name}-files")
        files.mkdir(parents=True)
        (port,) = _ports(self, 1)
        super().__init__(directory, name=KAFKA_SECURED, configs=_scram_listener(files))
        plain = f"PLAINTEXT://{self.bootstrap}"
        self._settings += [
            f"listeners={plain},LOAD://{HOST}:{port},CONTROLLER://{HOST}:{self.controller_port}",
            f"advertised.listeners={plain},LOAD://{HOST}:{port}",
            "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,LOAD:SASL_SSL,CONTROLLER:PLAINTEXT",
        ]
        self.door: Final = _door(port, files, over_tls=True)
        self.trust: Final = files / "ca.pem"

    def start(self) -> None:
        super().start()
        _make_user(self.bootstrap)


GUARDED: Final[Mapping[str, Callable[[Path], Rival]]] = {
    HEADRACE_SECURED: partial(GuardedHeadrace, name=HEADRACE_SECURED, over_tls=True),
    KAFKA_SECURED: GuardedKafka,
    HEADRACE_WITH_LOGIN: partial(GuardedHeadrace, name=HEADRACE_WITH_LOGIN, over_tls=False),
    HEADRACE_WITH_ACLS: partial(GuardedHeadrace, name=HEADRACE_WITH_ACLS, over_tls=False, configs=ACLS),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Connections:
    """New connections with TLS, from so many threads at once, each used for one request and closed. No session is
    resumed."""

    about: About
    connections: int
    threads: int

    def run(self, entrant: Entrant) -> Figures:
        rival = entrant.rival
        assert isinstance(rival, (GuardedHeadrace, GuardedKafka)), "it has a door"
        context = ssl.create_default_context(cafile=str(rival.trust))
        host, _, port = rival.door.bootstrap.rpartition(":")
        codec = api(int(ApiKey.API_VERSIONS))
        assert codec is not None
        frame = b"".join(bytes(part) for part in encode_request_frame(codec, 0, 1, "raw", ApiVersionsRequest()))

        def connect(_: int) -> float:
            begun = time.perf_counter()
            with (
                socket.create_connection((host, int(port)), ANSWER_TIMEOUT_S) as plain,
                context.wrap_socket(plain, server_hostname=host, do_handshake_on_connect=False) as connection,
            ):
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # as all clients of Kafka
                connection.do_handshake()
                connection.sendall(frame)
                assert len(connection.recv(LENGTH_BYTES)) == LENGTH_BYTES, "it was answered"
            return time.perf_counter() - begun

        begun = time.perf_counter()
        with ThreadPoolExecutor(self.threads) as pool:
            took = sorted(pool.map(connect, range(self.connections)))
        rate = self.connections / (time.perf_counter() - begun)
        p50, p99 = (took[int(len(took) * share)] * 1000 for share in (0.5, 0.99))
        return Figures(rate=rate, others={"latency_p50_ms": p50, "latency_p99_ms": p99})

    def scaled(self, factor: float) -> Connections:
        return replace(self, connections=portion(self.connections, factor))


def _secured(name: str, title: str, target: Target, unit: str = "MB/s") -> About:
    return About(
        name=name,
        title=title,
        unit=unit,
        who=HEADRACE_SECURED,
        against=KAFKA_SECURED,
        ours=Durability.PAGE_CACHE,
        target=target,
        cost_targets={"cpu": at_most(1.0)},
    )


def _authorised(name: str, title: str, unit: str) -> About:
    """Ours against ours: with an authorizer and a thousand ACLs, and without."""
    return About(
        name=name,
        title=title,
        unit=unit,
        who=HEADRACE_WITH_ACLS,
        against=HEADRACE_WITH_LOGIN,
        ours=Durability.PAGE_CACHE,
        target=at_least(0.97),
        cost_targets={"cpu": at_most(1.03)},
    )


SECURED: Final = (
    Produce(
        about=_secured("secured-produce-1k", "produce 300,000 records of 1 KB over TLS, with SCRAM", at_least(1.0)),
        records=300_000,
        record_bytes=1024,
    ),
    Fetch(
        about=_secured("secured-fetch-1k", "fetch 300,000 records of 1 KB over TLS, with SCRAM", at_least(1.0)),
        filled=Filled(records=300_000, record_bytes=1024),
    ),
    Connections(
        about=_secured(
            "secured-connections", "2,000 new connections with TLS, 16 at once", at_least(0.5), "connections/s"
        ),
        connections=2_000,
        threads=16,
    ),
    Produce(
        about=_authorised(
            "authorised-unbatched", "produce 100,000 records of 100 B, one a request, with ACLs", "records/s"
        ),
        records=100_000,
        record_bytes=100,
        props=("batch.size=0", "linger.ms=0"),
        rate="records_per_s",
    ),
    Raw(
        about=_authorised(
            "authorised-unbatched-raw",
            "produce 100,000 records of 100 B, one a request, 64 in flight, with ACLs",
            "requests/s",
        ),
        requests=100_000,
        records=1,
        record_bytes=100,
        in_flight=64,
    ),
)
"""`make bench-secured`; `make bench` leaves them out."""
