"""Pages of pipelines, and who sees which."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import pytest

from headrace.console.application import application
from headrace.console.pages import pipelines
from headrace.console.sessions import Sessions
from headrace.console.state import Settings
from headrace.operations.pipelines import PipelineState
from tests.console.asking import Browser, console_of, fresh
from tests.console.test_login import ADMIN, ALICE, place
from tests.operations.test_pipeline_reports import PICTURE


def fill(directory: Path) -> None:
    for topic in ("orders", "payroll"):
        (directory / f"{topic}.toml").write_text(
            f'pipeline = "materialise"\nname = "table of {topic}"\n'
            f'[source]\ntopic = "{topic}"\n[table]\npath = "{directory}/{topic}"\n'
        )
    (directory / "all.toml").write_text(
        'pipeline = "audit"\nname = "audit of all"\n[source]\ntopicPattern = ".*"\n'
        '[report]\njson = "a.json"\nhtml = "a.html"\n'
    )
    (directory / "a.json").write_text('{"ok": false, "partitions": [{"problems": ["orders-0: a gap"]}]}')
    (directory / "a.html").write_text(f'<img alt="Records a day" src="{PICTURE}">')


async def test_pipelines_are_listed_and_an_audit_shows_its_pictures(tmp_path: Path) -> None:
    fill(tmp_path)
    async with console_of("127.0.0.1:1", pipelines=tmp_path) as viewer:
        viewer.console.seen.close()
        found = await viewer.get("/pipelines")
        assert [row[:3] for row in found.rows] == [
            ["audit of all", "proves history", ".*"],
            ["table of orders", "makes a table", "orders"],
            ["table of payroll", "makes a table", "payroll"],
        ]
        one = await viewer.get("/pipelines/all")
        assert "orders-0: a gap" in one.text
        (picture,) = re.findall(r'<img src="(/pipelines/all/plots/[^"]+)" alt="Records a day"', one.body)
        shown = await viewer.get(picture)
        assert (shown.status, shown.headers["content-type"]) == (200, "image/png")
        assert shown.body == base64.b64decode(PICTURE.partition(",")[2]).decode(errors="replace")
        assert (await viewer.get(f"{picture}0")).status == 404
        assert "img-src 'self' data:" in one.headers["content-security-policy"]
        assert "It has not run yet" in (await viewer.get("/pipelines/orders")).text
        for away in ("none", "..%2fpayroll", "a.json"):
            assert (await viewer.get(f"/pipelines/{away}")).status == 404
    async with console_of("127.0.0.1:1") as viewer:
        assert (await viewer.get("/pipelines")).status == 404
        assert "/pipelines" not in (await viewer.get("/search")).body


async def test_pages_of_pipelines_are_kept_up_to_date(tmp_path: Path) -> None:
    fill(tmp_path)
    async with console_of("127.0.0.1:1", pipelines=tmp_path) as viewer:
        viewer.console.seen.close()
        found = await viewer.get("/pipelines")
        assert ('data-live="yes"' in found.body, 'hx-sse:connect="/live/pipelines"' in found.body) == (True, True)
        async with viewer.stream("/live/pipelines") as all_, viewer.stream("/live/pipelines/all") as one:
            assert "1 things do not hold" in await all_.get()
            assert "orders-0: a gap" in await one.get()
            (tmp_path / "a.json").write_text('{"ok": true, "ended_ms": 7, "partitions": [{"problems": []}]}')
            (tmp_path / "new.toml").write_text('pipeline = "replay"\nname = "a new one"\n')
            viewer.console.pipelines.want()
            told = await all_.get()
            assert ("all holds" in told, "a new one" in told) == (True, True)
            assert "All is as its catalogs say" in await one.get()
        (tmp_path / "all.toml").unlink()
        await fresh(viewer.console.pipelines)
        assert (await viewer.get("/pipelines/all")).status == 404


async def test_a_report_is_read_again_only_when_it_is_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def watched(state: PipelineState) -> pipelines.More:
        read.append(state.file.stem)
        return more_of(state)

    more_of = pipelines.more_of
    monkeypatch.setattr(pipelines, "more_of", watched)
    fill(tmp_path)
    async with console_of("127.0.0.1:1", pipelines=tmp_path) as viewer:
        viewer.console.seen.close()
        for _ in range(3):
            assert (await viewer.get("/pipelines/all")).status == 200
            await fresh(viewer.console.pipelines)
        assert read == ["all"]
        (tmp_path / "a.json").write_text('{"ok": true, "ended_ms": 7, "partitions": [{"problems": []}]}')
        await fresh(viewer.console.pipelines)
        await viewer.get("/pipelines/all")
        assert read == ["all", "all"]


async def test_a_directory_that_is_gone_is_told_and_is_no_silent_cluster(tmp_path: Path) -> None:
    async with console_of("127.0.0.1:1", pipelines=tmp_path / "gone") as viewer:
        viewer.console.seen.close()
        found = await viewer.get("/pipelines")
        assert (found.status, "is no directory" in found.text, "does not answer" in found.text) == (502, True, False)


async def test_a_viewer_sees_the_pipelines_of_topics_that_it_sees(tmp_path: Path) -> None:
    directory = tmp_path / "pipelines"
    directory.mkdir()
    fill(directory)
    async with place(tmp_path) as world:
        await world.make("orders", "payroll")
        await world.allow("topic:orders:DESCRIBE")
        assert world.sessions.login is not None
        sessions = Sessions(world.sessions.login, Settings(pipelines=directory))
        app = application(sessions, ["127.0.0.1"])
        async with app.router.lifespan_context(app):
            alice, boss = Browser(app), Browser(app)
            await boss.log_in(*ADMIN)
            assert len((await boss.get("/pipelines")).rows) == 3
            (hidden,) = re.findall(r'<img src="([^"]+)"', (await boss.get("/pipelines/all")).body)
            await alice.log_in(*ALICE)
            assert [row[0] for row in (await alice.get("/pipelines")).rows] == ["table of orders"]
            assert (await alice.get("/pipelines/payroll")).status == 404
            assert (await alice.get(hidden)).status == 404, "the picture of a pipeline that it does not see"
            assert (await boss.get(hidden)).status == 200
