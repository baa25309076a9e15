"""`headrace status`, `broker list` and `doctor` on real brokers: what they say of a cluster that is well, and of one
that is not.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from headrace.broker.groups.service import OFFSETS_TOPIC
from headrace.wire.messages.find_coordinator import FindCoordinatorRequest
from tests.broker.group_broker import until
from tests.broker.replication_world import World
from tests.cli.test_doctor import command, found, others, run, told_lines


def test_the_cluster_is_told_in_ten_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def work(world: World) -> None:
        await world.make("t", partitions=4)
        await world.cluster.agree()
        capsys.readouterr()
        assert await command(world, "status") == 0
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) <= 10
        told = {line.split()[0]: line for line in lines}
        assert "3 of 3 live" in told["brokers"]
        assert "bears the loss of 1 more" in told["quorum"]
        assert told["topics"].split() == ["topics", "1"]
        assert "4: each has a leader" in told["partitions"]
        assert "nothing is wrong" in told["health"]
        away = others(world.leader("t"))[0]
        await world.fence(away)
        capsys.readouterr()
        assert await command(world, "status") == 0
        told = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
        assert f"2 of 3 live; down: {away}" in told["brokers"]
        assert "0 without a leader, 4 lack replicas in sync" in told["partitions"]
        assert "headrace doctor" in told["health"]
        assert await command(world, "status", "--json") == 0
        (one,) = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
        assert (one["brokers"], one["live"], one["partitions"]) == (3, 2, 4)
        client = await world.client(world.leader("t"))
        await client.ask(4, FindCoordinatorRequest(key_type=0, coordinator_keys=("g",)))
        await until(lambda: world.cluster.image(world.leader("t")).topic(OFFSETS_TOPIC) is not None)
        await world.cluster.agree()
        assert await command(world, "status") == 0
        told = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
        assert told["topics"].split(maxsplit=1)[1] == "2, 1 of them internal"

    run(tmp_path, work)


def test_brokers_are_listed_with_what_they_lead_hold_and_have_room_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def work(world: World) -> None:
        await world.make("t", partitions=3)
        await world.cluster.agree()
        capsys.readouterr()
        assert await command(world, "broker", "list", "--json") == 0
        listed = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
        assert sum(each["leads"] for each in listed) == 3
        assert [each["replicas"] for each in listed] == [3, 3, 3]
        assert all(0 < each["disk_bytes_left"] <= each["disk_bytes"] for each in listed)
        assert await command(world, "broker", "list") == 0
        head, *rows = capsys.readouterr().out.splitlines()
        assert head.split()[-3:] == ["LEADS", "REPLICAS", "DISK"]
        assert rows[0].endswith("%")

    run(tmp_path, work)


def test_what_ails_many_partitions_for_one_cause_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def work(world: World) -> None:
        await world.make("t", partitions=5)
        away = others(world.leader("t"))[0]
        await world.fence(away)
        capsys.readouterr()
        assert await command(world, "doctor") == 1
        (line,) = told_lines(capsys)
        assert line.startswith(f"broker {away}: it is down, or not ready")
        assert "5 partitions have 2 of 3 replicas in sync" in line
        assert f"of the 3 voters of the quorum {away} is down: none more may go" in line

    run(tmp_path, work)


def test_the_removal_that_doctor_advises_is_not_refused(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        await world.make("t", partitions=2)
        away = next(each for each in others(world.leader("t")) if not is_controller(world, each))
        await world.cluster.stop(away)
        await world.cluster.fence(away)
        (down,) = await found(world, "broker down")
        _, mending, _ = down.todo.split("'")
        assert await command(world, *mending.split()[1:]) == 0
        assert await found(world, "broker down") == []

    run(tmp_path, work)


def is_controller(world: World, broker: int) -> bool:
    return world.cluster.brokers[broker].parts.metadata.is_controller
