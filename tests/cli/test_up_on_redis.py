"""`headrace up --engine redis`: brokers on a Valkey of their own, or on one that is there, as processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest
import redis

from tools import warm
from tools.servers.redis_servers import RedisServer, valkey


class Up:
    """A running command, once it has said that it serves."""

    def __init__(self, *arguments: str) -> None:
        self.process = warm.begun("up", "--listen", "127.0.0.1:0", "--json", *arguments)
        assert self.process.stdout is not None
        self.lines: list[str] = []
        for line in self.process.stdout:
            self.lines.append(line.strip())
            if line.startswith("ready "):
                break

    @property
    def bootstrap(self) -> str:
        return self.lines[-1].removeprefix("ready ")

    @property
    def url(self) -> str:
        return self.lines[0].removeprefix("redis ")

    def stop(self) -> int | None:
        self.process.terminate()
        self.process.communicate(timeout=150)
        return self.process.returncode


@pytest.fixture
def ups() -> Iterator[list[Up]]:
    started: list[Up] = []
    yield started
    for up in started:
        up.process.kill()
        up.process.communicate()


def send(up: Up, *values: bytes) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": up.bootstrap, "acks": "all"})
    for value in values:
        producer.produce("orders", value, partition=0)
    assert producer.flush(150) == 0


def read(up: Up, count: int) -> list[bytes]:
    options = {"bootstrap.servers": up.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
    consumer = confluent_kafka.Consumer(options)
    consumer.assign([confluent_kafka.TopicPartition("orders", 0, 0)])
    found: list[bytes] = []
    while len(found) < count:
        found += [message.value() for message in consumer.consume(count - len(found), timeout=1)]
    consumer.close()
    return found


def test_a_server_of_its_own_is_told_first_and_outlives_kill_9_in_its_files(tmp_path: Path, ups: list[Up]) -> None:
    ups.append(Up("--data", str(tmp_path), "--engine", "redis"))
    assert ups[0].lines[0].startswith("redis unix://")
    send(ups[0], b"one", b"two")
    with redis.Redis.from_url(ups[0].url) as client:
        assert client.xlen("headrace:orders:0") >= 1
        assert client.config_get("appendfsync") == {"appendfsync": "always"}
    ups[0].process.kill()
    ups[0].process.wait()
    ups.append(Up("--data", str(tmp_path), "--engine", "redis"))
    assert read(ups[1], 2) == [b"one", b"two"]
    assert ups[1].stop() == 0
    with pytest.raises(redis.ConnectionError), redis.Redis.from_url(ups[1].url) as client:
        client.ping()


@pytest.mark.parametrize("nodes", [(), ("--nodes", "2")])
def test_a_server_of_its_own_that_dies_comes_back_with_all_it_had(
    tmp_path: Path, ups: list[Up], nodes: tuple[str, ...]
) -> None:
    ups.append(Up("--data", str(tmp_path), "--engine", "redis", *nodes))
    send(ups[0], b"one")
    killed = int((tmp_path / "redis" / "valkey.pid").read_text())
    os.kill(killed, signal.SIGKILL)
    send(ups[0], b"two")
    assert read(ups[0], 2) == [b"one", b"two"]
    assert int((tmp_path / "redis" / "valkey.pid").read_text()) != killed
    ups[0].process.terminate()
    _, told = ups[0].process.communicate(timeout=150)
    assert ups[0].process.returncode == 0
    assert told.count("it is started again") == 1
    with pytest.raises(redis.ConnectionError), redis.Redis.from_url(ups[0].url) as client:
        client.ping()


def test_several_brokers_share_one(tmp_path: Path, ups: list[Up]) -> None:
    ups.append(Up("--data", str(tmp_path), "--engine", "redis", "--nodes", "2"))
    assert [line.split()[0] for line in ups[0].lines] == ["redis", "broker", "broker", "ready"]
    send(ups[0], b"one")
    assert read(ups[0], 1) == [b"one"]
    assert ups[0].stop() == 0


def test_one_that_is_there_is_named_without_its_password(tmp_path: Path, ups: list[Up]) -> None:
    (tmp_path / "r").mkdir()
    with RedisServer(valkey(), tmp_path / "r", ["--requirepass", "sesame"], tcp=True) as server:
        url = server.url.replace("redis://", "redis://:sesame@")
        ups.append(Up("--data", str(tmp_path / "1"), "--engine", "redis", "--redis", url))
        assert ups[0].lines[0] == f"redis {server.url}"
        send(ups[0], b"one")
        ups[0].process.terminate()
        _, logs = ups[0].process.communicate(timeout=150)
        assert ups[0].process.returncode == 0
        assert "sesame" not in logs


def refused(*arguments: str) -> str:
    done = warm.ran(*arguments, timeout=150)
    assert done.returncode != 0
    return done.stderr.splitlines()[-1]


def test_what_cannot_be_is_refused_in_one_sentence(tmp_path: Path, ups: list[Up]) -> None:
    data = ("--data", str(tmp_path / "d"))
    assert "choose local or redis" in refused("up", *data, "--engine", "postgres")
    assert "--redis goes with --engine redis" in refused("up", *data, "--redis", "redis://127.0.0.1:1/0")
    assert "Cannot connect to Redis" in refused("up", *data, "--engine", "redis", "--redis", "redis://127.0.0.1:1/0")
    assert "add --redis" in refused("broker", "--id", "1", *data, "--engine", "redis")
    ups.append(Up("--data", str(tmp_path / "e"), "--engine", "redis"))
    in_use = refused("up", "--data", str(tmp_path / "e"), "--engine", "redis", "--listen", "127.0.0.1:0")
    assert "in use by another process" in in_use
    assert ups[0].stop() == 0
    assert "start it with --engine redis" in refused("up", "--data", str(tmp_path / "e"), "--listen", "127.0.0.1:0")
