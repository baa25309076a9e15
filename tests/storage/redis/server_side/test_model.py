"""The model is the server: after any calls both have given the same answers and hold the same keys."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Coroutine
from typing import Any, Final

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from headrace.base.ids import LeaderEpoch, Offset, PartitionIndex, TopicId
from headrace.storage.redis.links.address import Credentials
from headrace.storage.redis.links.connection import Connection, Place, connect
from headrace.storage.redis.links.server import told_in
from headrace.storage.redis.server_side.functions import (
    CODE,
    Batch,
    Call,
    CleaningTry,
    IndexEntry,
    Lease,
    MetadataFunctions,
    PartitionFunctions,
    Status,
    answer_of,
    delete_partition,
)
from headrace.storage.redis.server_side.keys import Keys
from headrace.storage.redis.server_side.model import RedisModel, Stream
from tests.tiers import of_tier
from tools.servers.redis_servers import RedisServer

LONG_MS: Final = 1_000_000_000
KEYS: Final = Keys()
PARTITION: Final = KEYS.partition("orders", PartitionIndex(0))
TOPICS: Final = tuple(TopicId(uuid.UUID(int=number)) for number in (1, 2))

usually: Final = st.sampled_from([True] * 9 + [False])
rarely: Final = st.sampled_from([False] * 9 + [True])
epochs: Final = st.integers(0, 6).map(LeaderEpoch)
steps: Final = st.integers(-1, 4)
"""How far a caller is from what would be right."""
data: Final = st.binary(min_size=1, max_size=3)
holders: Final = st.sampled_from(["one", "two"])
tokens: Final = st.integers(0, 5)
names: Final = st.sampled_from(["orders", "payments"])


def batches_from(start: int, sizes: list[tuple[int, bytes]]) -> list[Batch]:
    found = []
    for count, piece in sizes:
        start += count
        found.append(Batch(Offset(start), piece))
    return found


sizes: Final = st.lists(st.tuples(st.integers(1, 3), data), min_size=1, max_size=3)


def timeless(fields: dict[bytes, Any]) -> dict[bytes, Any]:
    """A hash's fields without what comes from the server's clock."""
    return {name: value for name, value in fields.items() if name not in (b"until", b"created")}


async def dump(connection: Connection) -> dict[bytes, Any]:
    """Every key of the server as the model has it."""
    found: dict[bytes, Any] = {}
    for key in sorted(await connection.call("KEYS", "*")):
        match (await connection.call("TYPE", key)).decode():
            case "stream":
                entries = [(id_, tuple(fields)) for id_, fields in await connection.call("XRANGE", key, "-", "+")]
                found[key] = (entries, (await connection.call("XINFO", "STREAM", key))[b"last-generated-id"])
            case "hash":
                found[key] = timeless(await connection.call("HGETALL", key))
            case "zset":
                scores = await connection.call("ZRANGE", key, 0, -1, "WITHSCORES")
                found[key] = {member: int(score) for member, score in scores}
            case "set":
                found[key] = set(await connection.call("SMEMBERS", key))
    return found


def dumped(model: RedisModel) -> dict[bytes, Any]:
    found: dict[bytes, Any] = {}
    for key, value in sorted(model.keys.items()):
        if isinstance(value, Stream):
            entries = [(b"%d-0" % number, fields) for number, fields in zip(value.numbers, value.fields, strict=True)]
            found[key] = (entries, b"%d-0" % value.last)
        else:
            found[key] = value.copy()
            if isinstance(value, dict):
                found[key] = timeless(found[key])
    return found


class Twins(RuleBasedStateMachine):
    """Sends each call to both, and compares the keys once, at the end: a difference stays."""

    server: RedisServer
    runner: asyncio.Runner

    def __init__(self) -> None:
        super().__init__()
        self.model = RedisModel()
        self.connection = self.run(connect(Place(path=str(self.server.socket)), Credentials()))
        self.run(self.connection.call("FLUSHALL"))
        self.now_ms = 0

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(work)

    def teardown(self) -> None:
        try:
            assert self.run(dump(self.connection)) == dumped(self.model)
        finally:
            self.run(self.connection.close())

    def call(self, call: Call) -> None:
        self.now_ms += 1
        theirs = answer_of(self.run(self.connection.call(*call.command, payload=call.buffers)))
        ours = answer_of(self.model.execute(call.command, call.buffers, now_ms=self.now_ms))
        if ours.status is Status.HELD:
            ours, theirs = (each._replace(values=each.values[:-1]) for each in (ours, theirs))
        assert theirs == ours, call

    def number(self, key: str, field: str) -> int:
        return int(self.model.keys.get(key.encode(), {}).get(field.encode(), 0))


class Partitions(Twins):
    """One partition. A caller is right more often than not, or nothing would ever be done."""

    @initialize()
    def begin(self) -> None:
        self.call(self.functions(True).claim(1, "a"))

    def state(self, field: str) -> int:
        return self.number(PARTITION.state, field)

    def functions(self, right: bool, epoch: int = 0) -> PartitionFunctions:
        state = self.model.keys.get(PARTITION.state.encode(), {})
        topic = TopicId(uuid.UUID(state[b"topic"].decode())) if right and state else TOPICS[0]
        return PartitionFunctions(PARTITION, topic, LeaderEpoch(self.state("epoch") if right else epoch))

    @rule(later=rarely, rise=st.integers(-1, 1), owner=st.sampled_from(["a", "b"]))
    def claim(self, later: bool, rise: int, owner: str) -> None:
        functions = PartitionFunctions(PARTITION, TOPICS[later], LeaderEpoch(max(0, self.state("epoch") + rise)))
        self.call(functions.claim(later + 1, owner))

    @rule(right=usually, epoch=epochs, at=st.just(0) | steps, sizes=sizes, time=st.integers(-1, 9), ends=st.booleans())
    def append(self, right: bool, epoch: int, at: int, sizes: list[tuple[int, bytes]], time: int, ends: bool) -> None:
        expected = Offset(max(0, self.state("end") - at))
        call = self.functions(right, epoch).append(expected, batches_from(expected, sizes), time, ends_range=ends)
        self.call(call)
        self.call(call)

    @rule(right=usually, epoch=epochs, step=steps, trimmed=st.integers(0, 2))
    def trim(self, right: bool, epoch: int, step: int, trimmed: int) -> None:
        start = Offset(max(0, self.state("start") + step))
        self.call(self.functions(right, epoch).trim(start, self.state("trimmed") + trimmed))

    @rule(right=usually, epoch=epochs, step=steps, carried=st.integers(0, 3), times=st.integers(1, 3))
    def cut(self, right: bool, epoch: int, step: int, carried: int, times: int) -> None:
        end = Offset(max(0, self.state("end") - step))
        for _ in range(times):
            self.call(self.functions(right, epoch).cut(end, carried))

    @rule(really=rarely, at=st.integers(1, 30), before=st.integers(-1, 6), snapshot=st.sampled_from([b"", b"x"]))
    def restart(self, really: bool, at: int, before: int, snapshot: bytes) -> None:
        call = self.functions(really, 9).restart(Offset(at), before=LeaderEpoch(before), producers=snapshot)
        self.call(call)
        self.call(call)

    @rule(right=usually, epoch=epochs, step=steps, snapshot=data, sizes=sizes | st.just([]))
    def producers(self, right: bool, epoch: int, step: int, snapshot: bytes, sizes: list[tuple[int, bytes]]) -> None:
        aborted = batches_from(max(0, self.state("aborted") - 1), sizes)
        offset = Offset(max(0, self.state("end") - step))
        call = self.functions(right, epoch).producers(offset, snapshot, aborted)
        self.call(call)
        self.call(call)

    def cleaning(self, number: int, attempt: int) -> CleaningTry:
        """The try that is under way, or one as far from it."""
        found = self.model.keys.get(PARTITION.state.encode(), {}).get(b"cleaning", b"").split(b":")
        known = int(found[2]) if len(found) == 3 and found[0] != b"cut" else 1
        return CleaningTry(self.state("cleaned") + number, max(1, known + attempt))

    @rule(
        right=usually,
        epoch=epochs,
        number=st.sampled_from([0, 1, 1, 1, 2]),
        attempt=st.sampled_from([-1, 0, 0, 0, 1]),
        at=st.sampled_from([-1, 0, 0, 0, 1]),
        sizes=sizes | st.just([]),
    )
    def clean(
        self, right: bool, epoch: int, number: int, attempt: int, at: int, sizes: list[tuple[int, bytes]]
    ) -> None:
        expected = Offset(max(0, self.state("reached") + at))
        batches = batches_from(expected, sizes)
        call = self.functions(right, epoch).clean(self.cleaning(number, attempt), expected, batches)
        self.call(call)
        self.call(call)

    @rule(
        right=usually,
        epoch=epochs,
        number=st.sampled_from([0, 1, 1, 1]),
        attempt=st.sampled_from([-1, 0, 0, 0, 1]),
        lost=st.sampled_from([0, 0, 0, 1]),
        step=steps,
        removed=st.sampled_from([0, 0, 0, 1, 2]),
        carried=st.sampled_from([0, 1, 1, 2, 3, 9]),
        index=st.lists(st.tuples(st.integers(1, 5), st.integers(0, 9), st.integers(0, 9)), max_size=2),
        bare=st.lists(st.integers(0, 9), max_size=2),
    )
    def replace(
        self,
        right: bool,
        epoch: int,
        number: int,
        attempt: int,
        lost: int,
        step: int,
        removed: int,
        carried: int,
        index: list[tuple[int, int, int]],
        bare: list[int],
    ) -> None:
        cleaning, written = self.cleaning(number, attempt), Offset(self.state("reached") + lost)
        until = Offset(max(0, self.state("end") - step))
        entries, end = [], 0
        for rise, timestamp, position in index:
            end += rise
            entries.append(IndexEntry(Offset(end), timestamp, position))
        entries = [entry for entry in entries if entry.end <= until] if right else entries
        call = self.functions(right, epoch).replace(cleaning, written, until, removed, entries, carried, bare)
        self.call(call)
        self.call(call)

    @rule(later=rarely, really=rarely)
    def delete(self, later: bool, really: bool) -> None:
        birth = later + 1 if really else 0
        self.call(delete_partition(PARTITION, TOPICS[later] if really else TopicId(uuid.UUID(int=9)), birth))


class Metadata(Twins):
    """The lease, the commit log, its snapshots and the topic registry."""

    @property
    def lease(self) -> Lease:
        found = self.model.keys.get(KEYS.lease.encode(), {})
        return Lease(found.get(b"holder", b"").decode(), int(found.get(b"token", 0)))

    @initialize()
    def begin(self) -> None:
        functions = MetadataFunctions(KEYS)
        found = told_in(self.run(self.connection.call("INFO", "replication")))
        self.model.history = found["master_replid"].encode()
        self.call(functions.take("one", "one:9092", LONG_MS))
        self.call(functions.doubt(self.lease, 0, 0, found["master_replid"], 0, b""))

    @rule(holder=holders, lasts_ms=st.sampled_from([0, LONG_MS]), least=st.just(0) | tokens)
    def take(self, holder: str, lasts_ms: int, least: int) -> None:
        self.call(MetadataFunctions(KEYS).take(holder, f"{holder}:9092", lasts_ms, least))

    @rule(right=usually, holder=holders, token=tokens, lasts_ms=st.sampled_from([0, LONG_MS]))
    def renew(self, right: bool, holder: str, token: int, lasts_ms: int) -> None:
        self.call(MetadataFunctions(KEYS).renew(self.lease if right else Lease(holder, token), lasts_ms))

    @rule(right=rarely, holder=holders, token=tokens)
    def release(self, right: bool, holder: str, token: int) -> None:
        self.call(MetadataFunctions(KEYS).release(self.lease if right else Lease(holder, token)))

    @rule(
        right=usually,
        holder=holders,
        token=tokens,
        step=st.just(0) | steps,
        events=data,
        put=st.dictionaries(names, st.dictionaries(st.sampled_from(["id", "retention.ms"]), tokens, min_size=1)),
        remove=st.lists(names, max_size=1),
    )
    def commit(
        self,
        right: bool,
        holder: str,
        token: int,
        step: int,
        events: bytes,
        put: dict[str, dict[str, int]],
        remove: list[str],
    ) -> None:
        lease = self.lease if right else Lease(holder, token)
        index = max(0, self.number(KEYS.head, "index") - step)
        remove = [name for name in remove if name not in put]
        call = MetadataFunctions(KEYS).commit(lease, index, events, put=dict(put), remove=remove)
        self.call(call)
        self.call(call)

    @rule(right=usually, holder=holders, token=tokens, number=st.integers(0, 3))
    def intend(self, right: bool, holder: str, token: int, number: int) -> None:
        self.call(MetadataFunctions(KEYS).intend(self.lease if right else Lease(holder, token), number))

    @rule(
        right=usually,
        holder=holders,
        token=tokens,
        step=steps,
        gap=st.integers(0, 3),
        here=usually,
        events=data | st.just(b""),
    )
    def doubt(self, right: bool, holder: str, token: int, step: int, gap: int, here: bool, events: bytes) -> None:
        lease = self.lease if right else Lease(holder, token)
        history = self.model.history.decode() if here else "another"
        index = max(0, self.number(KEYS.head, "index") - step)
        new = index + gap if events else 0
        call = MetadataFunctions(KEYS).doubt(lease, index if events else 0, new, history, gap, events)
        self.call(call)
        self.call(call)

    @rule(right=usually, holder=holders, token=tokens, step=steps, parts=st.sampled_from([0, 1, 2, 2]), keep=steps)
    def snapshot(self, right: bool, holder: str, token: int, step: int, parts: int, keep: int) -> None:
        lease = self.lease if right else Lease(holder, token)
        index = max(0, self.number(KEYS.head, "index") - step)
        functions = MetadataFunctions(KEYS)
        for number in range(parts):
            self.call(functions.snapshot_part(lease, index, number, b"part"))
        call = functions.snapshot(lease, index, 2, max(0, index - keep))
        self.call(call)
        self.call(call)


@pytest.mark.parametrize("kind", [Partitions, Metadata])
def test_the_model_answers_as_the_server_and_holds_the_same_keys(any_server: RedisServer, kind: type[Twins]) -> None:
    async def load() -> None:
        connection = await connect(Place(path=str(any_server.socket)), Credentials())
        await connection.call("FUNCTION", "FLUSH")
        await connection.call("FUNCTION", "LOAD", CODE)
        await connection.close()

    with asyncio.Runner() as runner:
        runner.run(load())
        here = type(kind.__name__, (kind,), {"server": any_server, "runner": runner})
        run_state_machine_as_test(
            here, settings=settings(max_examples=of_tier(short=20, long=200), stateful_step_count=30)
        )
