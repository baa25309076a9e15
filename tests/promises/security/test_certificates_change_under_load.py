"""A broker's certificate is changed while clients write, and then the authority of all certificates. No client notices.

Every record that was acknowledged is there, and no client has met an error. A client whose certificate is of the
authority that went does not come in any more.
"""

from __future__ import annotations

import os
import socket
import ssl
from pathlib import Path
from typing import Any, Final

import pytest

from headrace.broker.requests import certificates
from headrace.testing import BrokerThread
from tests.certificates import Authority
from tests.promises.support.writing import read, until, writing
from tests.tiers import of_tier

HOST: Final = "127.0.0.1"
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


def test_certificates_and_their_authority_change_under_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificates, "TLS_REFRESH_MS", 20)
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
