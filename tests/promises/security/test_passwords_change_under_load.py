"""A user's SCRAM password is changed while clients of that user and of another write and read.

Open connections go on, new ones need the new password, and no acknowledged record is lost. Where both passwords are to
hold for a while, the recipe of docs/SECURITY.md works: the new one is first set for the other mechanism.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import confluent_kafka
import pytest
from confluent_kafka.admin import (
    AdminClient,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from headrace.broker.boot import Broker
from tests.broker.group_broker import until
from tests.promises.support.writing import TOPIC, LastingWriter, Reader, Writer, at_work, read
from tests.sasl_broker import confluent_config, sasl_broker
from tests.tiers import of_tier

OLD, NEW = ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512
TITLES: Final = {OLD: "SCRAM-SHA-256", NEW: "SCRAM-SHA-512"}
CHANGES: Final = of_tier(short=2, long=30)
"""Of a password that is set again."""
SOME: Final = 5
"""Records between two steps."""


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with asyncio.timeout(150), sasl_broker(tmp_path) as broker:
        await change(broker, UserScramCredentialUpsertion("bob", ScramCredentialInfo(NEW, 4_096), b"of bob"))
        admin = AdminClient(confluent_config(broker, "PLAIN", "admin", "of all"))
        await asyncio.to_thread(admin.create_topics([NewTopic(TOPIC, 1)])[TOPIC].result, 60)
        yield broker


async def change(broker: Broker, wanted: Any) -> None:
    def work() -> None:
        admin = AdminClient(confluent_config(broker, "PLAIN", "admin", "of all"))
        for done in admin.alter_user_scram_credentials([wanted]).values():
            done.result(150)

    await asyncio.to_thread(work)


async def set_password(broker: Broker, mechanism: ScramMechanism, password: str) -> None:
    await change(
        broker, UserScramCredentialUpsertion("alice", ScramCredentialInfo(mechanism, 4_096), password.encode())
    )


def client(
    broker: Broker, mechanism: ScramMechanism, password: str, user: str = "alice", **more: Any
) -> dict[str, Any]:
    return (
        confluent_config(broker, TITLES[mechanism], user, password)
        | {"enable.idempotence": True, "linger.ms": 0}
        | more
    )


async def is_let_in(broker: Broker, mechanism: ScramMechanism, password: str) -> bool:
    """Whether librdkafka comes in with this password, on a new connection."""

    def work() -> bool:
        refused = threading.Event()

        def on_error(error: confluent_kafka.KafkaError) -> None:
            if error.code() == confluent_kafka.KafkaError._AUTHENTICATION:
                refused.set()

        producer = confluent_kafka.Producer(client(broker, mechanism, password, error_cb=on_error, log_level=0))
        producer.produce("knocks", b"x")
        while producer.flush(0.01):
            if refused.is_set():
                producer.purge()
                return False
        return True

    return await asyncio.to_thread(work)


async def goes_on(*workers: Writer | Reader) -> None:
    for each in workers:
        records = each.acknowledged if isinstance(each, Writer) else each.found
        many = len(records)
        await until(lambda records=records, many=many: len(records) > many + SOME)  # type: ignore[misc]


async def all_is_there(broker: Broker, *writers: Writer) -> None:
    acknowledged = [record for each in writers for record in each.acknowledged]
    found = await asyncio.to_thread(read, client(broker, NEW, "of bob", "bob"), len(acknowledged))
    assert sorted(found) == sorted(acknowledged)


async def test_both_passwords_hold_for_a_while_by_two_mechanisms(broker: Broker) -> None:
    await set_password(broker, OLD, "old")
    bob = Writer(client(broker, NEW, "of bob", "bob"))
    before: list[Writer | Reader] = [Writer(client(broker, OLD, "old")), Reader(client(broker, OLD, "old"))]
    async with at_work(bob, *before):
        await goes_on(bob, *before)
        await set_password(broker, NEW, "new")
        after: list[Writer | Reader] = [Writer(client(broker, NEW, "new")), Reader(client(broker, NEW, "new"))]
        async with at_work(*after):
            await goes_on(bob, *before, *after)
            for each in before:
                await asyncio.to_thread(each.stop)
            await change(broker, UserScramCredentialDeletion("alice", OLD))
            assert not await is_let_in(broker, OLD, "old")
            await goes_on(bob, *after)
    for worker in (bob, *before, *after):
        assert not worker.problems
    await all_is_there(broker, *(each for each in (bob, *before, *after) if isinstance(each, Writer)))


async def test_a_password_is_set_again_and_reconnects_use_the_new_one(broker: Broker) -> None:
    """The writer is told the new one (librdkafka takes it while it runs). Then all connections are cut."""
    await set_password(broker, NEW, "password 0")
    bob, alice = Writer(client(broker, NEW, "of bob", "bob")), LastingWriter(client(broker, NEW, "password 0"))
    counts = broker.parts.requests.authentication.counts
    async with at_work(bob, alice):
        await goes_on(bob, alice)
        for number in range(1, CHANGES + 1):
            async with at_work(reader := Reader(client(broker, NEW, f"password {number - 1}"))):
                await goes_on(reader)
                await set_password(broker, NEW, f"password {number}")
                await goes_on(bob, alice, reader)
            assert not bob.problems + alice.problems + reader.problems, "open connections go on"
            assert not await is_let_in(broker, NEW, f"password {number - 1}")
            alice.lasting.set_sasl_credentials("alice", f"password {number}")
            refused = counts.failed
            for connection in list(broker.parts.requests.listener._connections):
                connection.end("of a test")
            await goes_on(bob, alice)
            assert counts.failed == refused, "everybody knows the password"
            bob.problems.clear()  # they saw the cut
            alice.problems.clear()
    await all_is_there(broker, bob, alice)
