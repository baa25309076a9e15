"""The simulated disk: POSIX taken literally. Synced data is there; anything of the rest may be."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.sim.disk import Mount, SimDisk
from headrace.sim.loop import VirtualLoop
from headrace.sim.nodes import Change, FileNode, Resize, Write, apply_change, survivors
from headrace.sim.process import Process, ProcessDied
from tests.tiers import examples

HOME = Path("/data")


class Machine:
    """A disk and the process that uses it now."""

    def __init__(self, seed: int = 0) -> None:
        self.loop = VirtualLoop(random.Random(seed))
        self.disk = SimDisk(self.loop, random.Random(seed))
        self.disk.make_durable_directory(HOME)
        self.boot()

    def boot(self) -> Mount:
        self.process = Process("program")
        self.mount = Mount(self.disk, self.process)
        return self.mount

    def power_cut(self) -> Mount:
        self.loop.kill(self.process)
        self.disk.power_cut()
        return self.boot()

    def in_worker(self, work: Callable[[], object]) -> None:
        """Run it as the process's own blocking work."""

        async def call() -> None:
            await self.loop.run_in_executor(None, work)

        self.loop.run_until_complete(self.loop.spawn(self.process, call()))

    def close(self) -> None:
        self.loop.run_until_complete(asyncio.sleep(1))
        self.loop.workers.close()
        self.loop.close()


@pytest.fixture
def machine() -> Iterator[Machine]:
    machine = Machine()
    yield machine
    machine.close()


def seeds(count: int) -> Iterator[Machine]:
    for seed in range(count):
        machine = Machine(seed)
        yield machine
        machine.close()


def write_and_sync(machine: Machine, name: str, data: bytes, *, directory: bool = True) -> None:
    def work() -> None:
        file = machine.mount.open(HOME / name, create=True)
        file.append([data])
        file.sync()
        if directory:
            machine.mount.sync_directory(HOME)

    machine.in_worker(work)


def content(mount: Mount, name: str) -> bytes | None:
    return mount.open(HOME / name).read(0, 1 << 30) if mount.exists(HOME / name) else None


# as a filesystem


def test_it_is_a_filesystem(machine: Machine) -> None:
    mount = machine.mount
    mount.make_directory(HOME / "a" / "b")
    file = mount.open(HOME / "a" / "b" / "f", create=True)
    assert file.append([b"hello ", memoryview(b"world"), bytearray(b"!")]) == 12
    file.write_at(0, [b"J"])
    assert file.read(0, 5) == b"Jello"
    file.truncate(5)
    assert (file.size(), mount.size(file.path), file.read(3, 100)) == (5, 5, b"lo")
    mount.link(file.path, HOME / "a" / "linked")
    with pytest.raises(FileExistsError):
        mount.link(file.path, HOME / "a" / "linked")
    assert content(mount, "a/linked") == b"Jello"
    mount.remove(HOME / "a" / "linked")
    mount.rename(file.path, HOME / "a" / "g")
    assert mount.list_directory(HOME / "a") == ["b", "g"]
    assert not mount.exists(HOME / "a" / "b" / "f")
    with pytest.raises(FileNotFoundError):
        mount.open(HOME / "a" / "b" / "f")
    with pytest.raises(FileNotFoundError):
        mount.open(HOME / "missing" / "f", create=True)
    mount.remove(HOME / "a" / "g")
    file.append([b" still open"])
    assert file.read(0, 100) == b"Jello still open"
    mount.remove_tree(HOME / "a")
    mount.remove_tree(HOME / "a")
    assert mount.list_directory(HOME) == []


def test_a_lock_ends_with_its_process(machine: Machine) -> None:
    machine.mount.lock(HOME / ".lock")
    with pytest.raises(BlockingIOError):
        Mount(machine.disk, Process("another")).lock(HOME / ".lock")
    machine.loop.kill(machine.process)
    Mount(machine.disk, Process("another")).lock(HOME / ".lock").release()
    machine.boot().lock(HOME / ".lock")


def test_the_page_cache_survives_a_kill(machine: Machine) -> None:
    file = machine.mount.open(HOME / "f", create=True)
    file.append([b"unsynced"])
    machine.loop.kill(machine.process)
    with pytest.raises(ProcessDied):
        file.append([b"from the grave"])
    assert content(machine.boot(), "f") == b"unsynced"


def test_a_sync_on_the_loop_is_refused(machine: Machine) -> None:
    with pytest.raises(RuntimeError, match="event loop"):
        machine.mount.open(HOME / "f", create=True).sync()
    with pytest.raises(RuntimeError, match="event loop"):
        machine.mount.sync_directory(HOME)


# durability


def test_what_was_synced_survives_every_power_cut() -> None:
    for machine in seeds(30):
        write_and_sync(machine, "f", b"synced")
        machine.mount.open(HOME / "f").append([b" and not"])
        assert (content(machine.power_cut(), "f") or b"").startswith(b"synced")


def test_a_synced_file_without_its_directory_may_be_nowhere() -> None:
    found = set()
    for machine in seeds(40):
        write_and_sync(machine, "f", b"synced", directory=False)
        found.add(content(machine.power_cut(), "f"))
    assert found == {None, b"synced"}


def test_a_synced_name_without_its_content_may_be_empty_or_anything() -> None:
    found = set()
    for machine in seeds(200):

        def work(machine: Machine = machine) -> None:
            machine.mount.open(HOME / "f", create=True).append([b"a" * 600, b"b" * 600])
            machine.mount.sync_directory(HOME)

        machine.in_worker(work)
        after = content(machine.power_cut(), "f")
        assert after is not None
        found.add("empty" if not after else "whole" if len(set(after)) == 2 and len(after) == 1200 else "other")
    assert found == {"empty", "whole", "other"}


def test_a_rename_is_the_old_or_the_new_name_never_both_or_neither() -> None:
    found = set()
    for machine in seeds(60):
        write_and_sync(machine, "old", b"content")
        machine.mount.rename(HOME / "old", HOME / "new")
        found.add(tuple(machine.power_cut().list_directory(HOME)))
    assert found == {("old",), ("new",)}


def test_a_rename_over_a_file_keeps_one_of_the_two() -> None:
    found = set()
    for machine in seeds(60):
        write_and_sync(machine, "f", b"before")
        write_and_sync(machine, "f.new", b"after")
        machine.mount.rename(HOME / "f.new", HOME / "f")
        found.add(content(machine.power_cut(), "f"))
    assert found == {b"before", b"after"}


def test_a_removed_file_may_come_back_until_the_directory_is_synced() -> None:
    found = set()
    for machine in seeds(60):
        write_and_sync(machine, "f", b"content")
        machine.mount.remove(HOME / "f")
        found.add(content(machine.power_cut(), "f"))
        if machine.mount.exists(HOME / "f"):
            machine.mount.remove(HOME / "f")
        machine.in_worker(partial(machine.mount.sync_directory, HOME))
        assert content(machine.power_cut(), "f") is None
    assert found == {None, b"content"}


def test_a_directory_that_its_parent_did_not_keep_takes_all_with_it() -> None:
    found = set()
    for machine in seeds(40):

        def work(machine: Machine = machine) -> None:
            machine.mount.make_directory(HOME / "d")
            machine.mount.open(HOME / "d" / "f", create=True).sync()
            machine.mount.sync_directory(HOME / "d")

        machine.in_worker(work)
        mount = machine.power_cut()
        found.add((mount.exists(HOME / "d"), mount.exists(HOME / "d" / "f")))
    assert found == {(False, False), (True, True)}


def test_what_was_written_after_a_sync_began_is_not_covered_by_it() -> None:
    found = set()
    for machine in seeds(60):
        file = machine.mount.open(HOME / "f", create=True)
        write_and_sync(machine, "f", b"1")

        async def race(machine: Machine = machine) -> None:
            syncing = machine.loop.run_in_executor(None, machine.mount.open(HOME / "f").sync)
            while machine.disk.syncs < 3:
                machine.mount.open(HOME / "f").append([b"x"])
                await asyncio.sleep(0.000_05)
            await syncing

        machine.loop.run_until_complete(machine.loop.spawn(machine.process, race()))
        size = file.size()
        after = content(machine.power_cut(), "f")
        assert after is not None
        found.add(len(after) < size)
    assert found == {True, False}


def test_a_failed_sync_is_not_made_good_by_the_next() -> None:
    found = set()
    for machine in seeds(60):
        write_and_sync(machine, "f", b"synced")

        def work(machine: Machine = machine) -> None:
            file = machine.mount.open(HOME / "f")
            file.append([b" lost"])
            machine.disk.fail_syncs(1)
            with pytest.raises(OSError, match="sync failure"):
                file.sync()
            file.sync()

        machine.in_worker(work)
        assert content(machine.mount, "f") == b"synced lost"
        found.add(content(machine.power_cut(), "f"))
    assert {b"synced", b"synced lost"} < found


def test_a_full_disk_refuses_and_may_keep_a_part(machine: Machine) -> None:
    file = machine.mount.open(HOME / "f", create=True)
    machine.disk.full = Path("/")
    with pytest.raises(OSError, match="full disk"):
        file.append([b"0123456789"])
    with pytest.raises(OSError, match="full disk"):
        machine.mount.open(HOME / "g", create=True)
    assert b"0123456789".startswith(file.read(0, 100))


def test_one_volume_may_be_full_and_others_not(machine: Machine) -> None:
    machine.disk.full = HOME / "logs"
    machine.mount.open(HOME / "f", create=True).append([b"there is room"])
    machine.mount.make_directory(HOME / "logs")
    with pytest.raises(OSError, match="full disk"):
        machine.mount.open(HOME / "logs" / "g", create=True)


def test_a_trigger_may_tear_the_write_in_whose_middle_it_goes_off() -> None:
    sizes = set()
    for machine in seeds(30):
        file = machine.mount.open(HOME / "f", create=True)
        machine.disk.trigger(2, partial(machine.loop.kill, machine.process))
        file.append([b"first"])
        with pytest.raises(ProcessDied):
            file.append([b"second"])
        after = content(machine.boot(), "f")
        assert after is not None
        assert b"firstsecond".startswith(after)
        sizes.add(len(after))
    assert len(sizes) > 3


# possible contents of a file on the medium


changes = st.lists(
    st.one_of(
        st.builds(Write, st.integers(0, 9000), st.binary(min_size=1, max_size=5000)),
        st.builds(Resize, st.integers(0, 9000)),
    ),
    max_size=6,
)


@given(seed=st.integers(0, 2**32), before=changes, after=changes)
@settings(max_examples=examples(150))
def test_a_power_cut_keeps_what_was_synced(seed: int, before: list[Change], after: list[Change]) -> None:
    node, chance = FileNode(), random.Random(seed)
    for change in before:
        node.change(change)
    node.end_sync(node.begin_sync())
    assert node.durable == node.data
    for change in after:
        node.change(change)
    expected = bytearray(node.durable)
    for change in node.pending:
        apply_change(expected, change)
    assert expected == node.data
    node.power_cut(chance)
    assert node.data == node.durable
    assert node.pending == []
    if not after:
        assert node.data == expected


@given(seed=st.integers(0, 2**32), data=st.binary(min_size=1, max_size=20_000))
@settings(max_examples=examples(100))
def test_an_append_never_harms_what_is_durable(seed: int, data: bytes) -> None:
    durable = bytearray(b"durable" * 100)
    kept = survivors(random.Random(seed), durable, [Write(len(durable), data)])
    assert kept[: len(durable)] == durable
    assert len(kept) <= len(durable) + len(data)


def test_every_kind_of_loss_happens() -> None:
    first, second = b"a" * 1000, b"b" * 1000
    kinds = set[object]()
    for seed in range(400):
        kept = bytes(survivors(random.Random(seed), bytearray(), [Write(0, first), Write(1000, second)]))
        if kept in (b"", first, first + second):
            kinds.add(len(kept))
        elif (first + second).startswith(kept):
            kinds.add("torn")
        elif set(kept[:1000]) == {0} and b"b" in kept:
            kinds.add("hole")
        elif set(kept) <= {0}:
            kinds.add("zeroes")
        elif set(kept) - {0, ord("a"), ord("b")}:
            kinds.add("garbage")
    assert kinds >= {0, 1000, 2000, "torn", "hole", "zeroes", "garbage"}


def test_directories_may_not_be_renamed_for_a_while(machine: Machine) -> None:
    logs = HOME / "logs"
    machine.mount.make_directory(logs / "moved-0")
    machine.mount.open(HOME / "file", create=True).close()
    machine.disk.stuck = logs
    with pytest.raises(OSError, match="simulated failure"):
        machine.mount.rename(logs / "moved-0", logs / "moved-0-delete")
    machine.mount.rename(HOME / "file", HOME / "other")
    machine.disk.heal()
    machine.mount.rename(logs / "moved-0", logs / "moved-0-delete")
    assert machine.mount.list_directory(logs) == ["moved-0-delete"]
