"""The functions on real servers: the stories that the engine relies on. test_model.py compares every answer."""

from __future__ import annotations

import hashlib
import re
import uuid
from typing import Final

import pytest

from headrace.base.ids import LeaderEpoch, Offset, PartitionIndex, TopicId
from headrace.storage.redis.errors import RedisGarbled, RedisNoFunction
from headrace.storage.redis.links.connection import Connection
from headrace.storage.redis.links.server import told_in
from headrace.storage.redis.server_side.functions import (
    CODE,
    Answer,
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

KEYS: Final = Keys()
ORDERS: Final = KEYS.partition("orders", PartitionIndex(0))
TOPIC: Final = TopicId(uuid.UUID(int=7))
METADATA: Final = MetadataFunctions(KEYS)
FIRST, SECOND = CleaningTry(1, 1), CleaningTry(1, 2)
NONE: Final = Offset(0)


def leader(epoch: int, topic: TopicId = TOPIC) -> PartitionFunctions:
    return PartitionFunctions(ORDERS, topic, LeaderEpoch(epoch))


def batches(*ends: int) -> list[Batch]:
    return [Batch(Offset(end), b"batch to %d" % end) for end in ends]


class Server:
    """Calls functions on one server."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    async def __call__(self, call: Call) -> Answer:
        return answer_of(await self.connection.call(*call.command, payload=call.buffers))

    async def leased(self) -> Lease:
        """Take the lease and begin."""
        await self(METADATA.take("one", "", 10**9))
        await self.begin(Lease("one", 1))
        return Lease("one", 1)

    async def begin(self, lease: Lease) -> None:
        """As the first holder in this server, before there is any entry."""
        history = await self.history()
        assert await self(METADATA.doubt(lease, 0, 0, history, 0, b"")) == (Status.DONE, (0, ""))

    async def history(self) -> str:
        return told_in(await self.connection.call("INFO", "replication"))["master_replid"]

    async def ids(self, key: str = ORDERS.stream) -> list[bytes]:
        return [entry[0] for entry in await self.connection.call("XRANGE", key, "-", "+")]


@pytest.fixture
async def server(connection: Connection) -> Server:
    await connection.call("FUNCTION", "FLUSH")
    await connection.call("FUNCTION", "LOAD", CODE)
    return Server(connection)


def done(*values: int | str) -> Answer:
    return Answer(Status.DONE, values)


async def test_no_stream_exists_before_the_first_record_and_one_does_after_it(server: Server) -> None:
    assert await server(leader(0).claim(1, "a")) == done(0, 0, 0, 0, 0)
    assert await server.connection.call("EXISTS", "headrace:orders:0") == 0
    assert await server(leader(0).append(Offset(0), batches(5, 7), -1)) == done(7)
    assert await server.connection.call("EXISTS", "headrace:orders:0") == 1


async def test_an_offset_is_found_by_the_entry_behind_it(server: Server) -> None:
    await server(leader(0).claim(1, "a"))
    await server(leader(0).append(Offset(0), batches(5, 7, 8), -1))
    for offset in range(8):
        found = await server.connection.call("XRANGE", ORDERS.stream, f"({offset}-0", "+", "COUNT", 1)
        end = 5 if offset < 5 else 7 if offset < 7 else 8
        assert found == [[b"%d-0" % end, [b"batch", b"batch to %d" % end]]]


async def test_a_stale_leader_is_refused_whatever_it_believes(server: Server) -> None:
    await server(leader(3).claim(1, "a"))
    await server(leader(3).append(Offset(0), batches(5), -1))
    assert await server(leader(4).claim(1, "b")) == done(5, 0, len(b"batch to 5"), 0, 0)
    fenced = Answer(Status.FENCED, (4, "b"))
    old = leader(3)
    assert await server(old.append(Offset(5), batches(6), -1)) == fenced
    assert await server(old.trim(Offset(5), 0)) == fenced
    assert await server(old.cut(Offset(0), 10)) == fenced
    assert await server(old.restart(Offset(9))) == fenced
    assert await server(old.producers(Offset(5), b"x")) == fenced
    assert await server(old.clean(FIRST, NONE, [])) == fenced
    assert await server(old.claim(1, "a")) == fenced
    assert await server(leader(4).claim(1, "other")) == fenced
    assert await server(leader(5).append(Offset(5), batches(6), -1)) == fenced  # it has not claimed its epoch
    assert await server.ids() == [b"5-0"]


async def test_an_append_that_is_sent_again_is_done_once(server: Server) -> None:
    await server(leader(0).claim(1, "a"))
    first, second = leader(0).append(Offset(0), batches(2, 5), -1), leader(0).append(Offset(5), batches(6), -1)
    for call in (first, second, first, second):
        assert await server(call) == done(int(call.payload[-2]))
    assert await server.ids() == [b"2-0", b"5-0", b"6-0"]
    others = [Batch(Offset(2), b"other"), Batch(Offset(5), b"batch to 5")]
    assert await server(leader(0).append(Offset(0), others, -1)) == Answer(Status.AT, (6,))
    assert await server(leader(0).append(Offset(9), batches(10), -1)) == Answer(Status.AT, (6,))


async def test_an_append_reads_the_state_once_and_writes_it_once(server: Server) -> None:
    """However many batches it has. An answer waits for every command in it."""
    await server(leader(0).claim(0, "me"))
    await server.connection.call("CONFIG", "RESETSTAT")
    assert await server(leader(0).append(Offset(0), batches(10, 20, 30), 5)) == done(30)
    told = (await server.connection.call("INFO", "commandstats")).decode()
    calls = dict(re.findall(r"cmdstat_(\w+):calls=(\d+)", told))
    assert {name: calls[name] for name in calls if name not in ("info", "config")} == {
        "fcall": "1",
        "hmget": "1",
        "xadd": "3",
        "hset": "1",
    }


async def test_a_later_topic_of_the_name_takes_over_and_an_earlier_one_never(server: Server) -> None:
    later = leader(0, TopicId(uuid.UUID(int=8)))
    await server(leader(5).claim(1, "a"))
    await server(leader(5).append(Offset(0), batches(5), -1))
    assert await server(later.claim(2, "b")) == done(0, 0, 0, 0, 0)
    gone = Answer(Status.GONE, (str(later.topic_id), 2))
    assert await server(leader(5).append(Offset(5), batches(6), -1)) == gone
    assert await server(leader(6).claim(1, "a")) == gone
    assert await server(delete_partition(ORDERS, TOPIC, 1)) == gone
    assert await server(delete_partition(ORDERS, later.topic_id, 2)) == done(0)
    assert await server(later.claim(2, "b")) == gone  # late, after the deletion
    assert await server.connection.call("KEYS", "*orders*") == [ORDERS.state.encode()]
    assert 0 < await server.connection.call("TTL", ORDERS.state) <= 3600
    assert await server(leader(0, TopicId(uuid.UUID(int=9))).claim(3, "c")) == done(0, 0, 0, 0, 0)
    assert await server.connection.call("TTL", ORDERS.state) == -1


async def test_retention_moves_the_start_and_what_tells_of_it(server: Server) -> None:
    await server(leader(0).claim(1, "a"))
    await server(leader(0).append(Offset(0), batches(5), 100, ends_range=True))
    await server(leader(1).claim(1, "b"))
    await server(leader(1).append(Offset(5), batches(7), 200, ends_range=True))
    await server(leader(2).claim(1, "c"))
    await server(leader(2).append(Offset(7), batches(9), 150, ends_range=True))
    assert await server(leader(2).trim(Offset(6), 10)) == done(6)  # inside the second batch
    assert await server.ids() == [b"7-0", b"9-0"]
    assert await server.ids(ORDERS.times) == [b"7-0", b"9-0"]
    assert await server.connection.call("ZRANGE", ORDERS.epochs, 0, -1, "WITHSCORES") == [[b"1", 6.0], [b"2", 7.0]]
    assert await server(leader(2).trim(Offset(2), 0)) == done(6)
    assert await server(leader(2).trim(Offset(9), 30)) == done(9)
    assert await server.ids() == []
    assert await server(leader(2).append(Offset(9), batches(12), -1)) == done(12)


async def test_a_compacted_stream_takes_the_place_of_the_log_with_what_came_meanwhile(server: Server) -> None:
    await server(leader(0).claim(1, "a"))
    await server(leader(0).append(Offset(0), batches(2, 4, 6), 50, ends_range=True))
    kept = [Batch(Offset(4), b"kept")]
    assert await server(leader(0).clean(FIRST, NONE, [])) == done(0)
    assert await server(leader(0).clean(FIRST, NONE, kept)) == done(4)
    await server(leader(0).append(Offset(6), batches(7, 8), 60, ends_range=True))
    index = [IndexEntry(Offset(6), 50, 4)]
    replace = leader(0).replace(FIRST, Offset(4), Offset(6), 20, index, 1)
    answers = [await server(replace) for _ in range(4)]
    assert answers == [Answer(Status.MORE, (7,)), Answer(Status.MORE, (8,)), done(8), done(8)]
    assert await server.ids() == [b"4-0", b"7-0", b"8-0"]
    assert await server.ids(ORDERS.times) == [b"6-0", b"8-0"]
    assert await server.connection.call("EXISTS", ORDERS.next) == 0
    assert await server(leader(0).append(Offset(8), batches(9), -1)) == done(9)
    assert await server(leader(0).clean(FIRST, NONE, kept)) == Answer(Status.STALE, (1,))


async def test_a_cleaning_goes_on_only_behind_all_that_it_has_written(server: Server) -> None:
    """A failover may lose parts, and calls of an earlier try may come late."""
    await server(leader(0).claim(1, "a"))
    await server(leader(0).append(Offset(0), batches(2, 4, 6), -1))
    ended = leader(0)
    late = [
        ended.clean(FIRST, NONE, []),
        ended.clean(FIRST, NONE, batches(2)),
        ended.replace(FIRST, NONE, NONE, 0, [], 9),
    ]
    assert await server(late[1]) == Answer(Status.AT, (0,)), "it has not begun"
    assert await server(late[2]) == Answer(Status.AT, (0,))
    assert await server(leader(0).clean(SECOND, NONE, [])) == done(0)
    first, second = leader(0).clean(SECOND, NONE, batches(2)), leader(0).clean(SECOND, Offset(2), batches(4, 6))
    assert await server(second) == Answer(Status.AT, (0,)), "the first part is lost"
    assert await server(leader(0).replace(SECOND, Offset(6), Offset(6), 0, [], 9)) == Answer(Status.AT, (0,))
    for call in (first, second, first, second):
        assert await server(call) == done(int(call.payload[-2]))
        assert [(await server(each)).status for each in late] == [Status.STALE, Status.STALE, Status.AT]
    assert await server(leader(0).clean(SECOND, NONE, [])) == done(0), "sent again, it changes nothing"
    assert await server.ids(ORDERS.next) == [b"2-0", b"4-0", b"6-0"]
    assert await server(leader(0).replace(SECOND, Offset(6), Offset(6), 0, [], 9)) == done(6)
    assert await server.ids() == [b"2-0", b"4-0", b"6-0"]


async def test_a_restart_that_comes_late_leaves_the_records_behind_it(server: Server) -> None:
    await server(leader(0).claim(1, "a"))
    await server(leader(0).append(Offset(0), batches(2), -1))
    restart = leader(0).restart(Offset(9))
    assert await server(restart) == await server(restart) == done(9)
    await server(leader(0).append(Offset(9), batches(12), -1))
    assert await server(restart) == done(9)
    assert await server.ids() == [b"12-0"]
    assert await server.ids(ORDERS.aside(LeaderEpoch(0))) == [b"2-0"]


async def test_a_new_leader_drops_a_cleaning_that_another_began(server: Server) -> None:
    await server(leader(0).claim(1, "a"))
    await server(leader(0).append(Offset(0), batches(2, 4), -1))
    await server(leader(0).clean(FIRST, NONE, []))
    await server(leader(0).clean(FIRST, NONE, batches(2)))
    await server(leader(1).claim(1, "b"))
    assert await server.connection.call("EXISTS", ORDERS.next) == 0
    assert (await server(leader(1).replace(FIRST, NONE, Offset(4), 0, [], 9))).status is Status.AT
    assert await server(leader(1).clean(FIRST, NONE, [])) == done(0)
    assert await server(leader(1).replace(FIRST, NONE, Offset(4), 0, [], 9)) == done(4)
    assert await server.ids() == []


async def test_a_cut_log_goes_on_below_what_was_removed(server: Server) -> None:
    await server(leader(0).claim(1, "a"))
    await server(leader(0).append(Offset(0), batches(2, 4, 6), 50, ends_range=True))
    await server(leader(0).producers(Offset(6), b"snapshot"))
    await server(leader(1).claim(1, "b"))
    assert await server(leader(1).cut(Offset(4), 1)) == Answer(Status.MORE, (2,))
    assert await server(leader(1).cut(Offset(4), 2)) == done(4)
    assert await server(leader(1).append(Offset(4), batches(5), -1)) == done(5)
    assert await server.ids() == [b"2-0", b"4-0", b"5-0"]
    assert await server.connection.call("EXISTS", ORDERS.producers) == 0
    assert await server.connection.call("ZRANGE", ORDERS.epochs, 0, -1, "WITHSCORES") == [[b"0", 0.0], [b"1", 4.0]]


async def test_large_offsets_stay_exact(server: Server) -> None:
    large = Offset(2**53 - 10)
    await server(leader(0).claim(1, "a"))
    assert await server(leader(0).restart(large)) == done(large)
    assert await server(leader(0).append(large, batches(large + 3), -1)) == done(large + 3)
    assert await server.ids() == [b"%d-0" % (large + 3)]


async def test_the_lease_goes_to_one_and_its_token_only_rises(server: Server) -> None:
    assert await server(METADATA.take("one", "one:9092", 10**9)) == done(1)
    assert await server(METADATA.take("one", "one:9092", 10**9)) == done(1)  # the answer was lost
    held = await server(METADATA.take("two", "two:9092", 10**9))
    assert held.status is Status.HELD
    assert held.values[:3] == (1, "one", "one:9092")
    await server.begin(Lease("one", 1))
    assert await server(METADATA.renew(Lease("one", 1), 0)) == done(1)  # its time is over now
    assert await server(METADATA.commit(Lease("one", 1), 0, b"still")) == (Status.DONE, (1, chain("", 1, b"still")))
    assert await server(METADATA.take("two", "two:9092", 10**9)) == done(2)
    fenced = Answer(Status.FENCED, (2, "two"))
    assert await server(METADATA.renew(Lease("one", 1), 10**9)) == fenced
    assert await server(METADATA.commit(Lease("one", 1), 1, b"late")) == fenced
    assert await server(METADATA.snapshot_part(Lease("one", 1), 1, 0, b"late")) == fenced
    assert await server(METADATA.snapshot(Lease("one", 1), 1, 0, 0)) == fenced
    assert await server(METADATA.release(Lease("two", 2))) == done(2)
    assert await server(METADATA.take("one", "one:9092", 10**9)) == done(3)
    assert await server(METADATA.take("one", "one:9092", 10**9, 8)) == done(9)  # it knows of more than Redis does
    assert await server(METADATA.take("one", "one:9092", 10**9, 9)) == done(9)


def chain(before: str, token: int, events: bytes) -> str:
    return hashlib.sha1(f"{before}\n{token}\n".encode() + events).hexdigest()


async def test_the_registry_changes_with_the_entry_and_once(server: Server) -> None:
    lease = await server.leased()
    fields: dict[str, str | int] = {"id": "x", "partitions": 3, "retention.ms": "60000"}
    create = METADATA.commit(lease, 0, b"created", put={"orders": fields, "payments": {"id": "y"}})
    first = await server(create)
    assert first == (Status.DONE, (1, chain("", 1, b"created")))
    assert set(await server.connection.call("SMEMBERS", "headrace:topics")) == {b"orders", b"payments"}
    stored = await server.connection.call("HGETALL", "headrace:topic:orders")
    made_at = stored.pop(b"created")
    assert abs(int(made_at) - int((await server.connection.call("TIME"))[0]) * 1000) < 60_000
    assert stored == {b"id": b"x", b"partitions": b"3", b"retention.ms": b"60000"}
    second = await server(METADATA.commit(lease, 1, b"deleted", put={"orders": {"id": "x"}}, remove=["payments"]))
    assert second == (Status.DONE, (2, chain(chain("", 1, b"created"), 1, b"deleted")))
    assert await server(create) == first  # sent again: it is there, and nothing changes
    assert await server.connection.call("HGETALL", "headrace:topic:orders") == {b"id": b"x", b"created": made_at}
    assert set(await server.connection.call("SMEMBERS", "headrace:topics")) == {b"orders"}
    assert (await server(METADATA.commit(lease, 0, b"other"))).status is Status.AT


async def test_a_doubt_leaves_a_gap_and_comes_once(server: Server) -> None:
    lease = await server.leased()
    await server(METADATA.commit(lease, 0, b"first"))
    assert await server(METADATA.intend(lease, 2)) == done(2)
    assert await server(METADATA.intend(lease, 1)) == Answer(Status.STALE, (2,))
    assert (await server(METADATA.doubt(lease, 1, 1, "b", 2, b"doubt"))).status is Status.INVALID
    found = await server(METADATA.doubt(lease, 1, 100, "b", 2, b"doubt"))
    assert found == (Status.DONE, (100, chain(chain("", 1, b"first"), 1, b"doubt")))
    assert await server(METADATA.doubt(lease, 1, 100, "b", 2, b"doubt")) == found  # the answer was lost
    assert (await server(METADATA.doubt(lease, 1, 200, "b", 2, b"other"))).status is Status.AT
    assert await server.ids(KEYS.metadata) == [b"1-0", b"100-0"]
    head = await server.connection.call("HGETALL", KEYS.head)
    assert {name: head[name] for name in (b"index", b"history", b"doubts", b"intended")} == {
        b"index": b"100",
        b"history": b"b",
        b"doubts": b"2",
        b"intended": b"2",
    }
    assert (await server(METADATA.doubt(lease, 100, 101, await server.history(), 3, b"here"))).values[0] == 101
    assert (await server(METADATA.commit(lease, 101, b"next"))).values[0] == 102


async def test_a_lease_ends_with_the_history_of_its_server(server: Server) -> None:
    """It had another one when a holder began last: it has failed over, or was restarted."""
    lease = await server.leased()
    assert (await server(METADATA.commit(lease, 0, b"first"))).status is Status.DONE
    await server.connection.call("HSET", KEYS.head, "history", "another")
    over = Answer(Status.CHANGED, ("another",))
    assert await server(METADATA.renew(lease, 10**9)) == over
    assert await server(METADATA.commit(lease, 1, b"second")) == over
    assert await server(METADATA.snapshot_part(lease, 1, 0, b"a")) == over
    assert await server(METADATA.snapshot(lease, 1, 1, 1)) == over
    assert await server(METADATA.intend(lease, 1)) == done(1)
    assert (await server(METADATA.doubt(lease, 1, 9, await server.history(), 1, b"doubt"))).values[0] == 9
    assert (await server(METADATA.commit(lease, 9, b"second"))).values[0] == 10
    assert await server(METADATA.release(lease)) == done(1)


async def test_a_snapshot_counts_when_it_is_whole_and_the_log_is_trimmed_below_it(server: Server) -> None:
    lease = await server.leased()
    for index in range(5):
        await server(METADATA.commit(lease, index, b"%d" % index))
    await server(METADATA.snapshot_part(lease, 3, 0, b"a"))
    assert (await server(METADATA.snapshot(lease, 3, 2, 3))).status is Status.INVALID
    await server(METADATA.snapshot_part(lease, 4, 0, b"b"))  # another begins
    await server(METADATA.snapshot_part(lease, 4, 1, b"c"))
    assert await server(METADATA.snapshot(lease, 4, 2, 3)) == done(4)
    assert await server(METADATA.snapshot(lease, 4, 2, 3)) == done(4)
    assert await server(METADATA.snapshot(lease, 3, 2, 3)) == Answer(Status.STALE, (4,))
    stored = await server.connection.call("HGETALL", KEYS.snapshot)
    assert {stored[field] for field in (b"index", b"parts", b"0", b"1")} == {b"4", b"2", b"b", b"c"}
    assert await server.ids(KEYS.metadata) == [b"3-0", b"4-0", b"5-0"]


async def test_a_library_that_is_not_there_is_known_by_its_refusal(server: Server) -> None:
    await server.connection.call("FUNCTION", "FLUSH")
    with pytest.raises(RedisNoFunction):
        await server(METADATA.take("one", "", 1))


@pytest.mark.parametrize("reply", [None, [], [99], b"OK", [0, None]])
def test_a_reply_that_is_no_answer_is_garbled(reply: object) -> None:
    with pytest.raises(RedisGarbled):
        answer_of(reply)
