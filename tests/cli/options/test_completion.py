"""Completion, as bash asks for it: the shell is the oracle."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ASKING = """
headrace() {{ {python} -m headrace.cli.main "$@"; }}
source <({python} -m headrace.cli.main --show-completion)
COMP_WORDS=({words}); COMP_CWORD={at}
_headrace_completion headrace
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("headrace quor", {"quorum"}),
        ("headrace topic el", {"elect"}),
        ("headrace consume --key", {"--key-separator"}),
        ("headrace produce t --acks ''", {"all", "1", "0"}),
    ],
)
def test_bash_completes_commands_and_options(words: str, offered: set[str]) -> None:
    at = len(words.split()) - 1
    script = ASKING.format(python=sys.executable, words=words, at=at)
    installed = str(Path(sys.executable).parent)  # the completion calls the command by its name
    found = {**os.environ, "PATH": f"{installed}{os.pathsep}{os.environ['PATH']}"}
    shown = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, timeout=150, env=found)
    assert set(shown.stdout.split()) == offered, shown.stderr


def test_it_installs_itself_for_the_shell_that_asks(tmp_path: Path) -> None:
    environment = {**os.environ, "HOME": str(tmp_path)}
    script = f"{sys.executable} -m headrace.cli.main --install-completion; echo $?"
    shown = subprocess.run(
        ["bash", "-c", script], env=environment, capture_output=True, text=True, check=True, timeout=150
    )
    assert shown.stdout.splitlines()[-1] == "0", shown.stderr
    assert "headrace" in (tmp_path / ".bashrc").read_text()
