"""`headrace topic move`, `moves` and `unload`, and `headrace broker drain`, against brokers in this process."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.durable.exporter import Exporter
from headrace.cli.main import main
from headrace.controller.asks.moves import FinishMove
from tests import loops
from tests.broker.group_broker import until
from tests.broker.moving import A, B, C, Moving, moving

Told = tuple[int, list[dict[str, Any]], str]


async def command(world: Moving, capsys: pytest.CaptureFixture[str], *words: str) -> Told:
    """Exit code, JSON lines, and what went to standard error."""
    arguments = [*words, "--bootstrap", world.cluster.bootstrap, "--json"]
    code = await asyncio.to_thread(main, arguments)
    out, err = capsys.readouterr()
    lines = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    return code, lines, err


def run(root: Path, work: Any) -> None:
    async def whole() -> None:
        async with moving(root) as world:
            await world.make()
            for number in range(22):
                assert await world.write(A, b"%d" % number) == number
            await work(world)

    loops.run(whole())


def test_a_dry_run_tells_what_would_be_and_moves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def work(world: Moving) -> None:
        before = world.known(A)
        code, told, _ = await command(world, capsys, "topic", "move", "t", "--to", "2", "--dry-run")
        assert code == 0
        (one,) = told
        assert (one["source"], one["target"], one["is_handed_over"], one["dry_run"]) == (A, B, True, True)
        assert one["bytes_to_export"] == world.leading(A).log.size_bytes
        await world.cluster.agree()
        assert world.known(A) == before

    run(tmp_path, work)


def test_the_dry_run_of_a_drain_tells_what_it_costs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def work(world: Moving) -> None:
        size = world.leading(A).log.size_bytes
        code, told, _ = await command(world, capsys, "broker", "drain", str(A), "--dry-run")
        *rows, last = told
        assert code == 0
        assert [(one["topic"], one["bytes_to_export"], one["bytes_to_copy"]) for one in rows] == [("t", size, None)]
        target = rows[0]["target"]
        share = {"target": target, "partitions": 1, "bytes": size, "unknown": 0, "led": 0}
        assert last == {"dry_run": True, "cost": {"targets": [share], "pause": None}}
        assert (await command(world, capsys, "broker", "drain", str(A), "--wait"))[0] == 0
        await world.until_owned(target)
        words = ["broker", "drain", str(target), "--dry-run", "--bootstrap", world.cluster.bootstrap]
        assert await asyncio.to_thread(main, words) == 0
        sentences = capsys.readouterr().out.splitlines()[-2:]
        assert re.fullmatch(
            r"1 partition would go to broker \d, with [\d,]+ bytes to export or to copy\.", sentences[0]
        )
        assert re.search(r"In the last move they waited \d+ ms\.", sentences[1])
        assert (await command(world, capsys, "broker", "drain", str(C), "--dry-run"))[:2] == (0, [])

    run(tmp_path, work)


def test_a_move_is_waited_for_and_its_pause_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def work(world: Moving) -> None:
        code, told, _ = await command(
            world, capsys, "topic", "move", "t", "--partition", "0", "--to", "2", "--throttle", "10", "--wait"
        )
        assert code == 0
        assert told[-1]["owner"] == B
        assert told[-1]["pause_ms"] >= 0
        await world.until_owned(B)
        assert await world.write(B, b"next") == 22

    run(tmp_path, work)


def test_moves_that_are_under_way_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def work(world: Moving) -> None:
        assert (await command(world, capsys, "topic", "moves"))[:2] == (0, [])
        held = world.hold(B, FinishMove)
        assert (await command(world, capsys, "topic", "move", "t", "--to", "2"))[0] == 0
        await held.seen.wait()
        code, (one,), _ = await command(world, capsys, "topic", "moves")
        assert code == 0
        assert (one["topic"], one["source"], one["target"], one["phase"]) == ("t", A, B, "recover")
        held.let_go()
        await world.until_owned(B)
        assert (await command(world, capsys, "topic", "moves"))[:2] == (0, [])

    run(tmp_path, work)


def test_what_holds_a_move_up_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: object, **__: object) -> int:
        raise OSError("the store is out")

    async def work(world: Moving) -> None:
        monkeypatch.setattr(Exporter, "export_next", fails)
        assert (await command(world, capsys, "topic", "move", "t", "--to", "2"))[0] == 0
        async with asyncio.timeout(150):
            await until(lambda: bool(world.moves(A).obstacle(world.key)))
        _, (one,), _ = await command(world, capsys, "topic", "moves")
        assert one["phase"] == "pre-copy"
        assert one["bytes_left"] == world.leading(A).log.size_bytes
        assert "the store is out" in one["obstacle"]
        monkeypatch.undo()
        await world.until_owned(B)

    run(tmp_path, work)


def test_unload_and_drain_leave_the_choice_to_the_controller(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def work(world: Moving) -> None:
        code, (one, *_), _ = await command(world, capsys, "topic", "unload", "t", "--wait")
        assert (code, one["source"], one["target"]) == (0, A, B)
        await world.until_owned(B)
        code, (one, *_), _ = await command(world, capsys, "broker", "drain", str(B), "--wait")
        assert (code, one["source"], one["target"]) == (0, B, A)
        await world.until_owned(A)
        assert (await command(world, capsys, "broker", "drain", str(C)))[:2] == (0, [])

    run(tmp_path, work)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("topic", "move", "nope", "--to", "2"), "does not exist"),
        (("topic", "move", "t", "--to", "9"), "not registered"),
        (("broker", "drain", "9"), "not registered"),
        (("topic", "move", "t", "--to", "2", "--throttle", "0"), "is no rate"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], reason: str
) -> None:
    async def work(world: Moving) -> None:
        code, _, err = await command(world, capsys, *words)
        assert code != 0
        assert reason in err

    run(tmp_path, work)
