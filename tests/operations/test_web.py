"""The options and the socket of servers over HTTP."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from headrace.base.addresses import Address
from headrace.base.errors import HeadraceError, UsageError
from headrace.operations.web import Tls, bound, tls_of
from tools.warm import ran


def test_a_certificate_goes_with_its_key(tmp_path: Path) -> None:
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    certificate.touch()
    assert tls_of(None, None) is None
    for one in ((certificate, None), (None, key)):
        with pytest.raises(UsageError, match="go together"):
            tls_of(*one)
    with pytest.raises(UsageError, match=r"key\.pem is no file"):
        tls_of(certificate, key)
    key.touch()
    assert tls_of(certificate, key) == Tls(certificate, key)


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = Address("127.0.0.1", taken.getsockname()[1])
        with pytest.raises(HeadraceError, match=f"The tools cannot listen on {address}"):
            bound(address, "The tools")


@pytest.mark.parametrize(("command", "who"), [("console", "The console's"), ("mcp", "The tools'")])
def test_a_file_that_is_no_certificate_is_told_in_one_sentence(command: str, who: str, tmp_path: Path) -> None:
    """In a process of its own: the command has the logs of all of its process."""
    file = tmp_path / "no.pem"
    file.write_text("nothing")
    files = ["--tls-certificate", str(file), "--tls-key", str(file)]
    done = ran(command, "--listen", "127.0.0.1:0", "--bootstrap", "127.0.0.1:1", *files, timeout=150)
    assert done.returncode != 0
    assert f"{who} certificate or key is not usable" in done.stderr
    assert "Traceback" not in done.stderr
