"""`headrace upgrade` on real brokers: it raises the feature level once all know the next one, and says who does not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from headrace.cli.main import main
from headrace.metadata.levels import METADATA_LEVEL
from tests.broker.clusters import Cluster
from tests.broker.older import of_0_1_0, upgrade
from tests.cli.test_doctor import told_lines


@asynccontextmanager
async def of_before(directory: Path) -> AsyncIterator[Cluster]:
    """Three brokers of 0.1.0, and their cluster."""
    cluster = Cluster(directory)
    cluster.give_birth(3)
    try:
        with of_0_1_0():
            await cluster.start(1, 2, 3)
        yield cluster
    finally:
        await cluster.stop(*cluster.brokers)


async def command(cluster: Cluster, *words: str) -> int:
    return await asyncio.to_thread(main, [*words, "--bootstrap", cluster.bootstrap])


async def test_a_cluster_is_upgraded_one_broker_at_a_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with of_before(tmp_path) as cluster:
        await upgrade(cluster, 1, 2)
        await cluster.agree()
        capsys.readouterr()
        for words in (("upgrade", "--dry-run"), ("upgrade",)):
            assert await command(cluster, *words) == 1
            said = capsys.readouterr()
            assert any(
                f"Broker 3 runs a release that does not know {what}: upgrade or unregister it" in said.err
                for what in ("feature level 2", "feature levels")  # the latter where broker 3 is the controller
            )
            assert [line.split() for line in said.out.splitlines() if line.endswith(("0 to 0", "0 to 2"))] == [
                ["1", "live", "0", "to", "2"],
                ["2", "live", "0", "to", "2"],
                ["3", "live", "0", "to", "0"],
            ]
        assert await command(cluster, "doctor") == 0
        assert "headrace upgrade" not in capsys.readouterr().out, "it would be refused"
        await upgrade(cluster, 3)
        await cluster.agree()
        capsys.readouterr()
        assert await command(cluster, "doctor") == 0
        (_, hint) = told_lines(capsys)
        assert hint.startswith(
            "the cluster: it is at feature level 0, and all of its brokers know 2; 'headrace upgrade'"
        )
        assert await command(cluster, "status") == 0
        told = {line.split()[0]: line for line in told_lines(capsys)}
        assert told["level"] == "level      0; all brokers know 2: 'headrace upgrade' raises it"
        assert told["health"] == "health     nothing is wrong; 'headrace doctor' has 1 hint"
        assert await command(cluster, "upgrade", "--dry-run") == 0
        assert told_lines(capsys)[-1] == "the cluster is at feature level 0, and would be raised to 2"
        assert (await cluster.agree()).level == 0
        assert await command(cluster, "upgrade") == 0
        assert told_lines(capsys)[-1] == "the cluster was at feature level 0, and is at 2 now"
        assert (await cluster.agree()).level == METADATA_LEVEL
        assert await command(cluster, "upgrade") == 0
        assert told_lines(capsys)[-1] == "the cluster is at feature level 2: there is nothing to raise"
        assert await command(cluster, "doctor") == 0
        assert len(told_lines(capsys)) == 1


async def test_a_level_may_be_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with of_before(tmp_path) as cluster:
        await upgrade(cluster, 1, 2, 3)
        await cluster.agree()
        capsys.readouterr()
        for level, why in (("1", "to 2 at least"), ("3", "2 at most"), ("-1", "a level never falls")):
            assert await command(cluster, "upgrade", "--level", level) == 1
            assert why in capsys.readouterr().err
        assert await command(cluster, "upgrade", "--level", "2", "--json") == 0
        (line,) = [each for each in told_lines(capsys) if each.startswith("{")]
        assert json.loads(line) == {
            "level": 0,
            "raised_to": 2,
            "dry_run": False,
            "brokers": {"1": [0, 2], "2": [0, 2], "3": [0, 2]},
        }
        assert (await cluster.agree()).level == METADATA_LEVEL


async def test_where_all_are_of_before_nothing_is_raised(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with of_before(tmp_path) as cluster:
        capsys.readouterr()
        assert await command(cluster, "upgrade") == 0
        assert told_lines(capsys)[-1] == (
            "the cluster is at feature level 0: there is nothing to raise before its brokers run the release of this "
            f"command, which knows {METADATA_LEVEL}"
        )
        assert await command(cluster, "upgrade", "--level", "2") == 1
        assert "No live broker is known to know feature level 2: upgrade all of them first" in capsys.readouterr().err
