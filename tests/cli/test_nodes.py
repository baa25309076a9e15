"""`headrace up --nodes`: the birth of a small cluster, in files and as processes."""

from __future__ import annotations

import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from headrace.base.addresses import Address
from headrace.base.errors import UsageError
from headrace.base.ids import BrokerId
from headrace.broker.home import identity, nodes
from headrace.broker.home.nodes import prepare
from headrace.storage.disk import LocalDisk
from tools import warm

COMMAND = [sys.executable, "-m", "headrace.cli.main"]
ANY_PORT = Address("127.0.0.1", 0)
DISK = LocalDisk()
WAITS = "broker 3 does not answer: waiting for the end of its session, 60 s at most\n"


def prepared(data: Path, count: int, listen: Address = ANY_PORT) -> list[nodes.Node]:
    claim, found = prepare(DISK, data, listen, count, random.Random(1))
    claim.release()
    return found


def voters(data: Path, broker: int) -> identity.Identity:
    found = identity.load(DISK, data / f"broker-{broker}", BrokerId(broker))
    assert found is not None
    return found


def test_one_voter_set_is_written_to_all_and_only_once(tmp_path: Path) -> None:
    first = prepared(tmp_path, 3)
    born = [voters(tmp_path, broker) for broker in (1, 2, 3)]
    assert len({one.voters for one in born}) == len({one.cluster_id for one in born}) == 1
    assert [(voter.broker_id, voter.port) for voter in born[0].voters] == [
        (node.id, node.listen.port) for node in first
    ]
    assert [one.directory_id for one in born] == [voter.directory_id for voter in born[0].voters]
    assert prepared(tmp_path, 3) == first
    assert [voters(tmp_path, broker) for broker in (1, 2, 3)] == born


def test_a_wiped_voter_is_not_born_again(tmp_path: Path) -> None:
    prepared(tmp_path, 3)
    (tmp_path / "broker-2" / identity.FILE_NAME).unlink()
    prepared(tmp_path, 3)
    assert identity.load(DISK, tmp_path / "broker-2", BrokerId(2)) is None, "it may only join, as a learner"


@pytest.mark.parametrize("count", [1, 3])
def test_a_cluster_that_lost_all_its_directories_is_not_born_again(tmp_path: Path, count: int) -> None:
    """Its clients would take the new one, which has nothing, for the one that has what they were acknowledged."""
    for node in prepared(tmp_path, count):
        shutil.rmtree(node.data)
    with pytest.raises(UsageError, match="none of its brokers' directories is left"):
        prepared(tmp_path, count)
    claim, _ = prepare(DISK, tmp_path / "new", ANY_PORT, count, random.Random(2))
    claim.release()


def test_the_only_broker_of_a_cluster_is_started_again_where_it_was(tmp_path: Path) -> None:
    assert prepared(tmp_path, 1) == prepared(tmp_path, 1)


def test_a_birth_that_was_cut_off_is_finished_as_it_was_planned(tmp_path: Path) -> None:
    """Killed after each of the steps, then started again: one cluster, as if nothing had been."""
    plan = nodes._plan(ANY_PORT, [20_001, 20_002, 20_003], random.Random(1), shared=False)
    for written in range(4):
        data = tmp_path / str(written)
        data.mkdir()
        nodes._save(DISK, data / nodes.FILE_NAME, plan)
        for node in plan["nodes"][:written]:
            (data / f"broker-{node['id']}").mkdir()
            identity.write(DISK, data / f"broker-{node['id']}", identity.decode(node["identity"]))
        prepared(data, 3)
        assert [identity.encode(voters(data, node["id"])) for node in plan["nodes"]] == [
            node["identity"] for node in plan["nodes"]
        ]


def test_what_cannot_be_is_refused_with_what_to_do(tmp_path: Path) -> None:
    listen = prepared(tmp_path / "three", 3)[0].listen
    with pytest.raises(UsageError, match="holds a cluster of 3 brokers: start it with --nodes 3"):
        prepared(tmp_path / "three", 2)
    with pytest.raises(UsageError, match=f"listens from {listen} on: start it with --listen {listen}"):
        prepared(tmp_path / "three", 3, Address("127.0.0.1", listen.port + 1))
    with pytest.raises(UsageError, match="choose 1 to 9"):
        prepared(tmp_path / "many", 10)
    (alone,) = identity.born(random.Random(2), {BrokerId(1): None})
    (tmp_path / "one").mkdir()
    identity.write(DISK, tmp_path / "one", alone)
    with pytest.raises(UsageError, match="one broker's directory: start it without --nodes"):
        prepared(tmp_path / "one", 3)
    claim, _ = prepare(DISK, tmp_path / "three", ANY_PORT, 3, random.Random(1))
    with pytest.raises(UsageError, match="in use"):
        prepared(tmp_path / "three", 3)
    claim.release()


def test_brokers_listen_where_they_can_be_told(tmp_path: Path) -> None:
    for everywhere in ("0.0.0.0", "::"):
        with pytest.raises(UsageError, match="name one address with --listen HOST:PORT"):
            prepared(tmp_path, 3, Address(everywhere, 0))
    assert not list(tmp_path.iterdir())
    assert all(str(node.listen).startswith("[::1]:") for node in prepared(tmp_path, 2, Address("::1", 19092)))


def headrace(*arguments: str) -> subprocess.CompletedProcess[str]:
    return warm.ran(*arguments, timeout=150)


@contextmanager
def up(
    data: Path, command: Sequence[str] = COMMAND, lines: int = 4
) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """The supervisor, and its first lines, by default those up to `ready`."""
    arguments = ["up", "--nodes", "3", "--data", str(data), "--listen", "127.0.0.1:0", "--json"]
    with subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, [process.stdout.readline().strip() for _ in range(lines)]
        finally:
            process.kill()


def test_three_brokers_run_answer_and_stop_as_one(tmp_path: Path) -> None:
    with up(tmp_path / "data") as (process, lines):
        brokers = [line.split() for line in lines[:3]]
        assert [(words[0], words[1], words[2], words[4]) for words in brokers] == [
            ("broker", str(number), "pid", "listen") for number in (1, 2, 3)
        ]
        addresses = [words[5] for words in brokers]
        assert lines[3] == f"ready {','.join(addresses)}"
        for address in addresses:
            made = headrace("topic", "create", f"by-{address.split(':')[1]}", "--bootstrap", address)
            assert (made.returncode, made.stderr) == (0, "")
        listed = headrace("broker", "list", "--json", "--bootstrap", addresses[1])
        assert [json.loads(line)["state"] for line in listed.stdout.splitlines()] == ["live"] * 3
        quorum = json.loads(headrace("quorum", "--json", "--bootstrap", addresses[2]).stdout)
        assert sorted(one["broker"] for one in quorum["members"] if one["role"] == "voter") == [1, 2, 3]
        described = headrace("broker", "describe", "2", "--json", "--bootstrap", addresses[0])
        assert json.loads(described.stdout)["quorum"] == "voter"
        refused = headrace("broker", "remove", "2", "--bootstrap", addresses[0])
        assert (refused.returncode, refused.stdout) == (1, "")
        assert refused.stderr == "headrace: Broker 2 is running: stop it before it is removed (INVALID_REQUEST).\n"
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=150)
        assert (process.returncode, out) == (0, "")
        assert err.count('"event": "stopped"') == 3
        assert err.count('"clean": true') == 3
    log = headrace("debug", "raft-log", str(tmp_path / "data" / "broker-3"), "--json")
    writes = [json.loads(line) for line in log.stdout.splitlines()]
    events = [event["event"] for write in writes for entry in write["entries"] for event in entry.get("events", [])]
    assert events.count("TopicCreated") == 3
    readable = headrace("debug", "raft-log", str(tmp_path / "data" / "broker-3"))
    assert "BrokerRegistered" in readable.stdout


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP])
def test_a_broker_that_was_killed_just_now_is_removed_once_its_session_is_over(
    tmp_path: Path, end: signal.Signals
) -> None:
    """The kernel takes connections for a process that is dying. For one that stands still it always does."""
    with up(tmp_path / "data") as (process, lines):
        _, _, _, pid, _, _ = lines[2].split()
        bootstrap = lines[0].split()[5]
        os.kill(int(pid), end)
        removed = headrace("broker", "remove", "3", "--bootstrap", bootstrap)
        if end is signal.SIGSTOP:
            os.kill(int(pid), signal.SIGKILL)
        assert removed.stderr in ("", WAITS)
        assert (removed.returncode, removed.stdout.split(";")[0]) == (0, "removed broker 3")
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=150)


def test_a_broker_that_ends_is_started_again_by_the_command_that_is_told(tmp_path: Path) -> None:
    with up(tmp_path / "data of three") as (process, lines):
        _, _, _, pid, _, address = lines[1].split()
        os.kill(int(pid), signal.SIGKILL)
        assert process.stderr is not None
        (told,) = [line for line in until_told(process.stderr, "the others go on") if "(pid " + pid in line]
        _, _, command = told.rstrip().partition("start it again with: ")
        words = shlex.split(command)
        assert words[0] == "headrace"
        with subprocess.Popen([*COMMAND, *words[1:]], stdout=subprocess.PIPE, text=True) as again:
            try:
                assert again.stdout is not None
                assert again.stdout.readline() == f"ready {address}\n"
                listed = headrace("broker", "list", "--json", "--bootstrap", address)
                assert [json.loads(line)["state"] for line in listed.stdout.splitlines()] == ["live"] * 3
            finally:
                again.terminate()


def until_told(stream: IO[str], text: str) -> Iterator[str]:
    """The lines up to the first with this text."""
    for line in stream:
        yield line
        if text in line:
            return


def test_ready_is_told_once_each_knows_that_all_serve(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nshift 2\nexec {sys.executable} -m tests.cli.late_to_know "$@"\n')
    python.chmod(0o700)
    code = (
        f"import sys; sys.executable = {str(python)!r}; import headrace.cli.main as c; sys.exit(c.main(sys.argv[1:]))"
    )
    with up(tmp_path / "data", (sys.executable, "-c", code)) as (_, lines):
        late = lines[3].split(",")[2]
        listed = headrace("broker", "list", "--json", "--bootstrap", late)
    assert [json.loads(line)["state"] for line in listed.stdout.splitlines()] == ["live"] * 3


def test_a_stop_before_all_serve_is_no_failure(tmp_path: Path) -> None:
    with up(tmp_path / "data", lines=1) as (process, _):
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=150)
        assert (process.returncode, [line.split()[0] for line in out.splitlines()]) == (0, ["broker", "broker"])
        assert "Traceback" not in err


def test_a_broker_ends_with_its_supervisor_however_that_ends(tmp_path: Path) -> None:
    with up(tmp_path / "data") as (process, _):
        process.kill()
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stderr.read().count('"event": "stopped"') == 3, "their standard error ends when they do"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["broker", "--id", "1"], "A broker needs an id and a directory"),
        (["broker", "--id", "-1", "--data", "d"], "--id -1 is not a broker's id"),
        (["broker", "--id", "1", "--data", "d", "--join", ","], "No bootstrap address given"),
        (["up", "--data", "d", "--nodes", "3", "--advertise", "h:1"], "--advertise names one address"),
        (["up", "--data", "d", "--nodes", "3", "--config", "listeners=SSL://h:1"], "those of one broker"),
        (["debug", "raft-log", "."], "holds no metadata"),
    ],
)
def test_a_usage_error_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = headrace(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
