"""The operations: each is carried out on one world, and returns its answer. None of them chooses anything."""

from __future__ import annotations

from functools import partial
from typing import Any

from headrace.base.errors import StorageFailure
from headrace.base.ids import Offset
from headrace.base.ports import Buffer
from headrace.broker.partitions.disk_room import UNKNOWN
from headrace.broker.partitions.intake.forwarding import Forwarded
from headrace.broker.partitions.replica import WriteRefusal
from headrace.broker.partitions.settings import PartitionSettings
from headrace.metadata.values import PartitionImage
from headrace.storage.engine.appending import Appended
from headrace.storage.engine.identity import LogConfig
from headrace.wire.batches import HEADER_BYTES, end_of, parse_header
from headrace.wire.errors import ErrorCode
from tools.partition_fuzz.batches import Made
from tools.partition_fuzz.world import Feed, Reader, Waiter, World

Answer = Appended | WriteRefusal | None


def lent(batch: Made, kind: type[Buffer]) -> Buffer:
    """The batch's bytes, as one of the buffers that requests come in."""
    return kind(bytearray(batch.data)) if kind is memoryview else kind(batch.data)


def _parked(world: World, answer: Answer, *, needs_isr: bool, parks: bool) -> Answer:
    """As the handler of Produce goes on."""
    if parks and isinstance(answer, Appended):
        name = f"{answer.base_offset} {'committed' if needs_isr else 'stored'}"
        park = world.partition.park_commit if needs_isr else world.partition.park_stored
        world.told.append(("committed already", world.partition.has_committed(answer.end)))
        park(answer.end, Waiter(world.told, name))
    return answer


# appending


def append_plain(world: World, *, batch: Made, kind: type[Buffer], needs_isr: bool, parks: bool) -> object:
    answer = world.partition.append_plain(lent(batch, kind), needs_isr=needs_isr)
    return _parked(world, answer, needs_isr=needs_isr, parks=parks)


def examine_and_append(world: World, *, batch: Made, kind: type[Buffer], needs_isr: bool, parks: bool) -> object:
    records = lent(batch, kind)
    walked = world.partition.examine(records)
    answer = world.partition.append(records, needs_isr=needs_isr, walked=walked)
    return walked, _parked(world, answer, needs_isr=needs_isr, parks=parks)


def append(world: World, *, batch: Made, kind: type[Buffer], needs_isr: bool, parks: bool) -> object:
    answer = world.partition.append(lent(batch, kind), needs_isr=needs_isr)
    return _parked(world, answer, needs_isr=needs_isr, parks=parks)


def take(world: World, *, batch: Made, kind: type[Buffer], needs_isr: bool, parks: bool) -> object:
    def done(answer: Appended | Forwarded | WriteRefusal) -> None:
        assert not isinstance(answer, Forwarded), "there is no other broker"
        world.told.append(("taken", answer))
        _parked(world, answer, needs_isr=needs_isr, parks=parks)

    return world.in_loop(lambda: world.partition.take(lent(batch, kind), needs_isr=needs_isr, done=done))


def examine(world: World, *, batch: Made, kind: type[Buffer]) -> object:
    """To be appended later, whatever has changed by then."""
    walked = world.partition.examine(lent(batch, kind))
    if walked is not None:
        world.examined.append((batch.data, walked))
    return walked


def append_examined(world: World, *, needs_isr: bool) -> object:
    if not world.examined:
        return None
    data, walked = world.examined.popleft()
    return world.partition.append(memoryview(data), needs_isr=needs_isr, walked=walked)


def unpacked(world: World) -> None:
    """Have workers unpack all that waits for them. Nothing does of a copy."""
    if not world.repacks:
        return
    world.repacker.free.set()
    world.let_go_on(lambda: world.partition.line.is_empty)
    world.repacker.free.clear()


# transactions


def verify(world: World, *, batch: Made, bumps_epochs: bool) -> object:
    header = parse_header(batch.data)
    guard = world.partition.begin_verification(header, bumps_epochs=bumps_epochs)
    if guard is None or isinstance(guard, ErrorCode):
        return guard
    world.guards[header.producer_id] = guard
    return "guard"


def grant(world: World, *, producer: int) -> None:
    if (guard := world.guards.pop(producer, None)) is not None:
        world.partition.grant(producer, guard)


def mark(world: World, *, producer: int, epoch: int, coordinator: int, is_committed: bool) -> object:
    return world.partition.append_marker(producer, epoch, coordinator_epoch=coordinator, is_committed=is_committed)


def append_part(world: World, *, batch: Made) -> object:
    if len(batch.data) < HEADER_BYTES:
        return None
    return world.partition.append_in_transaction(batch.data)


def expire(world: World, *, before_ms: int) -> object:
    return world.partition.producers.expire(before_ms)


# reading


def read(world: World, *, offset: int, bytes_max: int, committed_only: bool, at_least_one: bool) -> object:
    place = Offset(offset)
    if (error := world.partition.check_position(place, -1)) is not ErrorCode.NONE:
        return error
    return bytes(world.partition.read(place, bytes_max, committed_only=committed_only, at_least_one=at_least_one))


def read_on(world: World, *, bytes_max: int) -> object:
    """As a consumer that keeps up with the end."""
    if world.partition.check_position(world.position, -1) is not ErrorCode.NONE:
        world.position = world.log.log_start_offset
        return None
    found = bytes(world.partition.read(world.position, bytes_max, committed_only=False, at_least_one=True))
    if found:
        world.position = end_of(found)
    return found


def read_tail(world: World, *, offset: int, bytes_max: int) -> object:
    if not world.log.log_start_offset <= offset <= world.log.log_end_offset:
        return None
    return bytes(world.partition.read_tail(Offset(offset), bytes_max, at_least_one=True))


def stable(world: World) -> object:
    return world.partition.last_stable_offset


def look_up(world: World, *, time_ms: int) -> object:
    return world.log.offset_for_timestamp(time_ms), world.log.max_timestamp()


def park_fetch(world: World, *, number: int, left: int) -> None:
    if (known := world.readers.pop(number, None)) is not None:
        known.leave()
    world.readers[number] = Reader(world.partition, world.told, number, left)


# flushes


def begin_flush(world: World) -> object:
    if world.ticket is not None:
        return None
    world.ticket = world.partition.begin_flush()
    if world.ticket is None:
        return None
    world.round = world.engine.begin_round([world.ticket])
    return world.ticket.end


def sync(world: World) -> None:
    """The round of the flush is carried out."""
    begun = world.round
    if begun is None:
        return
    world.round = None
    told: list[object] = []

    def done(outcomes: Any) -> None:
        told.append(None)
        world.outcomes = outcomes

    def work() -> None:
        begun.begin(done)
        world.disk.end_syncs()
        begun.end()

    world.in_loop(work)
    world.let_go_on(lambda: bool(told))


def finish_flush(world: World) -> object:
    if world.ticket is None or world.outcomes is None:
        return None
    ticket, [outcome], world.outcomes = world.ticket, world.outcomes(), None
    world.ticket = None
    world.partition.finish_flush(ticket, outcome)
    return type(outcome), str(outcome)


def tidy_up(world: World) -> object:
    """The flusher does this once the answers have left."""
    return world.partition.write_out()


def keep_up(world: World) -> object:
    if world.journal is None or (work := world.journal.begin_upkeep()) is None:
        return None
    work.run()
    work.end()
    return work.failure is None


def flush(world: World) -> object:
    begun = begin_flush(world)
    sync(world)
    return begun, finish_flush(world), tidy_up(world), keep_up(world)


def collect_for_others(world: World, *, size: int) -> object:
    """Other logs collect for the journal's next round."""
    if world.journal is None or not world.journal.collects(size, 0):
        return False
    world.pending_of_others += size
    return True


def forget_others(world: World) -> None:
    if world.journal is not None:
        world.journal.forget(world.pending_of_others)
        world.pending_of_others = 0


def close_file(world: World) -> None:
    """As though many other logs had been used since."""
    active = world.log.contents.active
    if active is not None and not active.pins:
        world.log.segment_files.close(active)


# faults


def fill_disk(world: World, *, is_full: bool) -> None:
    world.disk.full = is_full


def break_disk(world: World, *, breaks_in: int, stays_broken: bool) -> None:
    world.disk.breaks_in, world.disk.stays_broken = breaks_in, stays_broken


def fail_syncs(world: World, *, after: int) -> None:
    world.disk.fail_after(after)


def heal(world: World) -> object:
    """And let on whoever waits for room."""
    world.disk.heal()
    world.partition._share.left = UNKNOWN
    return world.partition.go_on()


def lack_room(world: World) -> None:
    """As where a write has found the disk full, of which nobody was told yet."""
    world.log.lacks_room = not world.log.failed


def only_read(world: World, *, is_so: bool) -> None:
    """As where the log could not be recovered whole."""
    world.log.read_only = "it is damaged" if is_so else None


def share(world: World, *, left: int) -> None:
    world.partition._share.left = left


# settings, upkeep


def configure(world: World, *, settings: PartitionSettings, config: LogConfig) -> None:
    world.partition.settings = settings
    world.log.reconfigure(config)


def snapshot_soon(world: World, *, size: int) -> None:
    """As though so much had been appended since the last snapshot of the producers."""
    world.partition._snapshot_at_bytes = world.partition.appended_bytes + size


def much_unread(world: World, *, unread: int) -> None:
    """As though so much had been appended since a reader was here."""
    world.log.contents.newest._unread = unread


def snapshot(world: World) -> None:
    world.partition.snapshot_producers()


def roll(world: World) -> None:
    world.partition.roll()


def keep_house(world: World, *, producers_since_ms: int) -> None:
    world.partition.keep_house(world.clock.ms, producers_since_ms=producers_since_ms)


def delete_records(world: World, *, before: int) -> None:
    before = min(before, world.partition.high_watermark)
    world.partition.delete_records(Offset(before), Waiter(world.told, f"deleted below {before}"))


# leading


def watch(world: World, *, number: int) -> None:
    if (known := world.feeds.pop(number, None)) is not None:
        world.partition.tails.unwatch(known)
        return
    world.feeds[number] = feed = Feed(world.told, number)
    world.partition.tails.watch(feed)


def report(world: World, *, which: int, behind: int, may_join: bool) -> None:
    """A follower reports how much it has flushed."""
    if not world.followers:
        return
    replica, epoch = world.followers[which % len(world.followers)]
    flushed = Offset(max(world.log.log_end_offset - behind, 0))
    world.partition.isr.on_follower(replica, epoch, flushed, Offset(0), may_join=may_join)


def check_isr(world: World, *, lag_max_s: float) -> None:
    world.partition.isr.check(lag_max_s, {})


def refuse_proposal(world: World, *, doubts: bool) -> None:
    isr = world.partition.isr
    (isr.on_doubted if doubts else isr.on_refused)(isr.leader.epoch, isr.leader.partition_epoch)


def propose_again(world: World) -> None:
    world.partition.isr.propose_again()


def lead(world: World, *, image: PartitionImage) -> None:
    world.in_loop(lambda: world.partition.lead(image))


def stop_writing(world: World) -> None:
    world.partition.gate.stop()


def propose_seal(world: World) -> None:
    if world.partition.gate.is_stopped:
        world.partition.gate.propose()


def go_on_writing(world: World) -> None:
    if not world.partition.gate.is_proposed:
        world.in_loop(world.partition.go_on_writing)


def doubt(world: World, *, is_doubted: bool) -> None:
    (world.partition.doubt if is_doubted else world.partition.trust)()


def own_appends_visible(world: World) -> object:
    return world.in_loop(world.partition.own_appends_visible) is None


def end(world: World, *, error: ErrorCode) -> None:
    world.in_loop(lambda: world.partition.end(error))


def pass_time(world: World, *, now_ms: int) -> None:
    """Both have the same clock."""
    world.clock.ms = now_ms


def close(world: World) -> object:
    """End the flush under way, and stop cleanly."""
    for step in (sync, finish_flush, unpacked):
        step(world)
    world.disk.heal()
    world.in_loop(partial(world.partition.step_down, ErrorCode.NOT_LEADER_OR_FOLLOWER))
    unpacked(world)
    failures: list[str] = []
    for each in (partial(world.log.close, clean=not world.log.failed), world.engine.close):
        try:
            each()
        except (StorageFailure, OSError) as error:
            failures.append(str(error))
    return failures
