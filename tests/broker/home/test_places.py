"""A broker whose directories have moved does not begin an empty log in their place."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest

from headrace.base.errors import StorageFailure, UsageError
from headrace.base.ids import BrokerId
from headrace.base.ports import Disk
from headrace.broker.home import identity
from headrace.broker.home.identity import MADE, PLACES
from headrace.broker.home.places import OWNER, check_places, make_places
from headrace.storage.disk import LocalDisk
from headrace.storage.log.journal.journal import Journal
from headrace.testing import broker
from tests.broker.data_path import batch, create, fetch, produce
from tests.broker.group_broker import RawClient

BROKER = BrokerId(1)


def claim_places(disk: Disk, data: Path, me: identity.Identity) -> None:
    """As a start does."""
    check_places(disk, data, me)
    make_places(disk, data, me)


def born(number: int = 0) -> identity.Identity:
    (made,) = identity.born(Random(number), {BROKER: None})
    return made


@pytest.mark.parametrize("place", PLACES)
async def test_a_volume_that_is_not_mounted_is_no_empty_one(tmp_path: Path, place: str) -> None:
    """Its broker says so, and has all that was acknowledged once it is."""
    data, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    async with broker(data=data) as running, RawClient(running.bootstrap) as client:
        await create(client, "t")
        assert (await produce(client, "t", batch(b"a"))).error_code == 0
    (data / place).rename(elsewhere)
    for _ in range(2):
        with pytest.raises(UsageError, match=f"{place} is not the directory .* mount its volume"):
            async with broker(data=data):
                pass
        (data / place).mkdir(exist_ok=True)  # a mount point
    (data / place).rmdir()
    elsewhere.rename(data / place)
    async with broker(data=data) as running, RawClient(running.bootstrap) as client:
        assert b"a" in bytes((await fetch(client, "t", 0)).records)


def test_a_first_start_that_was_cut_short_is_gone_on_with(tmp_path: Path) -> None:
    me, disk = born(), LocalDisk()
    claim_places(disk, tmp_path, me)
    files = [tmp_path / MADE, *(tmp_path / place / OWNER for place in reversed(PLACES))]
    for count in range(len(files) + 1):  # the last that were made are not there
        for file in files[:count]:
            file.unlink()
        claim_places(disk, tmp_path, me)
        assert json.loads(files[0].read_text())["made"] == [*PLACES]
        assert all(file.is_file() for file in files)


def test_what_an_older_release_made_is_marked(tmp_path: Path) -> None:
    (tmp_path / "logs" / "t-0").mkdir(parents=True)
    claim_places(LocalDisk(), tmp_path, born())
    assert f"node.id={BROKER}\n" in (tmp_path / "logs" / OWNER).read_text()


def test_another_brokers_directory_is_refused(tmp_path: Path) -> None:
    claim_places(LocalDisk(), tmp_path / "one", born(1))
    claim_places(LocalDisk(), tmp_path / "other", born(2))
    for name in ("one", "other"):
        (tmp_path / name / "logs").rename(tmp_path / f"logs-of-{name}")
    (tmp_path / "logs-of-other").rename(tmp_path / "one" / "logs")
    with pytest.raises(UsageError, match="names another broker's directory"):
        claim_places(LocalDisk(), tmp_path / "one", born(1))


def test_a_damaged_list_is_told(tmp_path: Path) -> None:
    (tmp_path / MADE).write_text("{")
    with pytest.raises(UsageError, match="is damaged"):
        claim_places(LocalDisk(), tmp_path, born())


def test_it_is_what_kafkas_tools_read(tmp_path: Path) -> None:
    """meta.properties of version 1 (KIP-858): ids as 22 characters."""
    me = born()
    claim_places(LocalDisk(), tmp_path, me)
    lines = (tmp_path / "logs" / OWNER).read_text().splitlines()
    found = dict(line.split("=", 1) for line in lines)
    assert {*found} == {"version", "cluster.id", "node.id", "directory.id"}
    assert len(found["cluster.id"]) == len(found["directory.id"]) == 22


async def test_the_ways_on_that_a_refusal_names_are_ways_on(tmp_path: Path) -> None:
    """Nobody else has what was lost: without it. Somebody has: an empty directory, whose mount points are there."""
    data = tmp_path / "data"
    async with broker(data=data) as running, RawClient(running.bootstrap) as client:
        await create(client, "t")
    for place in PLACES:
        shutil.rmtree(data / place)
    with pytest.raises(UsageError, match=f"remove {data / MADE} to go on without"):
        async with broker(data=data):
            pass
    (data / MADE).unlink()
    async with broker(data=data) as running, RawClient(running.bootstrap) as client:
        assert (await produce(client, "t", batch(b"a"))).error_code == 0
    for place in PLACES:
        (tmp_path / "new" / place).mkdir(parents=True)
    async with broker(data=tmp_path / "new"):
        pass


async def test_what_a_damaged_journal_advises_is_a_way_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with broker(data=tmp_path) as running, RawClient(running.bootstrap) as client:
        await create(client, "t")
    with monkeypatch.context() as patch:
        patch.setattr(
            Journal, "start", lambda self: self._check(SimpleNamespace(newest=1, oldest=0, last=1, numbers=set()))
        )
        with pytest.raises(StorageFailure, match=r"remove its files named \*\.journal to go on"):
            async with broker(data=tmp_path):
                pass
    for file in (tmp_path / "journal").glob("*.journal"):
        file.unlink()
    async with broker(data=tmp_path):
        pass


async def test_a_refused_start_leaves_no_commit_log_behind(tmp_path: Path) -> None:
    """It would look like one that a voter's memory is in."""
    async with broker(data=tmp_path):
        pass
    for name in ("logs", "metadata"):
        (tmp_path / name).rename(tmp_path.parent / f"{tmp_path.name}-{name}")
    with pytest.raises(UsageError, match="metadata is empty"):
        async with broker(data=tmp_path):
            pass
    assert not (tmp_path / "metadata").exists()
