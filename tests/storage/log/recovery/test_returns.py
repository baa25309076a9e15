"""A log that goes and comes back under one key, like a copy that is assigned elsewhere and here again.

Nothing that the journal still holds of the first counts for the second, after an interruption at any step.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.base.ids import Offset
from headrace.storage.log.checkpoints import Stamp, decode_fields, decode_stamp, encode_fields, encode_stamp
from headrace.storage.log.names import key_of
from tests.storage.log.journal.test_journal import BIG, World, journaled
from tests.storage.log.journal.test_journal_power_cuts import ROOMY
from tests.storage.log.journal_world import identity_of
from tests.storage.log.log_world import IDENTITY, Twin, batch, read_all
from tests.storage.log.memory_disk import PowerCut


def returned(world: World, *, is_kept: bool = False) -> Twin:
    """The first log goes to another broker, and comes back as a copy that has nothing. The journal stays."""
    old, engine = world.logs[0], world.store.engine
    old.close(clean=False)
    if is_kept:
        assert engine.set_aside(old.identity) is not None
    else:
        engine.delete(old.identity)
    twin = world.twins[0] = Twin(world.store.open(old.identity, ROOMY), epoch=6)
    return twin


@pytest.mark.parametrize("loses_power", [False, True])
@pytest.mark.parametrize("is_kept", [False, True])
def test_a_copy_that_comes_back_is_recovered_and_what_it_was_before_is_not(is_kept: bool, loses_power: bool) -> None:
    """The journal's data of the former copy continues where the new one's own file ends, and reaches beyond its end."""
    world = World()
    world.round()
    twin = returned(world, is_kept=is_kept)
    assert (twin.log.log_start_offset, twin.log.log_end_offset) == (0, 0)
    twin.append(batch(2))
    world.store.flush(*world.logs)
    rounds = journaled(world.disk)
    twin.append(batch(1, seed=5))
    world.store.flush(*world.logs)
    assert len(journaled(world.disk)) == len(rounds) + 1
    if loses_power:
        world.power_cut()
    else:
        world.restart()
    world.check()
    assert world.logs[0].read_only is None


@pytest.mark.parametrize("is_kept", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_whenever_the_power_goes_a_copy_that_comes_back_is_as_it_was_or_new(seed: int, is_kept: bool) -> None:
    at, is_through = 0, False
    while not is_through:
        at += 1
        world = World(seed=seed)
        world.round()
        before = world.twins[0].bytes_from(0)
        world.disk.cut_in = at
        try:
            returned(world, is_kept=is_kept).append(batch(2))
            world.store.flush(*world.logs)
            is_through = True
        except PowerCut:
            pass
        world.disk.power_cut()
        world.restart()
        log = world.store.open(identity_of(0), ROOMY)
        assert log.read_only is None
        now = world.twins[0].bytes_from(0)
        assert read_all(log) in ([now] if is_through else [before, b"", now])
        world.check(1)
    assert at > 8, "every step was one"


def journal_some(world: World) -> None:
    """The second round of a log may be in the journal alone."""
    before = world.store.journal.lineage_above(world.logs[0].key, -1)
    for _ in range(2):
        world.store.keep_up()
        world.round()
    assert world.store.journal.lineage_above(world.logs[0].key) > before


def cut_short(world: World) -> None:
    """The first log, to its first batch."""
    twin = world.twins[0]
    twin.log.copying.truncate_to(Offset(twin.stored[0].last_offset + 1))
    del twin.stored[1:]


@pytest.mark.parametrize("loses_checkpoint", [False, True])
def test_what_was_cut_before_or_after_a_return_stays_so(loses_checkpoint: bool) -> None:
    world = World()
    for _ in range(3):
        cut_short(world)
        journal_some(world)
    returned(world)
    for _ in range(2):
        journal_some(world)
        cut_short(world)
    if loses_checkpoint:
        journal_some(world)
    else:
        world.round()
    checkpoint = world.disk.file(world.logs[0].directory / "checkpoint.json")
    world.disk.power_cut()
    if loses_checkpoint:
        checkpoint.data[:] = checkpoint.durable[:] = b"damaged"
    world.restart()
    world.check()


def test_a_copy_may_come_back_again_and_again() -> None:
    world = World()
    for life in range(4):
        world.round()
        returned(world).epoch = 6 + life
        journal_some(world)
        if life % 2:
            world.power_cut()
        else:
            world.restart()
        world.check()
    world.store.stop(*world.logs)
    assert world.store.files == []


def test_what_has_nothing_in_the_journal_makes_no_file_before_the_first_append() -> None:
    world = World()
    for number, is_there in ((0, True), (7, False)):
        directory = world.logs[0].directory.with_name(f"orders-{number}")
        if is_there:
            returned(world)
        else:
            world.store.open(identity_of(number), ROOMY)
        assert world.disk.is_directory(directory) == is_there


def test_what_the_journal_has_written_over_counts_no_more() -> None:
    world = World()
    journal, key = world.store.journal, world.logs[0].key
    assert journal.lineage_above(key) == 1
    for _ in range(60):
        world.round(1, size=BIG)
        world.store.keep_up()
    assert journal.lineage_above(key) == 0


def test_what_an_earlier_life_left_counts_though_every_log_has_it() -> None:
    """A round that said so may be gone with the next power cut."""
    world = World()
    key = key_of(world.logs[0].identity)
    world.restart()
    world.check()
    world.store.begin_upkeep()
    assert not world.store.journal.earlier_keys
    assert world.store.journal.lineage_above(key) == 1
    assert world.store.journal.lineage_above(key, 7) == 8


def test_a_stamp_holds_any_lineage_and_one_of_earlier_versions_names_none() -> None:
    stamp = Stamp(identity=IDENTITY, birth=Offset(7), lineage=2**62)
    assert decode_stamp(encode_stamp(stamp)) == stamp
    fields = decode_fields(encode_stamp(stamp))
    del fields["lineage"]
    assert decode_stamp(encode_fields(fields)) == replace(stamp, lineage=0)
