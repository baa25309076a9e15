"""One connection: order, one write a turn, and how each command ends whatever the server does."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Final

import pytest

from headrace.base.errors import UsageError
from headrace.storage.redis.errors import (
    RedisBusy,
    RedisClusterDown,
    RedisDenied,
    RedisFailure,
    RedisNoReplicas,
    RedisOutcomeUnknown,
    RedisOutOfMemory,
    RedisReadOnly,
    RedisRefused,
    RedisUnreachable,
)
from headrace.storage.redis.links import connection as module
from headrace.storage.redis.links.address import Credentials
from headrace.storage.redis.links.connection import Connection, Place, connect
from tests.storage.redis.conftest import Start
from tools.servers.redis_servers import RedisServer

NOBODY: Final = Credentials()


async def opened(server: RedisServer, credentials: Credentials = NOBODY, timeout_ms: int = 20_000) -> Connection:
    return await connect(Place(path=str(server.socket)), credentials, timeout_ms=timeout_ms)


async def test_replies_come_in_the_order_of_the_commands(connection: Connection) -> None:
    found = await asyncio.gather(*(connection.call("ECHO", str(number)) for number in range(1000)))
    assert found == [b"%d" % number for number in range(1000)]


async def test_large_arguments_arrive_whole_beside_small_ones(connection: Connection) -> None:
    large = [bytes([number]) * 300_000 for number in range(20)]
    calls = [connection.call("SET", f"k{number}", payload=(memoryview(data),)) for number, data in enumerate(large)]
    await asyncio.gather(*calls, connection.call("MSET", "a", "1", payload=(b"b", bytearray(b"2"), b"c", b"")))
    assert await connection.call("MGET", *(f"k{number}" for number in range(20))) == large
    assert await connection.call("MGET", "a", "b", "c") == [b"1", b"2", b""]


async def test_the_commands_of_one_turn_are_one_write(start: Start) -> None:
    connection = await opened(start())

    async def reads() -> int:
        said = (await connection.call("INFO", "stats")).decode()
        return int(said.partition("total_reads_processed:")[2].split()[0])

    before = await reads()
    await asyncio.gather(*(connection.call("ECHO", "x") for _ in range(200)))
    assert await reads() == before + 2  # the 200, and INFO itself
    await connection.close()


async def test_pushes_are_no_answers(connection: Connection) -> None:
    await connection.call("CLIENT", "TRACKING", "ON", "BCAST")
    assert await asyncio.gather(*(connection.call("INCR", "n") for _ in range(5))) == [1, 2, 3, 4, 5]
    await connection.call("CLIENT", "TRACKING", "OFF")


async def test_a_refusal_ends_its_own_command_alone(connection: Connection) -> None:
    first, wrong, last = await asyncio.gather(
        connection.call("ECHO", "a"), connection.call("NONSENSE"), connection.call("ECHO", "b"), return_exceptions=True
    )
    assert (first, last) == (b"a", b"b")
    assert isinstance(wrong, RedisRefused)
    assert not wrong.is_unknown


async def test_a_killed_server_leaves_sent_commands_unknown_and_refuses_others(start: Start) -> None:
    server = start()
    connection = await opened(server)
    lost = asyncio.get_running_loop().create_future()
    connection.on_lost = lost.set_result
    waiting = asyncio.ensure_future(connection.call("BLPOP", "none", 0))
    await asyncio.sleep(0)  # it is written in the next turn
    await asyncio.sleep(0)
    server.kill()
    with pytest.raises(RedisOutcomeUnknown):
        await waiting
    assert isinstance(await lost, RedisFailure)
    assert not connection.is_open
    with pytest.raises(RedisUnreachable):
        await connection.call("ECHO", "x")
    await connection.close()


async def test_a_silent_server_ends_the_connection(start: Start) -> None:
    server = start()
    connection = await opened(server, timeout_ms=50)
    server.pause()
    results = await asyncio.gather(*(connection.call("INCR", "n") for _ in range(3)), return_exceptions=True)
    assert [type(result) for result in results] == [RedisOutcomeUnknown] * 3
    server.resume()
    assert not connection.is_open
    await connection.close()


async def test_commands_that_were_not_written_certainly_did_nothing(start: Start) -> None:
    connection = await opened(start())
    found: list[object] = []
    connection.post(("ECHO", "x"), found.append)
    connection.abort()
    assert [type(failure) for failure in found] == [RedisUnreachable]
    await connection.close()


async def test_what_is_in_flight_is_bounded(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = await opened(start())
    monkeypatch.setattr(module, "REDIS_COMMANDS_IN_FLIGHT_MAX", 3)
    monkeypatch.setattr(module, "REDIS_BYTES_IN_FLIGHT_MAX", 10)
    calls = [asyncio.ensure_future(connection.call("SET", "k", payload=(b"12345",))) for _ in range(3)]
    *fitted, beyond = await asyncio.gather(*calls, return_exceptions=True)
    assert fitted == [b"OK"] * 2
    assert isinstance(beyond, RedisBusy)
    calls = [asyncio.ensure_future(connection.call("ECHO", "x")) for _ in range(5)]
    assert [type(found) for found in await asyncio.gather(*calls, return_exceptions=True)] == [
        *[bytes] * 3,
        *[RedisBusy] * 2,
    ]
    assert await connection.call("ECHO", "again") == b"again"
    await connection.close()


async def test_a_cancelled_call_does_not_shift_the_answers(connection: Connection) -> None:
    cancelled = asyncio.ensure_future(connection.call("ECHO", "a"))
    await asyncio.sleep(0)
    cancelled.cancel()
    assert await connection.call("ECHO", "b") == b"b"


async def test_a_password_is_asked_for_and_checked(start: Start) -> None:
    server = start("--requirepass", "secret")
    with pytest.raises(RedisDenied, match="NOAUTH"):
        await opened(server)
    with pytest.raises(RedisDenied, match="WRONGPASS"):
        await opened(server, Credentials(password="wrong"))
    connection = await opened(server, Credentials(password="secret"))
    await connection.call("ACL", "SETUSER", "reader", "on", ">pass", "+ping", "+hello")
    await connection.close()
    reader = await opened(server, Credentials(user="reader", password="pass"))
    with pytest.raises(RedisDenied, match="NOPERM"):
        await reader.call("SET", "a", "b")
    await reader.close()


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        (("--maxmemory", "1"), RedisOutOfMemory),
        (("--min-replicas-to-write", "1"), RedisNoReplicas),
        (("--replicaof", "127.0.0.1", "1"), RedisReadOnly),
        (("--cluster-enabled", "yes"), RedisClusterDown),
    ],
)
async def test_a_server_that_takes_no_writes_says_why(
    start: Start, options: tuple[str, ...], kind: type[RedisRefused]
) -> None:
    connection = await opened(start(*options))
    with pytest.raises(kind):
        await connection.call("SET", "a", "b")
    await connection.close()


async def test_databases_are_apart(start: Start) -> None:
    server = start()
    first = await opened(server)
    second = await connect(Place(path=str(server.socket)), Credentials(), database=2)
    await first.call("SET", "a", "first")
    assert await second.call("GET", "a") is None
    await first.close()
    await second.close()


async def test_a_server_that_is_not_there_is_unreachable(place: Path) -> None:
    with pytest.raises(RedisUnreachable, match="Cannot connect to Redis at"):
        await connect(Place(path=str(place / "none")), Credentials())


async def test_a_server_over_tcp_says_what_it_is(start: Start) -> None:
    server = start(tcp=True)
    connection = await connect(Place(host="127.0.0.1", port=server.port), Credentials())
    assert connection.server["mode"] == "standalone"
    await connection.close()


@pytest.mark.parametrize(
    ("answer", "failure", "words"),
    [
        (b"-ERR unknown command 'HELLO'\r\n", UsageError, "needs 7.0 or newer"),
        (b"%1\r\n$7\r\nversion\r\n$6\r\n6.2.14\r\n", UsageError, "is 6.2.14, and Headrace needs 7.0"),
        (b"*0\r\n", RedisFailure, "does not speak RESP3"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", RedisUnreachable, "not Redis's protocol"),
    ],
)
async def test_what_is_no_server_of_ours_is_refused_in_one_sentence(
    place: Path, answer: bytes, failure: type[Exception], words: str
) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"headrace\r\n")
        writer.write(answer)
        await reader.read()
        writer.close()

    other: Any = await asyncio.start_unix_server(serve, str(place / "old"))
    with pytest.raises(failure, match=words):
        await connect(Place(path=str(place / "old")), Credentials())
    other.close()
