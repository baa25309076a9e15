"""The judge of histories against Porcupine, which others trust: equal verdicts on 1,500 histories, sound and broken.

Porcupine's verdicts are kept in porcupine/verdicts.json, so that comparing needs no Go. Where there is Go, it gives
them again; `python -m tests.sim.cluster.test_porcupine` writes the file.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

from headrace.sim.cluster.catalog import Catalog
from headrace.sim.cluster.linear import judge
from tests.sim.cluster.histories import as_text, history

HISTORIES: Final = 1_500
PROGRAM: Final = Path(__file__).with_name("porcupine")
KEPT: Final = PROGRAM / "verdicts.json"
BROKEN_MIN: Final = 300
"""Of either verdict there are so many at least, or the comparison says little."""


def ours() -> list[str]:
    return [judge(history(seed), Catalog()).verdict.value for seed in range(HISTORIES)]


def digest() -> str:
    """Of the histories, so that verdicts are not compared that were given on others."""
    text = "\n".join(as_text(history(seed)) for seed in range(HISTORIES))
    return hashlib.sha256(text.encode()).hexdigest()


def porcupines(offline: bool) -> list[str]:
    """Run it. With `offline`, only from modules that are there already."""
    environment = os.environ | ({"GOFLAGS": "-mod=mod", "GOPROXY": "off"} if offline else {})
    said = subprocess.run(
        ["go", "run", "."],
        cwd=PROGRAM,
        env=environment,
        input="\n".join(as_text(history(seed)) for seed in range(HISTORIES)),
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    if said.returncode:
        raise OSError(said.stderr[-500:])
    return said.stdout.split()


def test_it_says_what_porcupine_said() -> None:
    kept = json.loads(KEPT.read_text())
    assert kept["histories_sha256"] == digest(), "other histories: python -m tests.sim.cluster.test_porcupine"
    said = [{"L": "linearizable", "B": "broken"}[letter] for letter in kept["verdicts"]]
    assert ours() == said
    assert BROKEN_MIN < said.count("broken") < HISTORIES - BROKEN_MIN


@pytest.mark.skipif(shutil.which("go") is None, reason="there is no go on the PATH to run Porcupine with")
def test_porcupine_still_says_so() -> None:
    try:
        said = porcupines(offline=True)
    except OSError as error:
        pytest.skip(f"Porcupine's module has not been fetched: {error}")
    assert said == ours()


def main() -> None:
    verdicts = "".join(verdict[0].upper() for verdict in porcupines(offline=False))
    KEPT.write_text(json.dumps({"histories_sha256": digest(), "verdicts": verdicts}, indent=1) + "\n")
    print(f"{KEPT}: {verdicts.count('L')} linearizable, {verdicts.count('B')} broken")


if __name__ == "__main__":
    main()
