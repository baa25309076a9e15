"""Directories that a broker finds when it starts, and no longer holds."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

from structlog.testing import capture_logs

from headrace.base.errors import HeadraceError
from headrace.base.ids import DirectoryId, TopicPartition
from headrace.net.client.admin import Admin
from headrace.net.client.cluster import Cluster as Client
from headrace.storage.log.checkpoints import decode_stamp, encode_stamp
from headrace.storage.log.engine import LocalLogEngine
from headrace.storage.log.names import STAMP, STRAY
from tests import loops
from tests.broker.clusters import BY_HAND
from tests.broker.data_path import batch, produce
from tests.broker.partitions.test_held_again import place
from tests.broker.replication_world import ALL, World, replicating

TOPICS = ("gone", "elsewhere", "kept", "copied", "foreign")


def run(directory: Path, work: Callable[[World], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with replicating(directory, BY_HAND) as world:
            await work(world)

    loops.run(whole())


async def killed(world: World, broker: int) -> None:
    """It lets go of everything, and nothing more is written."""
    world.cluster.brokers[broker]._failure = HeadraceError("a test's")
    await world.stop(broker)


async def filled(world: World, *topics: str) -> None:
    for topic in topics:
        await world.make(topic)
        client = await world.client(world.leader(topic))
        assert (await produce(client, topic, batch(b"value of " + topic.encode()))).error_code == 0
        await world.until_end(topic, 1)


async def delete(world: World, *topics: str) -> None:
    async with Client(world.cluster.bootstrap) as client:
        for topic in topics:
            await Admin(client).delete_topic(topic)


def engine_of(world: World, broker: int) -> LocalLogEngine:
    engine = world.partitions(broker)._engine
    assert isinstance(engine, LocalLogEngine)
    return engine


def test_what_went_elsewhere_while_a_broker_was_away_is_set_aside_and_what_it_holds_is_not(tmp_path: Path) -> None:
    """With what only the journal had of it, which then has no more to do with it."""

    async def work(world: World) -> None:
        await filled(world, *TOPICS)
        controller = int(world.cluster.controller.metadata.me)
        away, other = [each for each in ALL if each != controller]
        keys: dict[str, TopicPartition] = {topic: world.key(topic) for topic in TOPICS}
        logs = world.cluster.data(away) / "logs"
        await world.fence(away)
        await killed(world, away)
        await delete(world, "gone", "copied", "foreign")
        await place(world, "elsewhere", controller, other)
        shutil.copytree(logs / "copied-0", logs / "copied-0.mine")
        stamp = decode_stamp((logs / "foreign-0" / STAMP).read_bytes())
        foreign = replace(stamp.identity, directory_id=DirectoryId(uuid.UUID(int=7)))
        (logs / "foreign-0" / STAMP).write_bytes(encode_stamp(replace(stamp, identity=foreign)))
        with capture_logs() as told:
            await world.cluster.start(away)
        await world.cluster.settled(away)

        names = {path.name for path in logs.iterdir()}
        assert {"kept-0", "copied-0.mine", "foreign-0"} <= names
        assert not {"gone-0", "elsewhere-0", "copied-0"} & names
        aside = {topic: f"{topic}-0.{keys[topic].topic_id.hex}{STRAY}" for topic in ("gone", "elsewhere", "copied")}
        assert set(aside.values()) <= names
        for topic, name in aside.items():
            assert b"value of " + topic.encode() in b"".join(path.read_bytes() for path in (logs / name).glob("*.log"))
        (line,) = [each for each in told if "set aside; remove" in each["event"]]
        assert (line["count"], len(line["kept_in"])) == (3, 3)
        journal = engine_of(world, away)._journal
        assert journal is not None
        held = {key.topic_id for key in journal.earlier_keys}
        assert not held & {keys[topic].topic_id.bytes for topic in aside}

        await world.unfence(away)
        await world.in_sync("kept")
        assert [value for _, value in await world.read("kept")] == [b"value of kept"]

    run(tmp_path, work)


def test_a_log_under_the_name_of_another_that_is_held_is_not_taken_for_that(tmp_path: Path) -> None:
    """A topic's log was copied; then the topic was deleted and created again."""

    async def work(world: World) -> None:
        await filled(world, "t")
        controller = int(world.cluster.controller.metadata.me)
        away = next(each for each in ALL if each != controller)
        logs = world.cluster.data(away) / "logs"
        await world.cluster.settled(away)
        shutil.copytree(logs / "t-0", logs / "t-0.mine")
        await delete(world, "t")
        await world.cluster.agree()
        await world.cluster.settled(away)
        await filled(world, "t")
        await world.stop(away)
        await world.cluster.start(away)
        await world.cluster.settled(away)
        names = {path.name for path in logs.iterdir()}
        assert {"t-0", "t-0.mine"} <= names
        assert not [name for name in names if name.endswith(STRAY)]
        assert world.role(away, "t").log.log_end_offset == 1

    run(tmp_path, work)
