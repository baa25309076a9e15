"""`headrace quorum recover` and `rejoin`, as an operator has them: what they refuse, say, and do."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from pathlib import Path

import pytest

from headrace.base.limits import DOCTOR_ASK_MS_MAX
from headrace.broker.home.lineage import Superseded
from headrace.cli.main import main
from headrace.net.client.cluster import Cluster as Client
from headrace.operations import diagnosis
from headrace.operations.diagnosis import findings
from headrace.operations.finding import Finding
from tests import loops
from tests.broker.clusters import Cluster, running
from tests.cli.test_doctor import commands_of


def test_a_lost_quorum_is_recovered_by_command_and_nothing_is_done_that_was_not_accepted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def said(*words: str, code: int) -> str:
        capsys.readouterr()
        assert await asyncio.to_thread(main, ["quorum", *words]) == code
        told = capsys.readouterr()
        return told.out + told.err

    async def work() -> None:
        async with running(tmp_path, 3) as cluster:
            await cluster.agree()
            one, two = str(cluster.data(1)), str(cluster.data(2))
            assert "in use by another broker" in await said("recover", "--data", one, code=2)
            await cluster.stop(2, 3, 1)
            assert "are enough: start them" in await said(
                "recover", "--data", one, "--data", two, "--accept-loss", code=2
            )
            assert "is named twice" in await said("recover", "--data", one, "--data", one, code=2)
            assert "is no broker's data directory" in await said("recover", "--data", str(tmp_path / "none"), code=2)
            assert not (tmp_path / "none").exists()
            planned = await said("recover", "--data", one, code=1)
            assert "broker 1 would vote alone, in place of the voters 1, 2, 3" in planned
            assert "nothing was changed" in planned
            assert "told, before it rejoins" in await said("rejoin", "--data", one, code=2)
            done = await said("recover", "--data", one, "--accept-loss", code=0)
            assert "start broker 1 first, then the others with --join" in done
            assert "are enough: start them" in await said("recover", "--data", one, "--accept-loss", code=2)
            await cluster.start(1)
            with pytest.raises(Superseded):
                await cluster.start(2, join=(cluster.address(1),))
            fields = json.loads(await said("rejoin", "--data", two, "--json", code=0))
            assert any(Path(fields["kept"]).glob("*.wal"))
            await cluster.start(2, join=(cluster.address(1),))

    loops.run(work())


def test_what_doctor_names_recovers_a_quorum_whose_disks_are_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnosis, "DOCTOR_ASK_MS_MAX", DOCTOR_ASK_MS_MAX)  # the quorum's answer never comes

    async def no_quorum(cluster: Cluster) -> list[Finding]:
        return [each for each in await findings(partial(Client, cluster.bootstrap)) if each.kind == "no quorum"]

    async def work() -> None:
        async with running(tmp_path, 3) as cluster:
            await cluster.agree()
            await cluster.stop(2, 3)
            cluster.wipe(2)
            cluster.wipe(3)
            (finding,) = await no_quorum(cluster)
            (mending,) = commands_of(finding)
            await cluster.stop(1)
            words = [str(cluster.data(1)) if word == "DIR" else word for word in mending]
            assert await asyncio.to_thread(main, words[:-1]) == 1, "it says what that costs"
            assert await asyncio.to_thread(main, words) == 0
            await cluster.start(1)
            assert await no_quorum(cluster) == []

    loops.run(work())


def test_what_would_be_done_is_told_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def work() -> None:
        async with running(tmp_path, 5) as cluster:
            await cluster.agree()
            await cluster.stop(1, 2, 3, 4, 5)
            words = [word for broker in (1, 2) for word in ("--data", str(cluster.data(broker)))]
            capsys.readouterr()
            assert await asyncio.to_thread(main, ["quorum", "recover", *words, "--json"]) == 1
            told = json.loads(capsys.readouterr().out)
            assert (told["broker"], told["voters"], told["done"]) == (2, [1, 2, 3, 4, 5], False)
            assert [log["broker"] for log in told["logs"]] == [1, 2]

    loops.run(work())
