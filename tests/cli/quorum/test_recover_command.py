"""`headrace durable recover`, and what `headrace doctor` says of it, against brokers in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.base.addresses import Address
from headrace.base.ids import NO_LEADER, BrokerId
from headrace.broker.partitions.partition import Partition
from headrace.cli.main import main
from headrace.cli.work.recovering import recovery_lines
from headrace.controller.asks.history import RecoverPartitions
from headrace.controller.recovery import RecoveryWish
from headrace.net.peer import copylink
from headrace.wire.messages.create_topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from tests import loops
from tests.broker.clusters import BY_HAND
from tests.broker.durable.test_behind_history import Failing
from tests.broker.durable.test_recovery_from_history import DURABLE, lose, until_led, with_history
from tests.broker.durable.test_recovery_from_history import run as run_brokers
from tests.broker.group_broker import until
from tests.broker.moving import A, B, C, Moving
from tests.broker.patience import findings
from tests.broker.replication_world import World, replicating
from tests.broker.tiered import objects_in
from tests.cli.test_move_commands import command

RECOVER = ("durable", "recover", "t")


def run(root: Path, work: Callable[[Moving], Awaitable[None]], objects: Any = None) -> None:
    """A, which alone had 't', is gone, and 5 of its 6 records are durable."""

    async def whole(world: Moving) -> None:
        await with_history(world)
        await lose(world, A)
        await work(world)

    run_brokers(root, whole, objects)


async def texts(world: Moving, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """The exit code and outputs, without --json."""
    capsys.readouterr()
    code = await asyncio.to_thread(main, [*words, "--bootstrap", world.cluster.bootstrap])
    out, err = capsys.readouterr()
    return code, "\n".join(line for line in out.splitlines() if line.startswith("t-")), err


def test_a_dry_run_says_what_would_be_and_what_is_lost_and_asks_for_consent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def work(world: Moving) -> None:
        before = world.known(B)
        code, out, err = await texts(world, capsys, *RECOVER, "--to", "3")
        assert code == 1
        assert out.splitlines()[0] == "t-0: broker 3 would go on behind durable history, at offset 5"
        assert (
            "t-0: offset 4 is the last that is durable; what was acknowledged above it is lost: start broker 1" in out
        )
        assert "stopped for good" in out
        assert "nothing was changed: pass --accept-loss to have it done" in err
        code, recovery_lines, err = await command(world, capsys, *RECOVER)
        assert code == 1
        (one,) = recovery_lines
        assert (one["topic"], one["partition"], one["replicas"], one["end_offset"]) == ("t", 0, [A], DURABLE - 1)
        assert (one["target"], one["refusal"], one["done"]) == (B, "", False)
        assert "--accept-loss" in err
        await world.cluster.agree()
        assert world.known(B) == before

    run(tmp_path, work)


def test_with_consent_it_is_done_and_then_there_is_nothing_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def work(world: Moving) -> None:
        code, out, err = await texts(world, capsys, *RECOVER, "--to", "3", "--accept-loss")
        assert code == 0
        assert out.splitlines() == [
            "t-0: broker 3 goes on behind durable history, at offset 5",
            "t-0: offset 4 is the last that is durable; what was acknowledged above it is lost: its log is set aside "
            "should broker 1 come back",
        ]
        assert "--accept-loss" not in err
        await until_led(world, C)
        code, recovery_lines, err = await command(world, capsys, *RECOVER, "--accept-loss")
        assert (code, recovery_lines) == (1, [])
        assert "left alone: 1;" in err
        assert "nothing is to be recovered" in err
        code, recovery_lines, _ = await command(world, capsys, *RECOVER, "--partition", "0", "--accept-loss")
        assert code == 1
        assert recovery_lines[0]["refusal"].startswith("t-0 is led by broker 3, and left alone")
        assert (recovery_lines[0]["target"], recovery_lines[0]["done"]) == (NO_LEADER, False)

    run(tmp_path, work)


def test_of_several_partitions_those_that_are_led_are_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And those that have no history are refused, which keeps nothing from the others."""

    async def work(world: Moving) -> None:
        placed = tuple(CreatableReplicaAssignment(at, (owner,)) for at, owner in enumerate((B, A, C)))
        topic = CreatableTopic(name="u", num_partitions=-1, replication_factor=-1, assignments=placed)
        client = await world.client(B)
        (made,) = (await client.ask(7, CreateTopicsRequest(topics=(topic,), timeout_ms=120_000))).topics
        assert made.error_code == 0, made.error_message
        await with_history(world)
        await lose(world, A)
        await world.cluster.until(B, lambda image: (one := image.partition_info("u", 1)) is not None and one.leader < 0)
        code, recovery_lines, err = await command(world, capsys, "durable", "recover", "u", "--accept-loss")
        assert (code, [one["partition"] for one in recovery_lines]) == (1, [1])
        assert recovery_lines[0]["refusal"] == "u-1 has no durable history to go on from: start broker 1."
        assert "left alone: 2;" in err
        assert (await command(world, capsys, *RECOVER, "--accept-loss"))[0] == 0

    run_brokers(tmp_path, work)


def test_a_broker_whose_session_is_not_over_leads_still(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though it takes no connection any more."""

    async def work(world: Moving) -> None:
        await with_history(world)
        real, away = copylink.open_link, world.cluster.address(A)

        async def reached(address: Address, *rest: Any, **more: Any) -> Any:
            if address == away:
                raise ConnectionRefusedError
            return await real(address, *rest, **more)

        monkeypatch.setattr("headrace.net.client.durable.open_link", reached)
        code, recovery_lines, _ = await command(world, capsys, *RECOVER, "--partition", "0", "--accept-loss")
        assert code == 1
        assert "ask again once its session is over (broker.session.timeout.ms)" in recovery_lines[0]["refusal"]
        assert world.known(A).leader == A

    run_brokers(tmp_path, work)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("durable", "recover", "nope"), "Topic 'nope' does not exist"),
        ((*RECOVER, "--to", "9", "--accept-loss"), "Broker 9 is not registered"),
        ((*RECOVER, "--to", "1", "--accept-loss"), "Broker 1 is not alive: start it first"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], reason: str
) -> None:
    async def work(world: Moving) -> None:
        code, recovery_lines, err = await command(world, capsys, *words)
        assert (code, recovery_lines) == (1, [])
        assert reason in err

    run(tmp_path, work)


def test_who_has_no_store_is_no_target(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It could not lead before it reads history."""

    async def work(world: Moving) -> None:
        before = world.known(C)
        world.cluster.brokers[C].parts.durable.api._recovering = None
        code, recovery_lines, err = await command(world, capsys, *RECOVER, "--to", "3", "--accept-loss")
        assert (code, recovery_lines) == (2, [])
        assert "Broker 3 has no durable store" in err
        assert world.known(C) == before

    run(tmp_path, work)


def test_without_a_store_there_is_nothing_to_recover_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def whole() -> None:
        async with replicating(tmp_path, BY_HAND) as world:
            await no_store(world, capsys)

    loops.run(whole())


async def no_store(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    await world.make("t", replicas=1)
    await world.fence(world.leader("t"))
    capsys.readouterr()
    code = await asyncio.to_thread(main, [*RECOVER, "--bootstrap", world.cluster.bootstrap])
    assert code == 2
    assert "No broker has a durable store" in capsys.readouterr().err
    (finding,) = [each for each in await findings(world.cluster) if each.kind == "offline"]
    assert "nobody else has a copy" in finding.todo


def test_doctor_names_it_where_history_is_all_that_lives(tmp_path: Path) -> None:
    async def work(world: Moving) -> None:
        (finding,) = [each for each in await findings(world.cluster) if each.kind == "offline"]
        assert finding.subject == "t-0"
        assert "start broker 1 with its disk" in finding.todo
        assert "'headrace durable recover t --partition 0'" in finding.todo
        assert "behind offset 4" in finding.todo
        assert "--unclean" not in finding.todo, "nobody could be elected"

    run(tmp_path, work)


def test_doctor_says_that_a_partition_waits_for_the_store(tmp_path: Path) -> None:
    store = Failing(objects_in(tmp_path))

    async def work(world: Moving) -> None:
        store.is_down = True
        control = world.cluster.brokers[B].parts.control
        await control.submit(RecoverPartitions(wish=RecoveryWish(topic="t", to=BrokerId(B))))
        await until(lambda: bool(world.partitions(B).waits))
        (finding,) = [each for each in await findings(world.cluster) if each.kind == "waits for history"]
        assert finding.subject == "t-0 on broker 2"
        assert "offset 5" in finding.text
        assert "the store (durable.url) can be reached" in finding.todo
        assert "scripted: the store cannot be reached" in finding.todo
        store.is_down = False
        await until(lambda: isinstance(world.partitions(B).role(world.key), Partition))
        assert not [each for each in await findings(world.cluster) if each.kind == "waits for history"]

    run(tmp_path, work, store)


def test_who_had_more_replicas_is_told_how_they_come_back() -> None:
    one = {"topic": "t", "partition": 0, "replicas": [1, 2, 3], "target": 4, "end_offset": 7, "refusal": ""}
    lines = list(recovery_lines({**one, "warning": "it is odd"}, done=True))
    assert "should broker 1, 2, 3 come back" in lines[1]
    assert lines[2:] == [
        "t-0: it has one replica then; where none are being added, 'headrace topic reassign t --replication-factor 3' "
        "adds others",
        "t-0: it is odd",
    ]
