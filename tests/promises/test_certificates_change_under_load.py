"""A broker's certificate is changed while clients write, and then the authority of all certificates. No client notices.

Every record that was acknowledged is there, and no client has met an error. A client whose certificate is of the
authority that went does not come in any more.
"""

from __future__ import annotations

import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import confluent_kafka
import pytest

from headrace.broker.requests import doors
from headrace.testing import BrokerThread
from tests.certificates import Authority
from tests.tiers import of_tier

HOST: Final = "127.0.0.1"
TOPIC: Final = "written-meanwhile"
CHANGES: Final = of_tier(short=2, long=10)


class Files:
    """The PEM files of a broker, changed as an operator does: by a rename."""

    def __init__(self, directory: Path, authority: Authority) -> None:
        self.chain, self.trust = directory / "broker.pem", directory / "trust.pem"
        self.put(self.chain, authority.issue(HOST))
        self.put(self.trust, authority.trust)

    def put(self, file: Path, *sources: Path) -> None:
        new = file.with_suffix(".new")
        new.write_bytes(b"".join(source.read_bytes() for source in sources))
        os.replace(new, file)


class Writer(threading.Thread):
    """Writes until it is stopped, over connections of its own that it makes again and again."""

    def __init__(self, configs: dict[str, Any]) -> None:
        super().__init__(daemon=True)
        self._configs = configs | {"error_cb": lambda error: self.problems.append(error.str()), "log_level": 0}
        self._over = threading.Event()
        self.problems: list[str] = []
        self.acknowledged: list[bytes] = []
        self._number = 0

    def run(self) -> None:
        """Each producer writes a few records. The first one goes on with its connection all the time."""
        lasting = confluent_kafka.Producer(self._configs)
        while not self._over.is_set():
            brief = confluent_kafka.Producer(self._configs)
            for producer in (lasting, brief):
                self._number += 1
                producer.produce(TOPIC, b"%d" % self._number, on_delivery=self._delivered)
                producer.flush(30)

    def _delivered(self, error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
        if error is None:
            self.acknowledged.append(message.value() or b"")
        else:
            self.problems.append(error.str())

    def stop(self) -> None:
        self._over.set()
        self.join(60)


@contextmanager
def writing(configs: dict[str, Any]) -> Iterator[Writer]:
    writer = Writer(configs)
    writer.start()
    try:
        yield writer
    finally:
        writer.stop()


def client(bootstrap: str, identity: Path, trust: Path) -> dict[str, Any]:
    return {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SSL",
        "ssl.ca.location": str(trust),
        "ssl.certificate.location": str(identity),
        "ssl.key.location": str(identity),
        "acks": "all",
        "linger.ms": 0,
    }


def comes_in(bootstrap: str, trust: Path, identity: Path) -> bytes | None:
    """The broker's certificate, as a client with this one is shown it; None: the client is not let in."""
    context = ssl.create_default_context(cafile=str(trust))
    context.load_cert_chain(identity)
    host, _, port = bootstrap.partition(":")
    try:
        plain = socket.create_connection((host, int(port)), 30)
        with plain, context.wrap_socket(plain, server_hostname=host) as own:
            own.sendall(b"\0\0\0\x0a\0\x12\0\0\0\0\0\x07\xff\xff")  # ApiVersions
            return own.getpeercert(binary_form=True) if own.recv(4) else None
    except (ssl.SSLError, ConnectionError):
        return None


def until(true: Callable[[], bool]) -> None:
    """The test's own timeout ends a wait in vain."""
    while not true():
        pass


def test_certificates_and_their_authority_change_under_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doors, "TLS_REFRESH_MS", 20)
    old, new = Authority.made(tmp_path / "old"), Authority.made(tmp_path / "new")
    files = Files(tmp_path, old)
    both = tmp_path / "both.pem"
    files.put(both, old.trust, new.trust)
    his, hers = old.issue("his.example", common_name="he"), new.issue("hers.example", common_name="she")
    configs = {
        "listeners": "SSL://127.0.0.1:0",
        "ssl.keystore.location": str(files.chain),
        "ssl.truststore.location": str(files.trust),
        "ssl.client.auth": "required",
    }
    with BrokerThread(configs=configs) as broker:
        at = broker.bootstrap
        with writing(client(at, his, both)) as first:
            for _ in range(CHANGES):
                shown = comes_in(at, both, his)
                files.put(files.chain, old.issue(HOST))
                until(lambda known=shown: comes_in(at, both, his) not in (known, None))  # type: ignore[misc]
            assert comes_in(at, both, hers) is None
            files.put(files.trust, old.trust, new.trust)
            until(lambda: comes_in(at, both, hers) is not None)
            files.put(files.chain, new.issue(HOST))
            until(lambda: comes_in(at, new.trust, his) is not None)
            with writing(client(at, hers, new.trust)) as second:
                until(lambda: len(second.acknowledged) > 2)
                first.stop()
                files.put(files.trust, new.trust)
                until(lambda: comes_in(at, new.trust, his) is None)
                many = len(second.acknowledged)
                until(lambda: len(second.acknowledged) > many + 2)
        for writer in (first, second):
            assert not writer.problems
        acknowledged = first.acknowledged + second.acknowledged
        assert sorted(read(client(at, hers, new.trust), len(acknowledged))) == sorted(acknowledged)


def read(configs: dict[str, Any], wanted: int) -> list[bytes]:
    """So many records."""
    consumer = confluent_kafka.Consumer({**configs, "group.id": "r", "auto.offset.reset": "earliest"})
    consumer.assign([confluent_kafka.TopicPartition(TOPIC, 0, 0)])
    found: list[bytes] = []
    while len(found) < wanted:
        if (message := consumer.poll(10)) is not None:
            assert message.error() is None
            found.append(message.value() or b"")
    consumer.close()
    return found
