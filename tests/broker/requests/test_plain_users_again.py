"""The users of PLAIN are read again from a broker's config files: who is new comes in, who is gone does not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import aiokafka
import aiokafka.errors
import pytest
from structlog.testing import capture_logs

from headrace.base import limits
from headrace.base.properties import encode_properties
from headrace.broker.boot import Broker
from headrace.broker.config import BrokerConfig
from headrace.broker.system import SystemClock, system_random
from headrace.cli.options import broker_configs
from headrace.storage.disk import LocalDisk
from tests.broker.group_broker import until
from tests.sasl_broker import PLAIN_MODULE, PREFIX, SASL
from tools.servers.broker_process import BrokerProcess

JAAS = f"{PREFIX}plain.sasl.jaas.config"


def put(file: Path, **passwords: str) -> None:
    """As an operator does, by a rename."""
    users = " ".join(f'user_{name}="{password}"' for name, password in passwords.items())
    put_text(file, encode_properties({**SASL, JAAS: f"{PLAIN_MODULE} required {users};"}))


def put_text(file: Path, text: str) -> None:
    """A broker may read at any time, and never finds a part of it."""
    new = file.with_suffix(".new")
    new.write_text(text)
    new.replace(file)


@asynccontextmanager
async def broker_of(directory: Path, file: Path, *pairs: str) -> AsyncIterator[Broker]:
    read_again = partial(broker_configs, [file], pairs)
    config = BrokerConfig(data=directory / "data", configs=read_again(), read_again=read_again)
    async with Broker(config, clock=SystemClock(), random=system_random(), disk=LocalDisk()) as broker:
        yield broker


async def is_let_in(at: str, user: str, password: str) -> bool:
    producer = aiokafka.AIOKafkaProducer(
        bootstrap_servers=at,
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="PLAIN",
        sasl_plain_username=user,
        sasl_plain_password=password,
    )
    try:
        await producer.start()
    except aiokafka.errors.KafkaConnectionError:
        return False
    finally:
        await producer.stop()
    return True


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(limits, "CONFIG_FILES_REFRESH_MS", 20)
    file = tmp_path / "server.properties"
    put(file, alice="old", bob="of bob")
    return file


async def changed(broker: Broker, file: Path, **passwords: str) -> None:
    with capture_logs() as logs:
        put(file, **passwords)
        await until(lambda: any("changed config files" in line["event"] for line in logs))
    assert not any(password in str(logs) for password in passwords.values())


async def test_users_come_and_go_and_open_connections_stay(tmp_path: Path, file: Path) -> None:
    async with asyncio.timeout(150), broker_of(tmp_path, file) as broker:
        at = str(broker.address)
        lasting = aiokafka.AIOKafkaProducer(
            bootstrap_servers=at,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="PLAIN",
            sasl_plain_username="alice",
            sasl_plain_password="old",
        )
        async with lasting:
            await lasting.send_and_wait("t", b"x")
            await changed(broker, file, alice="new", carol="of carol")
            logins: Mapping[tuple[str, str], bool] = {
                ("alice", "old"): False,
                ("alice", "new"): True,
                ("bob", "of bob"): False,
                ("carol", "of carol"): True,
            }
            for login, wanted in logins.items():
                assert await is_let_in(at, *login) is wanted, login
            await lasting.send_and_wait("t", b"y")


async def test_what_cannot_be_used_changes_nothing_and_is_told_once(tmp_path: Path, file: Path) -> None:
    async with asyncio.timeout(150), broker_of(tmp_path, file) as broker:
        for bad in (f"{JAAS}=no module\n", f"{JAAS}={PLAIN_MODULE} required user_alice=\n", "", None):
            with capture_logs() as logs:
                if bad is None:
                    file.unlink()
                else:
                    put_text(file, bad)
                await until(lambda: any("not adopted" in line["event"] for line in logs))
                for _ in range(20):  # some looks more
                    assert await is_let_in(str(broker.address), "alice", "old")
            assert sum("not adopted" in line["event"] for line in logs) == 1, bad
        await changed(broker, file, alice="new")
        assert not await is_let_in(str(broker.address), "alice", "old")


async def test_the_command_line_goes_before_the_file(tmp_path: Path, file: Path) -> None:
    own = f'{JAAS}={PLAIN_MODULE} required user_dora="of dora";'
    async with asyncio.timeout(150), broker_of(tmp_path, file, own) as broker:
        looks = broker.parts.requests.authentication._plain
        put(file, eve="of eve")
        await until(lambda: broker.parts.requests.authentication._plain is not looks)
        assert await is_let_in(str(broker.address), "dora", "of dora")
        assert not await is_let_in(str(broker.address), "eve", "of eve")


async def test_a_broker_of_the_command_reads_its_file_again(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    put(file, alice="old")
    with BrokerProcess(tmp_path, "--config-file", str(file), "--config", f"listeners={SASL['listeners']}") as broker:
        assert await is_let_in(broker.bootstrap, "alice", "old")
        put(file, alice="new")
        while not await is_let_in(broker.bootstrap, "alice", "new"):
            pass
        assert not await is_let_in(broker.bootstrap, "alice", "old")
