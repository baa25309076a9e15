"""The runner of all tests reports all output of its helpers, and waits for none for ever."""

from __future__ import annotations

import os
import signal
import sys
from functools import partial
from pathlib import Path

import pytest

from tools import run_tests
from tools.run_tests import Marked

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
LINES = 700
SAYS_MUCH = f"for at in range({LINES}): print('x' * 80)"
FAILS = f"print('.'); print('= {run_tests.SUMMARY} ='); print('FAILED it'); raise SystemExit(3)"
HANGS = f"print('{run_tests.HUNG}this ++++'); print('its stacks'); raise SystemExit(124)"
LEAVES_A_CHILD = f"""
import subprocess
print("= {run_tests.SUMMARY} =", flush=True)
print(subprocess.Popen(["sleep", "1000"], stderr=subprocess.DEVNULL).pid, flush=True)
"""


def said(*programs: str, patience_s: float = 60) -> Marked:
    work = Marked("these", [[sys.executable, "-c", each] for each in programs], patience_s=patience_s)
    work.start()
    work.join()
    return work


def test_what_was_said_last_is_told_after_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    work = said(SAYS_MUCH)
    assert work.codes == [0]
    assert capsys.readouterr().out.count(work.mark) == LINES


def test_one_goes_after_the_other_and_what_failed_is_kept_to_be_told_once_more(
    capsys: pytest.CaptureFixture[str],
) -> None:
    work = said(FAILS, SAYS_MUCH, FAILS)
    assert work.codes == [3, 0, 3]
    assert work.summary == [f"= {run_tests.SUMMARY} =", "FAILED it"] * 2
    assert capsys.readouterr().out.count("FAILED") == 2


def test_what_hung_is_kept_too() -> None:
    work = said(HANGS)
    assert work.codes == [124]
    assert work.hung == [f"{run_tests.HUNG}this ++++"]


def test_a_process_whose_child_holds_the_pipe_is_waited_for_alone(capsys: pytest.CaptureFixture[str]) -> None:
    work = said(LEAVES_A_CHILD, SAYS_MUCH, patience_s=0.01)
    assert work.codes == [0, 0]
    while len(work.summary) < 2:
        work.join(0.01)
    os.kill(int(work.summary[1]), signal.SIGKILL)
    assert "something else holds its output" in capsys.readouterr().out


def test_none_begins_once_it_is_to_end() -> None:
    work = Marked("these", [[sys.executable, "-c", FAILS]])
    work.end()
    work.start()
    work.join()
    assert work.codes == []


def test_every_directory_and_file_that_is_named_is_there_once() -> None:
    named = [each for directories in run_tests.KINDS.values() for each in directories]
    named += [each for directories in run_tests.FAST.values() for each in directories if each not in named]
    for once in (named, run_tests.LONGEST):
        assert len(once) == len(set(once))
        assert all((TESTS / each).exists() for each in once)


def test_every_file_is_in_the_pool_once_and_is_taken_once(tmp_path: Path) -> None:
    run_tests.fill(tmp_path)
    expected = sorted(str(each.relative_to(ROOT)) for each in TESTS.rglob("test_*.py"))
    left = {kind: run_tests.remaining(tmp_path, kind) for kind in run_tests.ALL_KINDS}
    assert sorted(path for paths in left.values() for path in paths) == expected
    for kind, paths in left.items():
        assert {run_tests.kind_of(Path(path)) for path in paths} == {kind}
        assert list(iter(partial(run_tests.take, tmp_path, kind), None)) == paths
        assert run_tests.remaining(tmp_path, kind) == []


def test_a_process_takes_from_every_kind_that_there_is() -> None:
    """Or a file would remain."""
    for pooled in (run_tests.POOLED, run_tests.LONG_POOLED):
        assert {kind for _, kinds in pooled.values() for kind in kinds} == set(run_tests.ALL_KINDS)


def test_a_tier_is_resumed_without_what_passed_on_the_same_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_tests, "KEPT", tmp_path)
    monkeypatch.setattr(run_tests, "_commit", lambda: "the commit")
    files = [{"path": path, "passed": path != "b"} for path in ("a", "b")]
    run_tests._keep("long", files)
    assert run_tests._kept("long") == files
    assert run_tests._kept("short") == []
    monkeypatch.setattr(run_tests, "_commit", lambda: "another one")
    assert run_tests._kept("long") == []


def test_what_is_left_out_is_not_in_the_pool(tmp_path: Path) -> None:
    known = str(Path(__file__).relative_to(ROOT))
    run_tests.fill(tmp_path, without={known})
    assert all(known not in run_tests.remaining(tmp_path, kind) for kind in run_tests.ALL_KINDS)


def test_the_short_tier_alone_has_its_files_in_memory_where_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_tests, "MEMORY", tmp_path)
    monkeypatch.setattr(run_tests, "MEMORY_BYTES_MIN", 1)
    with run_tests._in_memory("short") as memory:
        assert memory is not None
        assert [*tmp_path.iterdir()] == [memory]
        assert f"--basetemp={memory / 'makes-way'}" in run_tests._files_in(memory, "makes way")
    assert not [*tmp_path.iterdir()]
    with run_tests._in_memory("long") as memory:
        assert memory is None
    monkeypatch.setattr(run_tests, "MEMORY_BYTES_MIN", 1 << 60)
    with run_tests._in_memory("short") as memory:
        assert run_tests._files_in(memory, "makes way") == []
