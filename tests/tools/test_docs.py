"""Pages outside docs/, decisions, and names of modules are as the pages say. tests/docs runs the pages' blocks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("0*.md"))
OUTSIDE = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "deploy/README.md")
ROOMS = ROOT / "src" / "headrace"


@pytest.mark.parametrize("name", OUTSIDE)
def test_every_link_of_a_page_outside_the_site_leads_to_a_file(name: str) -> None:
    page = ROOT / name
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8"))
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_the_readme_has_at_most_nine_hundred_words() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 900


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.name[:4])
def test_a_decision_is_short_says_its_status_and_is_in_the_index(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    title, status = re.match(r"# \d{4}: (.*)\n\nStatus: (.*)\.\n", text).groups()  # type: ignore[union-attr]
    assert len(text.split()) <= 600
    assert f"| [{page.name[:4]}]({page.name}) | {title} | {status} |" in (page.parent / "README.md").read_text()


def test_what_a_rooms_page_names_is_there() -> None:
    """Names with a slash: a module, or a room, of the page's own room or of any other."""
    modules = {str(path.relative_to(ROOMS).with_suffix("")) for path in ROOMS.rglob("*.py")}
    known = {module.removesuffix("/__init__") for module in modules}
    for page in (ROOT / "docs" / "rooms").glob("*.md"):
        names = re.findall(r"`([a-z_]+/[a-z_/]*[a-z_])`", page.read_text(encoding="utf-8"))
        lost = [name for name in names if not any(f"/{module}".endswith(f"/{name}") for module in known)]
        assert [name for name in lost if not (ROOT / name).exists() and not (ROOT / f"{name}.py").exists()] == [], page
