"""`headrace pipeline init`: a commented file that a run takes as it is."""

from __future__ import annotations

import tomllib
from pathlib import Path

from headrace.spark.pipelines.spec import Materialise, load
from headrace.testing import RunningBroker
from tools import warm


def test_the_file_runs_as_it_is(tmp_path: Path, headrace_broker: RunningBroker) -> None:
    file, where = str(tmp_path / "clicks.toml"), ("--bootstrap", headrace_broker.bootstrap)
    assert warm.ran("topic", "create", "clicks", *where, timeout=150).returncode == 0
    assert warm.ran("pipeline", "init", file, "--topic", "clicks", *where, timeout=150).returncode == 0
    spec = load(file)
    assert isinstance(spec, Materialise)
    assert (spec.name, spec.source.selection.topics, spec.path) == (
        "clicks",
        ("clicks",),
        str(tmp_path / "tables/clicks"),
    )
    planned = warm.ran("pipeline", "run", file, "--dry-run", timeout=150)
    assert planned.returncode == 0, planned.stderr
    assert "clicks: 0 offsets" in planned.stderr


def test_its_comments_are_keys_that_are_taken(tmp_path: Path) -> None:
    """With every commented key in its place, the file is a pipeline, too."""
    file = tmp_path / "orders.toml"
    assert warm.ran("pipeline", "init", str(file), timeout=150).returncode == 0
    lines = [line for line in file.read_text().splitlines() if not line.startswith('value = "string"')]
    begun = lines.index('pipeline = "materialise"          # or audit, compact, replay, statistics')
    every = [line.removeprefix("# ") for line in lines[begun:]]
    assert set(tomllib.loads("\n".join(every))) == {
        "pipeline", "name", "source", "decode", "columns", "table", "run", "spark",
    }  # fmt: skip
    file.write_text("\n".join(every))
    assert isinstance(load(str(file)), Materialise)


def test_a_file_that_is_there_stays(tmp_path: Path) -> None:
    file = tmp_path / "orders.toml"
    file.write_text("mine")
    refused = warm.ran("pipeline", "init", str(file), timeout=150)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.startswith(f"headrace: {file} is there already")
    assert file.read_text() == "mine"
