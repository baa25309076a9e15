"""Every kept figure is in docs/BENCHMARKS.md once, and the README shows losses beside gains."""

from __future__ import annotations

from collections import Counter
from fnmatch import fnmatch

import pytest

from benchmarks.redis_engine.__main__ import ratios
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


def of_redis(date: str, **medians: dict[str, float]) -> dict[str, object]:
    return {"date": f"{date}T12:00:00+00:00", "medians": medians}


def test_a_row_of_redis_is_of_the_last_run_that_had_it_with_our_ratio_to_each_floor() -> None:
    whole = of_redis(
        "2026-01-01", redis={"produce-1k": 50.0, "p99-ms": 4.0}, relay={"produce-1k": 100.0, "p99-ms": 2.0}
    )
    part = of_redis("2026-01-02", redis={"produce-1k": 60.0}, relay={"produce-1k": 80.0}, checking={"produce-1k": 60.0})
    assert figures.redis_table([whole, part]).splitlines() == [
        "| case | Redis engine | relay | relay that checks | to a relay | to one that checks | of |",
        "|---|---|---|---|---|---|---|",
        "| produce 1 KB, MB/s | 60.0 | 80.0 | 60.0 | 0.75 | 1.00 | 2026-01-02 |",
        "| 5,000 records/s of 1 KB, p99, ms | 4.000 | 2.000 |  | 2.00 |  | 2026-01-01 |",
    ]


def test_the_ratios_of_a_run_of_redis_are_those_of_the_page() -> None:
    medians = {"redis": {"produce-1k": 60.0, "p50-ms": 3.0, "memory MB": 9.0}, "checking": {"produce-1k": 80.0}}
    by = ratios(medians)
    assert by == {"bare": {}, "relay": {}, "checking": {"produce-1k": 0.75}}
    assert f"| {by['checking']['produce-1k']:.2f} |" in figures.redis_table([of_redis("2026-01-01", **medians)])
