"""The demo's output: headings, progress bars with rate and time left, and checks; or JSON events, one per line."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.table import Table
from rich.text import Text

STEPS = 6


class Meter:
    """A progress bar's handle. It is cheap to call often: it redraws by itself."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task

    def update(self, done: float, total: float | None = None) -> None:
        self._progress.update(self._task, completed=done, total=total)


class _Rate(ProgressColumn):
    """Done per second, over the whole of the task."""

    def render(self, task: Task) -> Text:
        seconds = task.finished_time if task.finished_time is not None else task.elapsed
        rate = task.completed / seconds if seconds else 0.0
        return Text(f"{rate:>9,.0f}/s" if rate >= 1 else " " * 11, style="cyan")


class _Count(ProgressColumn):
    """The number done, once the total is known."""

    def render(self, task: Task) -> Text:
        return Text(f"{task.completed:>9,.0f}" if task.total is not None and task.total > 1 else " " * 9)


class _Time(ProgressColumn):
    """The time left where it is known, else the time taken so far."""

    def render(self, task: Task) -> Text:
        if task.finished_time is not None:
            return Text(f"{task.finished_time:6.1f} s", style="dim")
        if task.time_remaining is not None and task.total is not None:
            return Text(f"{task.time_remaining:6.0f} s left", style="yellow")
        return Text(f"{task.elapsed or 0.0:6.0f} s", style="dim")


class Screen:
    """The output of the demo's story. With `as_json`, events go to standard output and bars to standard error."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._console = Console(file=sys.stderr if as_json else sys.stdout, highlight=False)
        self.failures: list[str] = []

    def event(self, kind: str, **fields: Any) -> None:
        """Print a JSON event, where JSON was requested."""
        if self._as_json:
            sys.stdout.write(json.dumps({"event": kind, **fields}, ensure_ascii=False) + "\n")
            sys.stdout.flush()

    def say(self, text: str) -> None:
        """Print one line for people."""
        if not self._as_json:
            self._console.print(text, soft_wrap=True)

    @contextmanager
    def step(self, number: int, name: str, title: str) -> Iterator[dict[str, Any]]:
        """One of the steps: a heading, and at its end an event with the facts that the block put in the dict."""
        self.say(f"\n[bold]{number}/{STEPS}  {title}[/bold]")
        self.event("step", step=number, name=name, state="start")
        started = time.monotonic()
        facts: dict[str, Any] = {}
        yield facts
        seconds = time.monotonic() - started
        self.event("step", step=number, name=name, state="done", seconds=round(seconds, 3), **facts)

    @contextmanager
    def meter(self, what: str, total: float | None) -> Iterator[Meter]:
        """A progress bar while the block runs."""
        columns = (
            TextColumn("     {task.description:<18}"),
            BarColumn(bar_width=28),
            _Count(),
            _Rate(),
            _Time(),
        )
        disabled = self._as_json and not sys.stderr.isatty()
        with Progress(*columns, console=self._console, disable=disabled) as progress:
            yield Meter(progress, progress.add_task(what, total=total))

    def check(self, name: str, problems: Sequence[str]) -> None:
        """Show a check, and remember it where it does not hold."""
        holds = not problems
        self.event("check", check=name, ok=holds, problems=list(problems))
        mark = "[green]✓[/green]" if holds else "[bold red]✗[/bold red]"
        self.say(f"     {mark} {name}")
        for problem in problems:
            self.say(f"       [red]{problem}[/red]")
            self.failures.append(f"{name}: {problem}")

    def table(self, columns: Mapping[str, bool], rows: Sequence[Sequence[str]]) -> None:
        """Print a table. `columns` maps each heading to whether it holds numbers."""
        if self._as_json:
            return
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column("    ")
        for heading, is_number in columns.items():
            table.add_column(heading, justify="right" if is_number else "left", no_wrap=True)
        for row in rows:
            table.add_row("    ", *row)
        self._console.print(table)
