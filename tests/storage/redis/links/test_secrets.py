"""TLS, users and passwords on a real server; no secret is in anything that people read."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from pathlib import Path
from random import Random

import pytest
from structlog.testing import capture_logs

from headrace.base.errors import HeadraceError, UsageError
from headrace.storage.redis.errors import RedisDenied, RedisFailure, RedisOutcomeUnknown, RedisUnreachable
from headrace.storage.redis.links.address import parse_redis_address
from headrace.storage.redis.links.blocking import BlockingConnection
from headrace.storage.redis.links.client import Redis, RedisNode, place_of
from headrace.storage.redis.links.opening import open_redis
from tests.storage.redis.client_world import Open, Start, says, until
from tests.storage.redis.redis_world import disconnect_all, engine_at
from tests.storage.redis.topologies import cluster_of, replicated
from tools.servers.redis_servers import RedisServer, certificates, debian

SECRET = "swordfish-4711"


@pytest.fixture
def secure(start: Start, place: Path) -> Start:
    """Starts servers that serve TLS alone."""
    if (program := debian()).missing:
        pytest.skip(f"Valkey from pip has no TLS, and there is no {program.name}: {program.missing}")

    def started(*options: str) -> RedisServer:
        return start(*options, program=program, tls=certificates(place, "server"))

    return started


async def test_tls_checks_the_server_and_carries_all_commands(secure: Start, open_: Open, place: Path) -> None:
    server = secure("--tls-auth-clients", "no")
    client = await open_(server.url)
    value = bytes(5_000_000)
    assert await client.call("SET", "a", payload=(value,)) == b"OK"
    assert await client.call("GET", "a") == value
    address = parse_redis_address(server.url)
    connection = BlockingConnection(place_of(address), address.credentials)
    for _ in range(3):
        assert await asyncio.to_thread(connection.call, "STRLEN", "a") == len(value)
    before = count(await client.call("INFO", "stats"))
    await asyncio.to_thread(connection.call, "PING")
    assert count(await client.call("INFO", "stats")) == before, "one connection serves all calls of threads"
    waiting = asyncio.ensure_future(asyncio.to_thread(connection.call, "BLPOP", "none", 0))
    await until(lambda: says(client, b"blocked_clients:1", "INFO", "clients"))
    connection.close()
    with pytest.raises(RedisOutcomeUnknown):
        await waiting


def count(said: bytes) -> int:
    return int(said.partition(b"total_connections_received:")[2].split()[0])


async def test_a_server_that_is_not_trusted_gets_no_password(secure: Start, place: Path) -> None:
    server = secure("--tls-auth-clients", "no", "--requirepass", SECRET)
    stranger = certificates(place, "stranger")
    url = f"rediss://:{SECRET}@127.0.0.1:{server.port}/0?ssl_ca_certs={stranger.authority}"
    with pytest.raises(RedisUnreachable, match="certificate") as seen:
        await open_redis(parse_redis_address(url), Random(1))
    assert SECRET not in str(seen.value)
    plain = f"redis://:{SECRET}@127.0.0.1:{server.port}"
    with pytest.raises(RedisUnreachable):
        await open_redis(parse_redis_address(plain), Random(1))


async def test_a_server_may_ask_for_a_certificate(secure: Start, open_: Open, place: Path) -> None:
    server = secure("--tls-auth-clients", "yes")
    with pytest.raises(RedisUnreachable):
        await open_redis(parse_redis_address(server.url), Random(1))
    mine = f"ssl_certfile={place / 'server.pem'}&ssl_keyfile={place / 'server.key'}"
    client = await open_(f"{server.url}&{mine}")
    assert await client.call("PING") == b"PONG"


@pytest.fixture
def all_secure(start: Start, place: Path) -> Start:
    """Starts servers that serve TLS alone, to each other too. They share a certificate."""
    if (program := debian()).missing:
        pytest.skip(f"Valkey from pip has no TLS, and there is no {program.name}: {program.missing}")
    certificate = certificates(place, "server")

    def started(*options: str, tcp: bool = True, sentinel: bool = False) -> RedisServer:
        between = {"tls-auth-clients": "no", "tls-replication": "yes", "tls-cluster": "yes"}
        if sentinel:
            settings = [f"{name} {value}" for name, value in between.items() if name != "tls-cluster"]
            return start(*settings, *options, sentinel=True, program=program, tls=certificate)
        words = [word for name, value in between.items() for word in (f"--{name}", value)]
        return start(*words, *options, program=program, tls=certificate)

    return started


async def test_sentinels_and_their_servers_are_reached_by_tls_alone(
    all_secure: Start, open_: Open, place: Path
) -> None:
    world = await replicated(all_secure)
    trust = f"?ssl_ca_certs={place / 'server.pem'}"
    client = await open_(world.url.replace("redis+", "rediss+") + trust)
    assert await client.call("SET", "a", "1") == b"OK"
    world.primary.kill()
    await until(lambda: succeeds(client, "SET", "a", "2"))
    assert await client.call("GET", "a") == b"2"
    engine = await engine_at(world.url.replace("redis+", "rediss+") + trust)
    assert await asyncio.to_thread(engine.blocking.call, "GET", "a") == b"2"
    await disconnect_all()


async def test_the_servers_of_a_cluster_are_reached_by_tls_alone(all_secure: Start, open_: Open, place: Path) -> None:
    servers = await cluster_of(all_secure, 2)
    client = await open_(f"rediss+cluster://127.0.0.1:{servers[0].port}?ssl_ca_certs={place / 'server.pem'}")
    for name in map(str, range(20)):
        assert await client.call("SET", name, name, key=name) == b"OK"
    assert {str(node.connection.place) for node in client.nodes if node.connection is not None} == {
        f"127.0.0.1:{server.port}" for server in servers
    }
    engine = await engine_at(f"rediss+cluster://127.0.0.1:{servers[1].port}?ssl_ca_certs={place / 'server.pem'}")
    for name in map(str, range(20)):
        assert (await asyncio.to_thread(partial(engine.blocking.call, "GET", name, key=name))) == name.encode()
    await disconnect_all()


async def succeeds(client: Redis, *command: str) -> bool:
    try:
        await client.call(*command)
    except RedisFailure:
        return False
    return True


async def test_no_log_and_no_error_shows_a_secret(
    start: Start, place: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user of its own over a server's life: refused, served, cut off, changed, gone."""
    caplog.set_level(logging.DEBUG)
    (place / "password").write_text(SECRET)
    server = start(tcp=True)
    admin = BlockingConnection(place_of(parse_redis_address(server.url)), parse_redis_address(server.url).credentials)
    await asyncio.to_thread(admin.call, "ACL", "SETUSER", "broker", "on", f">{SECRET}", "allkeys", "allcommands")
    environment = {"HEADRACE_REDIS_USER": "broker", "HEADRACE_REDIS_PASSWORD_FILE": str(place / "password")}
    errors: list[HeadraceError] = []
    with capture_logs() as lines:
        address = parse_redis_address(server.url, environment)
        client = await open_redis(address, Random(1))
        assert isinstance(client, RedisNode)
        assert await client.call("ACL", "WHOAMI") == b"broker"
        lost = asyncio.Event()

        def on_change() -> None:
            if client.failure is not None:
                errors.append(client.failure)
            lost.set()

        client.on_change = on_change
        await asyncio.to_thread(admin.call, "ACL", "SETUSER", "broker", "resetpass", ">another")
        await asyncio.to_thread(admin.call, "CLIENT", "KILL", "USER", "broker")
        await has_failed(client, lost, RedisDenied)
        server.kill()
        await has_failed(client, lost, RedisUnreachable)
        await client.close()
        admin.close()
        for url in (f"redis://me:{SECRET}@127.0.0.1:1", f"redis+cluster://:{SECRET}@127.0.0.1:1"):
            with pytest.raises(RedisUnreachable) as seen:
                await open_redis(parse_redis_address(url), Random(1), timeout_ms=100)
            errors.append(seen.value)
        with pytest.raises(UsageError) as told:
            parse_redis_address(f"redis://:{SECRET}@h:1/x")
        errors.append(told.value)
    shown = [repr(address), str(address), repr(vars(client)), *map(repr, errors), *map(repr, lines), caplog.text]
    assert len(errors) >= 5
    assert not [each for each in shown if SECRET in each]


async def has_failed(client: RedisNode, changed: asyncio.Event, kind: type[RedisFailure]) -> None:
    while not isinstance(client.failure, kind):
        changed.clear()
        await changed.wait()


async def test_sentinels_have_a_password_of_their_own(start: Start, clients: list[Redis]) -> None:
    master = start("--requirepass", SECRET, tcp=True)
    monitor = f"sentinel monitor queue 127.0.0.1 {master.port} 1"
    sentinel = start(monitor, f"sentinel auth-pass queue {SECRET}", "requirepass watcher", tcp=True, sentinel=True)
    url = f"redis+sentinel://:{SECRET}@127.0.0.1:{sentinel.port}/queue"
    environment = {"HEADRACE_REDIS_SENTINEL_PASSWORD": "watcher"}
    clients.append(await open_redis(parse_redis_address(url, environment), Random(1)))
    assert await clients[0].call("PING") == b"PONG"
    with pytest.raises(RedisFailure, match="NOAUTH at") as seen:
        await open_redis(parse_redis_address(url), Random(1), timeout_ms=200)
    assert SECRET not in str(seen.value)
