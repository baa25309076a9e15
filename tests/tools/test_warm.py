"""A forked command does what one does that is an interpreter of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import psutil
import pytest

from headrace import __version__
from tools import warm
from tools.warm import Door, WarmProcess

WAS_ON: Final = warm.is_on()
"""As the tier has it."""


def ran(*arguments: str) -> tuple[int, str, str]:
    """Its exit code, standard output and standard error."""
    done = warm.ran(*arguments, timeout=150)
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(autouse=True)
def _is_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the long tier, too."""
    monkeypatch.setenv(warm.IS_ON, "1")


def test_its_streams_and_exit_code_are_those_of_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = ["topic", "create", "--no-such-option"]
    forked = ran("--version"), ran(*wrong)
    assert forked[0] == (0, f"headrace {__version__}\n", "")
    monkeypatch.delenv(warm.IS_ON)
    assert (ran("--version"), ran(*wrong)) == forked


def test_directory_and_environment_are_those_of_the_one_that_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran("--version")  # before these are changed
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADRACE_DEBUG", "1")
    with (tmp_path / "log").open("wb") as file:
        process = WarmProcess(["up", "--data", "here", "--listen", "127.0.0.1:0"], stderr=file)
    with process.stdout:
        assert process.stdout.readline().startswith("ready ")
        assert (tmp_path / "here").is_dir()
        assert os.readlink(f"/proc/{process.pid}/cwd") == str(tmp_path)
        process.terminate()
        assert process.wait(60) == 0
    (tmp_path / "file").touch()
    code, _, log = ran("up", "--data", "file", "--listen", "127.0.0.1:0")
    assert code != 0
    assert "Traceback" in log, "which HEADRACE_DEBUG asks for"


def test_each_end_is_told_to_the_one_that_waits_for_it(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file:
        processes = [
            WarmProcess(["up", "--data", str(tmp_path / f"{at}"), "--listen", "127.0.0.1:0"], stderr=file)
            for at in range(2)
        ]
    for each in processes:
        assert each.stdout.readline().startswith("ready ")
        assert each.poll() is None
    killed, stopped = processes
    killed.kill()
    assert killed.wait(60) == -signal.SIGKILL
    assert stopped.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        stopped.wait(0)
    stopped.terminate()
    assert stopped.wait(60) == 0
    for each in processes:
        each.stdout.close()
        each.kill()  # of one that has ended, nobody is killed


def test_a_shell_has_its_commands_forked_at_a_door(tmp_path: Path) -> None:
    up = ("up", "--listen", "127.0.0.1:0", "--data")
    with Door(tmp_path / "door") as door:
        asks = [sys.executable, "-I", "-S", str(Path(warm.__file__).with_name("forked.py")), str(door.path)]
        for words in (["--version"], ["topic", "create", "--no-such-option"]):
            done = subprocess.run([*asks, *words], capture_output=True, text=True, check=False)
            assert (done.returncode, done.stdout, done.stderr) == ran(*words)
        with subprocess.Popen([*asks, *up, str(tmp_path / "waited-for")], stdout=subprocess.PIPE, text=True) as waits:
            assert waits.stdout is not None
            assert waits.stdout.readline().startswith("ready ")
            waits.terminate()
            assert (waits.wait(60), waits.stdout.read()) == (0, "")
        with subprocess.Popen(
            [*asks, "--apart", str(tmp_path / "pid"), *up, str(tmp_path / "apart")], stdout=subprocess.PIPE, text=True
        ) as is_over:
            assert is_over.stdout is not None
            assert is_over.wait(60) == 0
            assert is_over.stdout.readline().startswith("ready ")
        apart = psutil.Process(int((tmp_path / "pid").read_text()))
        assert os.getsid(apart.pid) == apart.pid
        apart.terminate()
        apart.wait(60)


def test_the_forking_process_has_one_thread_so_that_no_lock_is_held_when_it_forks() -> None:
    """A lock that another thread held would never be released in the forked process."""
    ran("--version")
    (forks,) = warm._made
    assert len(os.listdir(f"/proc/{forks._process.pid}/task")) == 1


def test_brokers_of_the_short_tier_are_forked() -> None:
    assert (os.environ.get("HEADRACE_TIER") != "long") == WAS_ON
    assert warm.COMMAND[0] == sys.executable


def test_a_command_that_goes_on_for_too_long_is_ended(tmp_path: Path) -> None:
    words = ("up", "--data", str(tmp_path), "--listen", "127.0.0.1:0")
    with pytest.raises(subprocess.TimeoutExpired):
        warm.ran(*words, timeout=0.1)
    with warm.Piped(words) as process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.communicate(timeout=0.1)
        assert process.wait(60) == -signal.SIGKILL


def test_a_request_that_cannot_be_sent_is_no_other_ones() -> None:
    with pytest.raises(OSError, match="too long"):
        warm.ran("x" * 10_000_000, timeout=150)
    assert ran("--version")[0] == 0
