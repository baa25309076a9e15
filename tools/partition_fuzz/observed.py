"""Everything that can be seen of a world. Nothing here changes anything: not even the last stable offset is asked."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from headrace.base.ports import Buffer
from headrace.sim.nodes import DirectoryNode, FileNode
from headrace.storage.log.segment import Segment
from tools.partition_fuzz.world import World

SEGMENTS_SEEN = 3
"""Last segments that are compared after each operation; all are at the end."""
Seen = dict[str, object]
_SEGMENT = (
    "base", "end", "size", "created_ms", "first_timestamp", "max_timestamp", "max_timestamp_offset", "times_known",
    "since_entry", "last_entry_time", "synced", "pins", "used",
)  # fmt: skip


def seen_of(world: World, *, all_of_it: bool = False) -> Seen:
    seen: Seen = {"told": list(world.told), "position": world.position}
    _partition(seen, world)
    _waiting(seen, world)
    _producers(seen, world)
    _log(seen, world)
    _contents(seen, world, all_of_it=all_of_it)
    _engine(seen, world)
    if all_of_it:
        seen["disk"] = dict(files(world.disk.root, ""))
        seen["stable"] = world.partition.last_stable_offset
    return seen


def differing(one: Seen, other: Seen) -> list[str]:
    """Lines that tell where they differ."""
    names = [name for name in {**one, **other} if one.get(name) != other.get(name)]
    return [f"{name}:\n  native: {one.get(name)!r}\n  python: {other.get(name)!r}" for name in names]


def files(directory: DirectoryNode, path: str) -> Iterable[tuple[str, object]]:
    """Each file's bytes, and those that are durable."""
    yield f"{path}/", sorted(directory.durable)
    for name, node in directory.names.items():
        if isinstance(node, DirectoryNode):
            yield from files(node, f"{path}/{name}")
        else:
            assert isinstance(node, FileNode)
            yield f"{path}/{name}", (bytes(node.data), bytes(node.durable))


def _partition(seen: Seen, world: World) -> None:
    partition = world.partition
    leader = partition.isr.leader
    seen["leader"] = leader
    seen["leader's kind"] = type(leader), type(leader.isr_ends), list(leader.isr_ends.items())
    seen["ended"] = partition._ended, partition.is_fenced, partition.open_since_ms, partition._doubted_at
    seen["bytes"] = partition._appended_bytes, partition._snapshot_at_bytes, partition._flushing_bytes
    seen["room"] = partition._share.left, world.room._found_none, len(world.room._waiting)
    seen["visible bytes"] = partition._visible_bytes.known, list(partition._visible_bytes._flushed)
    gate = partition.gate
    seen["gate"] = gate.is_stopped, gate.is_proposed, gate.takes_over, len(gate._waiting), gate._bytes
    seen["line"] = len(partition.line._places or ()), world.repacker.waiting_bytes
    earlier = partition.earlier
    overtaking = earlier._overtaking
    seen["earlier"] = earlier._taken_over_at, list(earlier._turned_away._first.items())
    seen["overtaking"] = overtaking._until, overtaking._heard


def _waiting(seen: Seen, world: World) -> None:
    partition = world.partition
    fetches = partition.fetches
    seen["fetches"] = fetches._stable_told, fetches._withheld_bytes, len(fetches._waiting)
    seen["commits"] = [each for each, _ in partition._commits._waiting]
    seen["flushes"] = len(partition._flushes._next), len(partition._flushes._under_way or ())
    seen["feeds"] = len(partition.tails.feeds)


def _producers(seen: Seen, world: World) -> None:
    producers = world.partition.producers
    transactions = producers.transactions
    seen["producers"] = producers.snapshot()
    seen["producers' kinds"] = [
        (number, state.marked_at, state.marked_ms, [type(each) for each in state.batches])
        for number, state in producers._states.items()
    ]
    seen["transactions"] = list(transactions._first.items()), list(transactions._ended)
    seen["asked"] = [(each, asked.epoch, asked.lowest_sequence) for each, asked in producers._asked.items()]
    seen["granted"] = list(world.partition._granted)


def _log(seen: Seen, world: World) -> None:
    log = world.log
    seen["ends"] = log.log_start_offset, log.log_end_offset, log.flushed_end, log.flushed_position, log.owed
    seen["state"] = log.failed, log.lacks_room, log.sealed_in, log.ticket is None, log.checkpoint, log.exists
    seen["epochs"] = log.epochs_changed, list(log.leader_epochs.entries)
    work = log.unsynced
    seen["unsynced"] = work.active, work.birth, work.names, work.checkpoint, work.gaps_below
    seen["unsynced files"] = [each.base for each in work.closed], list(work.snapshots), list(work.removals)
    collected = log.collected
    seen["collected"] = collected._base, collected.end, collected.size, *_joined(collected.buffers)
    aborted = log.aborted
    seen["aborted"] = aborted.active_bytes, aborted.needs_writing, sorted(aborted._changed)


def _joined(buffers: Iterable[Buffer]) -> tuple[list[int], bytes]:
    return [len(each) for each in buffers], b"".join(buffers)


def _contents(seen: Seen, world: World, *, all_of_it: bool) -> None:
    contents = world.log.contents
    newest = contents.newest
    seen["sizes"] = contents.size, contents.held_size, contents._drops, contents.gaps_below
    seen["held"] = [
        (base, type(placed), placed[2:], list(placed.headers), [type(each) for each in placed.headers],
         *_joined(placed.buffers))
        for placed, base in contents._held
    ]  # fmt: skip
    seen["active"] = None if contents.active is None else contents.active.base
    seen["segments"] = len(contents.segments)
    for segment in contents.segments[0 if all_of_it else -SEGMENTS_SEEN :]:
        seen[f"segment {segment.base}"] = _segment(segment)
    seen["positions"] = [(at, segment.base, position) for at, (segment, position) in contents._positions.items()]
    seen["newest"] = newest._is_followed, newest._unread, list(newest._batches.items())
    room: Any = newest._room
    seen["newest of all"] = room.size, len(room._kept), [each[1:] for each in list(room._kept)[-2:]]
    again: Any = contents.again
    seen["again"] = list(again._answers), list(again._starts), again._reads_left


def _segment(segment: Segment) -> tuple[object, ...]:
    index, times = segment.index, segment.times
    return (
        *[getattr(segment, name) for name in _SEGMENT],
        segment.file is None,
        None if index is None else bytes(index),
        None if times is None else bytes(times),
    )


def _engine(seen: Seen, world: World) -> None:
    disk, journal = world.disk, world.journal
    seen["disk's operations"] = disk.operations, disk.appends, disk.reads, disk.syncs, disk.open_files
    if journal is not None:
        seen["journal"] = (
            journal.is_ready, journal._pending_bytes, list(journal._forgotten), journal._next, journal._broken,
            [(each.position, each.first, each.last, len(each.held)) for each in journal._ring],
        )  # fmt: skip
