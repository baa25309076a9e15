"""A partition is not handed over to a broker that cannot read the durable store; nobody waits for that in silence."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from headrace.base.ids import BrokerId
from headrace.base.ports import Objects
from headrace.broker.cluster.quorum.errors import ChangeRefused, NotController
from headrace.broker.moves import service
from headrace.cli.main import main
from headrace.wire.ailments import NO_STORE
from tests import loops
from tests.broker.group_broker import until
from tests.broker.moving import A, B, C, Moving, moving
from tests.broker.patience import findings, patient
from tests.broker.tiered import objects_in

RECORDS = 22


def run(
    root: Path, work: Callable[[Moving], Awaitable[None]], stores: dict[int, Objects | None], *, export_by: int = B
) -> None:
    """`export_by`: the partition is moved to this broker and back, so that it has history; 0: it has none."""

    async def whole() -> None:
        async with moving(root, stores=stores) as world:
            await decided_by_one_with_the_store(world)
            await world.make()
            for number in range(RECORDS):
                assert await world.write(A, b"%d" % number) == number
            if export_by:
                await world.move(export_by)
                await world.move(A)
            await work(world)

    with patient():
        loops.run(whole())


async def decided_by_one_with_the_store(world: Moving) -> None:
    """Let broker 1 control. A controller without a store knows of none before anything is exported, and has a move
    copied."""
    while (deciding := (await world.cluster.decider()).metadata) is not world.cluster.brokers[A].parts.metadata:
        (first,) = [each.peer for each in deciding.quorum().members if each.peer.node == A]
        with suppress(ChangeRefused, NotController):  # another election is under way
            await deciding.transfer(first)
        await asyncio.sleep(0)


Told = tuple[int, list[dict[str, Any]], str]


async def command(world: Moving, capsys: pytest.CaptureFixture[str], *words: str) -> Told:
    """Exit code, JSON lines, and everything that was printed."""
    capsys.readouterr()
    code = await asyncio.to_thread(main, [*words, "--bootstrap", world.cluster.bootstrap, "--json"])
    out, err = capsys.readouterr()
    return code, [json.loads(line) for line in out.splitlines() if line.startswith("{")], out + err


async def until_known_as_storeless(world: Moving, broker: int) -> None:
    """Its heartbeats tell the controller, whichever broker that is by then, that it has no store."""
    await world.cluster.brokers[broker].parts.condition.look()

    def is_known() -> bool:
        controllers = (each.parts for each in world.cluster.brokers.values() if each.parts.metadata.is_controller)
        return any(BrokerId(broker) in each.cluster.controller.storeless() for each in controllers)

    async with asyncio.timeout(150):
        await until(is_known)


@pytest.mark.parametrize("more", [("--dry-run",), ()])
def test_a_broker_with_another_store_is_refused_and_the_reason_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...]
) -> None:
    async def work(world: Moving) -> None:
        before = world.known(A)
        code, (one,), _ = await command(world, capsys, "topic", "move", "t", "--to", str(C), *more)
        assert code == 1
        assert "cannot be handed over to broker 3" in one["refusal"]
        assert "not the store of the others" in one["refusal"]
        assert (await world.cluster.agree()).partition(world.key) == before
        assert await world.write(A, b"next") == RECORDS

    run(tmp_path, work, {C: objects_in(tmp_path / "another")})


@pytest.mark.parametrize("more", [("--dry-run",), ()])
def test_a_broker_without_a_store_is_refused_and_the_reason_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...]
) -> None:
    async def work(world: Moving) -> None:
        before = world.known(A)
        await until_known_as_storeless(world, C)
        code, (one,), _ = await command(world, capsys, "topic", "move", "t", "--to", str(C), *more)
        assert code == 1
        assert "it has no durable store" in one["refusal"]
        assert (await world.cluster.agree()).partition(world.key) == before

    run(tmp_path, work, {C: None})


def test_a_broker_that_reads_the_store_is_chosen_and_where_there_is_none_the_partition_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def work(world: Moving) -> None:
        code, told, said = await command(world, capsys, "broker", "drain", str(A), "--wait")
        assert code == 0, said
        assert told[0]["target"] == C, "broker 2 has another store"
        await world.until_owned(C)
        await world.stop(A)
        await world.fence(A)
        code, (one,), _ = await command(world, capsys, "broker", "drain", str(C))
        assert (code, one["topic"], one["partition"]) == (1, "t", 0)
        assert "nowhere to go" in one["refusal"]
        assert "broker 2: its durable store lacks" in one["refusal"]

    run(tmp_path, work, {B: objects_in(tmp_path / "another")}, export_by=C)


def test_doctor_names_a_broker_without_a_store_and_kafkas_reassignment_to_it_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def work(world: Moving) -> None:
        await until_known_as_storeless(world, C)
        (finding,) = [each for each in await findings(world.cluster) if each.kind == NO_STORE]
        assert finding.subject == "broker 3"
        assert "durable.url" in finding.todo
        assert await world.ask(C) != 0
        assert world.known(A).move is None

    run(tmp_path, work, {C: None})


def test_what_a_move_waits_for_is_told_in_its_list_by_doctor_and_in_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target has another store, which nobody can see before anything is exported."""

    async def work(world: Moving) -> None:
        monkeypatch.setattr(service, "MOVE_WAIT_TOLD_MS", 0)
        with capture_logs() as lines:
            assert (await command(world, capsys, "topic", "move", "t", "--to", str(C)))[0] == 0
            async with asyncio.timeout(150):
                await until(lambda: any(line["event"] == "a move waits" for line in lines))
                await until(lambda: bool(world.moves(C).obstacle(world.key)))
        (line, *_) = [line for line in lines if line["event"] == "a move waits"]
        assert "broker 3 has not read what was exported" in line["reason"]
        _, (one,), _ = await command(world, capsys, "topic", "moves")
        assert one["phase"] == "waiting for the target"
        assert "cannot be read" in one["obstacle"]
        assert one["since_ms"] > 0
        assert one["bytes_left"] >= 0
        monkeypatch.setattr("headrace.operations.diagnosis.MOVE_WAIT_TOLD_MS", 0)
        (finding,) = [each for each in await findings(world.cluster) if each.kind == "move held up"]
        assert finding.subject == "t-0"
        assert "from broker 1 to broker 3" in finding.text
        _, mending, _ = finding.todo.split("'")
        assert (await command(world, capsys, *mending.split()[1:]))[0] == 0
        await world.until_owned(A)
        assert await world.write(A, b"next") == RECORDS

    run(tmp_path, work, {C: objects_in(tmp_path / "another")}, export_by=0)
