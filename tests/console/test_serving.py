"""`headrace console` as a process: its one line, a page over HTTP, a stream, and its clean stop."""

from __future__ import annotations

import os
import signal
import ssl
import subprocess
import sys
import urllib.request
from http.client import HTTPException
from pathlib import Path

import pytest

from headrace.cli.main import main
from headrace.testing import RunningBroker
from tests.certificates import Authority

COMMAND = (sys.executable, "-m", "headrace.cli.main", "console", "--listen", "127.0.0.1:0")


def test_the_command_says_ready_serves_and_stops_with_open_pages(headrace_broker: RunningBroker) -> None:
    command = [*COMMAND, "--bootstrap", headrace_broker.bootstrap]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            ready, address = process.stdout.readline().split()
            assert (ready, address.startswith("http://127.0.0.1:")) == ("ready", True)
            with urllib.request.urlopen(address, timeout=60) as page:
                assert "1</b> of 1 live" in page.read().decode()
            with urllib.request.urlopen(f"{address}live/", timeout=60) as stream:
                assert stream.readline().startswith(b"data: ")
                process.send_signal(signal.SIGTERM)
                assert process.wait(60) in (0, -signal.SIGTERM)
            assert process.stderr is not None
            assert process.stderr.read() == ""
        finally:
            process.kill()


def test_up_starts_a_console_beside_its_broker_and_takes_it_along(tmp_path: Path) -> None:
    command = [*COMMAND[:3], "up", "--data", str(tmp_path), "--listen", "127.0.0.1:0", "--console", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            word, address = process.stdout.readline().split()
            assert word == "console"
            assert process.stdout.readline().startswith("ready ")
            with urllib.request.urlopen(address, timeout=60) as page:
                assert "1</b> of 1 live" in page.read().decode()
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()
    while is_served(address):
        pass


def test_up_hands_options_on_to_its_console(tmp_path: Path) -> None:
    (tmp_path / "schemas").mkdir()
    (tmp_path / "pipelines").mkdir()
    command = [*COMMAND[:3], "up", "--data", str(tmp_path / "data"), "--listen", "127.0.0.1:0"]
    command += ["--console", "127.0.0.1:0", "--allow-changes", "--mask", "orders:value.name=not shown", "--json"]
    command += ["--schemas", str(tmp_path / "schemas"), "--schema-registry", "http://ada:of-ada@127.0.0.1:1"]
    command += ["--pipelines", str(tmp_path / "pipelines"), "--prometheus", "http://127.0.0.1:1"]
    environment = {**os.environ, "HEADRACE_CONSOLE_HOST": "console.test"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    ) as process:
        try:
            assert process.stdout is not None
            word, address = process.stdout.readline().split()
            assert word == "console"
            named = urllib.request.Request(address, headers={"host": "console.test"})
            with urllib.request.urlopen(named, timeout=60) as page:
                text = page.read().decode()
            told = ("changes are allowed", 'href="/pipelines"', "?range=7d")
            assert [each for each in told if each not in text] == []
            with urllib.request.urlopen(f"{address}pipelines", timeout=60) as page:
                assert "There is no pipeline in the directory" in page.read().decode()
        finally:
            process.terminate()
            process.wait(60)


def test_up_secure_asks_the_consoles_viewers_to_log_in(tmp_path: Path) -> None:
    command = [*COMMAND[:3], "up", "--secure", "--data", str(tmp_path), "--listen", "127.0.0.1:0"]
    command += ["--console", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            told = dict(process.stdout.readline().strip().split(" ", 1) for _ in range(2))
            with urllib.request.urlopen(f"{told['console']}topics", timeout=60) as page:
                assert page.url == f"{told['console']}login?next=%2Ftopics"
                assert 'type="password"' in page.read().decode()
        finally:
            process.terminate()
            process.wait(60)


def test_it_speaks_tls_with_a_certificate_of_its_own(tmp_path: Path) -> None:
    authority = Authority.made(tmp_path / "authority")
    pair = authority.issue("127.0.0.1", common_name="console")
    command = [*COMMAND, "--bootstrap", "127.0.0.1:1", "--tls-certificate", str(pair), "--tls-key", str(pair)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().split()[1]
            assert address.startswith("https://127.0.0.1:")
            trusting = ssl.create_default_context(cafile=str(authority.trust))
            with urllib.request.urlopen(f"{address}search", timeout=60, context=trusting) as page:
                assert "Secure" in page.headers["set-cookie"]
        finally:
            process.terminate()


def is_served(address: str) -> bool:
    try:
        urllib.request.urlopen(address, timeout=60).close()
    except (OSError, HTTPException):
        return False
    return True


def test_it_lets_others_in_only_where_somebody_says_so() -> None:
    assert main(["console", "--listen", "0.0.0.0:0"]) == 2
    assert main(["console", "--listen", "0.0.0.0:0", "--login"]) == 2, "passwords would go in clear text"
    assert main(["console", "--login"]) == 2, "nobody could log in"
    assert main(["console", "--mask", "orders"]) == 2
    assert main(["console", "--tls-certificate", __file__]) == 2


def test_it_leads_to_an_identity_provider_and_refuses_options_that_do_not_go_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    properties, secret = tmp_path / "client.properties", tmp_path / "secret"
    properties.write_text("security.protocol=SASL_PLAINTEXT\nsasl.mechanism=OAUTHBEARER\n")
    secret.write_text("of the console\n")
    for options, says in (
        (["--oidc-client-id", "console"], "go with --oidc-issuer"),
        (["--oidc-issuer", "https://id.test"], "needs --oidc-client-id"),
        (["--oidc-issuer", "https://id.test", "--oidc-client-secret-file", "/no/such"], "cannot be read"),
        (["--oidc-issuer", "https://id.test", "--oidc-client-id", "c"], "security.protocol is PLAINTEXT"),
    ):
        assert main(["console", "--listen", "127.0.0.1:0", *options]) == 2
        assert says in capsys.readouterr().err.replace("\n", " ")
    command = [
        *COMMAND,
        "--oidc-issuer",
        "https://id.test",
        "--oidc-client-id",
        "c",
        "--command-config",
        str(properties),
    ]
    command += ["--oidc-client-secret-file", str(secret), "--oidc-parameter", "audience=kafka"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            with urllib.request.urlopen(process.stdout.readline().split()[1], timeout=60) as page:
                text = page.read().decode()
            assert ('href="/login/oidc"' in text, "Log in at id.test" in text, "password" in text) == (
                True,
                True,
                False,
            )
        finally:
            process.terminate()
            process.wait(60)


def test_it_shows_avro_by_schemas_and_tells_no_password(
    headrace_broker: RunningBroker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for options, says in (
        (["--schemas", "/no/such"], "is no directory"),
        (["--schema-registry", "registry"], "has to be a URL like"),
        (["--schema-registry", "http://ada:of-ada@registry.test"], "would send a password to registry.test"),
    ):
        assert main(["console", "--listen", "127.0.0.1:0", *options]) == 2
        told = capsys.readouterr().err.replace("\n", " ")
        assert (says in told, "of-ada" in told) == (True, False)
    command = [*COMMAND, "--schemas", str(tmp_path), "--schema-registry", "http://ada:of-ada@127.0.0.1:1"]
    command += ["--bootstrap", headrace_broker.bootstrap]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            with urllib.request.urlopen(process.stdout.readline().split()[1], timeout=60) as page:
                assert "of-ada" not in page.read().decode()
        finally:
            process.terminate()
        assert process.stderr is not None
        assert "of-ada" not in process.stderr.read()
        assert process.wait(60) in (0, -signal.SIGTERM)
