"""Every kept figure is in docs/BENCHMARKS.md once, and the README shows losses beside gains."""

from __future__ import annotations

from collections import Counter
from fnmatch import fnmatch

import pytest

from tools import figures


def test_the_pages_show_what_is_kept() -> None:
    outcomes = figures.kept()
    assert figures.written(figures.PAGE, figures.page(outcomes), write=False)
    assert figures.written(figures.README, figures.readme(outcomes), write=False)


def test_every_case_is_on_the_page_once() -> None:
    outcomes = figures.kept()
    page = figures.page(outcomes)
    titles = Counter(outcome["title"] for name, outcome in outcomes.items() if not name.startswith("move-"))
    assert {
        title: page.count(f"| {title} |") + page.count(f"| {title}{figures.UNCHECKED} |") for title in titles
    } == titles


def test_every_pattern_of_a_group_has_a_case() -> None:
    names = list(figures.kept())
    patterns = [pattern for group in figures.GROUPS for pattern in group.cases]
    assert all(any(fnmatch(name, pattern) for name in names) for pattern in patterns)


def test_a_case_of_no_group_is_refused() -> None:
    outcomes = figures.kept()
    with pytest.raises(ValueError, match="no-such-case"):
        figures.page({**outcomes, "no-such-case": outcomes["mixed"]})


def test_the_readme_has_at_most_ten_rows_and_losses_among_them() -> None:
    rows = figures.readme(figures.kept()).strip().splitlines()[2:]
    assert len(rows) == len(figures.ROWS) <= 10
    assert sum("**worse**" in row for row in rows) >= 2
