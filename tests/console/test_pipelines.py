"""Pages of pipelines, and who sees which."""

from __future__ import annotations

from pathlib import Path

from headrace.console.application import application
from headrace.console.sessions import Sessions
from headrace.console.state import Settings
from tests.console.asking import Browser, console_of
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
        assert ("orders-0: a gap" in one.text, f'src="{PICTURE}"' in one.body) == (True, True)
        assert "img-src 'self' data:" in one.headers["content-security-policy"]
        assert "It has not run yet" in (await viewer.get("/pipelines/orders")).text
        for away in ("none", "..%2fpayroll", "a.json"):
            assert (await viewer.get(f"/pipelines/{away}")).status == 404
    async with console_of("127.0.0.1:1") as viewer:
        assert (await viewer.get("/pipelines")).status == 404
        assert "/pipelines" not in (await viewer.get("/search")).body


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
            await alice.log_in(*ALICE)
            assert [row[0] for row in (await alice.get("/pipelines")).rows] == ["table of orders"]
            assert (await alice.get("/pipelines/payroll")).status == 404
            await boss.log_in(*ADMIN)
            assert len((await boss.get("/pipelines")).rows) == 3
