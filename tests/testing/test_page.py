"""Every program of the page for tests runs, as a user would copy it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.testing.projects import run_pytest

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "IN_TESTS.md"


def test_every_program_of_the_page_runs(tmp_path: Path) -> None:
    programs = [part.split("```")[0] for part in PAGE.read_text(encoding="utf-8").split("```python\n")[1:]]
    for number, program in enumerate(programs):
        (tmp_path / f"test_page_{number}.py").write_text(program)
    tests = sum(line.startswith(("def test_", "async def test_")) for each in programs for line in each.splitlines())
    told = run_pytest(tmp_path, "-W", "ignore")
    assert f"{tests} passed" in told, told[-3000:]
    assert tests >= len(programs)
