"""The command as a process: the one line of `up`, its clean stop, signals and pipes."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource

from headrace.testing import RunningBroker
from tools import warm

COMMAND = (sys.executable, "-m", "headrace.cli.main")


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@contextmanager
def up(data: Path, *more: str) -> Iterator[tuple[subprocess.Popen[str] | warm.Piped, str]]:
    """A broker process and the one line that it printed."""
    with warm.begun("up", "--data", str(data), "--listen", "127.0.0.1:0", *more) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline()
        finally:
            process.kill()


def headrace(*arguments: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    if not stdin and not environment:
        return warm.ran(*arguments, timeout=150)
    return subprocess.run(
        [*COMMAND, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
        timeout=150,
    )


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_up_says_ready_once_and_stops_cleanly(tmp_path: Path, stop: signal.Signals) -> None:
    with up(tmp_path / "data") as (process, line):
        word, address = line.split()
        assert word == "ready"
        assert headrace("topic", "create", "there", "--bootstrap", address).returncode == 0
        process.send_signal(stop)
        out, err = process.communicate(timeout=150)
        assert (process.returncode, out) == (0, "")
        events = [json.loads(entry)["event"] for entry in err.splitlines()]
        assert events[0] == "ready"
        assert events[-1] == "stopped"
    with up(tmp_path / "data") as (_, line):
        listed = headrace("topic", "list", "--json", HEADRACE_BOOTSTRAP=line.split()[1])
        assert json.loads(listed.stdout)["topic"] == "there"


def test_a_second_broker_on_one_directory_is_refused(tmp_path: Path) -> None:
    with up(tmp_path):
        refused = headrace("up", "--data", str(tmp_path), "--listen", "127.0.0.1:0")
        assert refused.returncode in (1, 2)
        assert refused.stdout == ""
        assert str(tmp_path) in refused.stderr
        assert "Traceback" not in refused.stderr


def test_up_refuses_what_it_cannot_do(tmp_path: Path) -> None:
    for arguments, said in (
        (["--listen", "127.0.0.1:port"], "HOST:PORT"),
        (["--config", "no.such.config=1"], "no.such.config"),
        (["--durable", "gopher://store"], "gopher"),
        (["--listen", "0.0.0.0:0"], "add --advertise HOST:PORT"),
        (["--listen", "[::]:0"], "listens on [::]:0, every address of this machine"),
        (["--listen", ":::9092"], "[IPV6]:PORT"),
        (["--advertise", "0.0.0.0:9092"], "--advertise 0.0.0.0 is no address that clients can connect to"),
        (["--advertise", "[::]"], "--advertise :: is no address"),
        (["--listen", "0.0.0.0:0", "--advertise", "localhost"], "or accept that with --insecure"),
        (["--config", "listeners=PLAINTEXT://127.0.0.1:0"], "--listen and the config listeners say the same thing"),
        (["--nodes", "3", "--listen", "0.0.0.0:0"], "nobody can connect to 0.0.0.0:0: name one address"),
    ):
        refused = headrace("up", "--data", str(tmp_path), "--listen", "127.0.0.1:0", *arguments)
        assert refused.returncode in (1, 2), arguments
        assert said in refused.stderr
        assert refused.stderr.count("\n") == 1
        assert refused.stdout == ""


def test_who_listens_everywhere_is_told_as_it_is_advertised(tmp_path: Path) -> None:
    """And at the port that it listens on, where none is advertised."""
    with up(tmp_path / "data", "--listen", "0.0.0.0:0", "--advertise", "127.0.0.1", "--insecure") as (_, line):
        word, address = line.split()
        assert (word, address.partition(":")[0]) == ("ready", "127.0.0.1")
        (told,) = json.loads(f"[{headrace('broker', 'list', '--json', '--bootstrap', address).stdout}]")
        assert f"{told['host']}:{told['port']}" == address


def test_configs_come_from_a_file_too(tmp_path: Path) -> None:
    """Secrets are not for the list of processes. The command line goes before the file."""
    file = tmp_path / "server.properties"
    file.write_text("# ours\nnum.partitions = 7\nssl.key.password=quite secret\n")
    with up(tmp_path / "data", "--config-file", str(file), "--config", "num.partitions=5") as (_, line):
        address = line.split()[1]
        assert headrace("topic", "create", "t", "--bootstrap", address).returncode == 0
        told = headrace("topic", "describe", "t", "--json", "--bootstrap", address).stdout
        assert told.count('"leader"') == 5
        admin = AdminClient({"bootstrap.servers": address})
        resource = ConfigResource(ConfigResource.Type.BROKER, "1")
        configs = admin.describe_configs([resource])[resource].result(150)
        assert (configs["ssl.key.password"].value, configs["ssl.key.password"].is_sensitive) == (None, True)
    missing = headrace("up", "--data", str(tmp_path / "other"), "--config-file", str(tmp_path / "none"))
    assert missing.stderr == f"headrace: --config-file {tmp_path / 'none'} cannot be read: No such file or directory.\n"


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_ipv6_addresses_are_in_brackets_wherever_they_are_told(tmp_path: Path) -> None:
    with up(tmp_path / "data", "--listen", "[::1]:0", "--config", "metrics.listen=[::1]:0") as (process, line):
        word, address = line.split()
        assert word == "ready"
        assert re.fullmatch(r"\[::1\]:\d+", address)
        assert headrace("topic", "create", "there", "--bootstrap", address).returncode == 0
        assert f" {address} " in headrace("broker", "list", "--bootstrap", address).stdout
        admin = AdminClient({"bootstrap.servers": address})
        (node,) = admin.describe_cluster(request_timeout=60).result().nodes
        assert f"[{node.host}]:{node.port}" == address
        asked = ConfigResource(ConfigResource.Type.BROKER, "1")
        configs = admin.describe_configs([asked], request_timeout=60)[asked].result()
        assert configs["advertised.listeners"].value == f"PLAINTEXT://{address}"
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=150)
    events = {entry["event"]: entry for entry in map(json.loads, err.splitlines())}
    assert events["metrics"]["url"].startswith("http://[::1]:")


def test_a_pipe_whose_reader_leaves_is_quiet(headrace_broker: RunningBroker) -> None:
    environment = {**os.environ, "HEADRACE_BOOTSTRAP": headrace_broker.bootstrap}
    assert headrace("topic", "create", "piped", "--partitions", "1", **environment).returncode == 0
    lines = "".join(f"{number}\n" for number in range(100_000))
    assert headrace("produce", "piped", stdin=lines, **environment).returncode == 0
    with subprocess.Popen(
        [*COMMAND, "consume", "piped"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"0\n"
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 1


def test_an_interrupted_reader_ends_quietly(headrace_broker: RunningBroker) -> None:
    environment = {**os.environ, "HEADRACE_BOOTSTRAP": headrace_broker.bootstrap}
    headrace("topic", "create", "watched", "--partitions", "1", **environment)
    headrace("produce", "watched", stdin="x\n", **environment)
    with subprocess.Popen(
        [*COMMAND, "consume", "watched"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"x\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=150)
        assert (process.returncode, out, err) == (130, b"", b"")


def test_an_interrupted_writer_ends_though_its_input_is_silent(headrace_broker: RunningBroker) -> None:
    environment = {**os.environ, "HEADRACE_BOOTSTRAP": headrace_broker.bootstrap}
    headrace("topic", "create", "typed", "--partitions", "1", **environment)
    with (
        subprocess.Popen([*COMMAND, "produce", "typed"], stdin=subprocess.PIPE, env=environment) as writer,
        subprocess.Popen([*COMMAND, "consume", "typed"], stdout=subprocess.PIPE, env=environment) as reader,
    ):
        assert writer.stdin is not None
        assert reader.stdout is not None
        writer.stdin.write(b"one line\n")
        writer.stdin.flush()
        assert reader.stdout.readline() == b"one line\n"
        writer.send_signal(signal.SIGINT)
        assert writer.wait(60) == 130
        reader.send_signal(signal.SIGINT)
        assert reader.wait(60) == 130


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_a_demo_that_is_ended_stops_its_broker(tmp_path: Path, stop: signal.Signals) -> None:
    command = [*COMMAND, "demo", "--json", "--dir", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        events = map(json.loads, iter(process.stdout.readline, ""))
        started = next(event for event in events if event.get("pid"))
        os.kill(started["pid"], 0)
        process.send_signal(stop)
        _, err = process.communicate(timeout=150)
        assert process.returncode in (128 + signal.SIGTERM, 130)
        assert "Traceback" not in err
    with pytest.raises(ProcessLookupError):
        os.kill(started["pid"], 0)


def test_the_whole_image_is_logged_where_everything_is(tmp_path: Path) -> None:
    with up(tmp_path / "data", "--log-level", "debug") as (process, _):
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=150)
    reports = [entry for entry in map(json.loads, err.splitlines()) if entry["event"] == "metadata"]
    assert [broker["id"] for broker in reports[0]["brokers"]] == [1]
    with up(tmp_path / "data") as (process, _):
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=150)
    assert '"metadata"' not in err
    refused = headrace("up", "--data", str(tmp_path / "data"), "--log-level", "loud")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "--log-level loud cannot be: choose debug, info, warning, error" in refused.stderr
