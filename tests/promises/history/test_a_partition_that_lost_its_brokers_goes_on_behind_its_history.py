"""Promises 3, 4 and 6 when all brokers of a partition are gone for good, with real processes.

`headrace durable recover` makes the partition continue behind its durable history (decision 0049). Then:
- Exported records are read again, once, in order, at their offsets, by any client.
- Acknowledged records above them are lost, and no client gets others in their place without notice.
- An idempotent producer continues where history ends, and nowhere else. Readers that were further are told.
- A disk that returns with the lost records wins nowhere, and is kept.

There are three voters, so that two brokers may go, another broker, and one directory for a store. The oracle is what
producers were told, and the order in which they sent.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeAlias

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from headrace.net.client.durable import DurableLink
from headrace.storage.log.names import STRAY
from headrace.wire.batches import encode_batch
from headrace.wire.errors import ErrorCode, error_of
from headrace.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from headrace.wire.messages.init_producer_id import InitProducerIdRequest
from headrace.wire.messages.metadata import MetadataRequest, MetadataResponsePartition
from headrace.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from headrace.wire.records import Record
from tests import loops
from tests.broker.data_path import produce
from tests.broker.group_broker import RawClient
from tests.promises.support.load import QUIET, ends_of
from tests.promises.support.records import ASKED_EVERY_S, IMPATIENT, OPTIONS
from tests.promises.test_a_move_keeps_every_record import Operator
from tools.servers.broker_cluster import BrokerCluster

Key: TypeAlias = tuple[str, int]
VOTERS: Final = 3
GONE: Final = (3, 4)
"""A voter, and who is none."""
LIVING: Final = (1, 2)
PLACES: Final[Mapping[str, list[list[int]]]] = {"alone": [[3], [4], [1]], "paired": [[3, 4]]}
LOST: Final[tuple[Key, ...]] = (("alone", 0), ("alone", 1), ("paired", 0))
KEPT: Final[Key] = ("alone", 2)
ALL: Final = (*LOST, KEPT)
SEGMENT_BYTES: Final = 16_384
ENDLESS: Final = 1 << 30
"""Of a segment: what comes from here on is not exported."""
EXPORTED: Final = 300
BEYOND: Final = 100
AFTER: Final = 300
UNDER_WAY: Final = 20
"""Records of each partition: in what is exported (but for its last segment) and not, written after all, and sent just
before the brokers die."""
NUMBERED: Final = 3
"""Of who numbers its own batches: so many are exported, and two more are not."""
GROUP: Final = "ahead"
DEADLINE_S: Final = 150.0
TIMESTAMP: Final = 1_700_000_000_000
IS_LOSS: Final = (confluent_kafka.KafkaError._LOG_TRUNCATION, confluent_kafka.KafkaError._AUTO_OFFSET_RESET)


class Sender:
    """librdkafka's idempotent producer, and what it was told, by partition and offset."""

    def __init__(self, bootstrap: str, name: str, sent: dict[Key, list[bytes]]) -> None:
        """`sent`: gets all that is sent, in order."""
        self.told: dict[Key, dict[int, bytes]] = {key: {} for key in ALL}
        self.failures: dict[Key, list[confluent_kafka.KafkaError]] = {key: [] for key in ALL}
        self._name = name
        self._sent = sent
        options = {"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True, "batch.size": 2048}
        options |= {"retry.backoff.ms": 20, "topic.metadata.refresh.interval.ms": 500}
        self._client = confluent_kafka.Producer(options | dict(IMPATIENT) | dict(QUIET))

    def begin(self, count: int, *keys: Key) -> None:
        """So many to each."""
        for _ in range(count):
            for key in keys:
                value = f"{self._name} {len(self._sent[key])} ".encode().ljust(200, b".")
                self._client.produce(key[0], value, partition=key[1], on_delivery=self._on_delivery)
                self._sent[key].append(value)
        self._client.poll(0)

    def settle(self) -> None:
        """Until the fate of all is known."""
        assert self._client.flush(DEADLINE_S) == 0

    def hear(self) -> None:
        """All that the client was told so far."""
        while self._client.poll(0):
            pass

    def check_ended(self, key: Key) -> None:
        """It was told that what it would send next does not follow on what is there, and takes nothing more. The client
        raises that in the midst of what else it tells, as one exception or another."""
        while len(self._client):
            with suppress(confluent_kafka.KafkaException, SystemError):
                self._client.flush(DEADLINE_S)
        with pytest.raises(confluent_kafka.KafkaException) as raised:
            self._client.produce(key[0], b"", partition=key[1])
        assert raised.value.args[0].code() == confluent_kafka.KafkaError._FATAL

    def send(self, count: int, *keys: Key) -> None:
        """Until all of it is acknowledged."""
        self.begin(count, *keys)
        self.settle()
        assert not any(self.failures.values()), self.failures

    def close(self) -> None:
        """Or it would look for its topics, and have them made, wherever its addresses lead to afterwards."""
        self._client.close()

    def _on_delivery(self, error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
        key = message.topic(), message.partition()
        if error is not None:
            self.failures[key].append(error)
            return
        assert message.offset() not in self.told[key], "an offset is given once"
        self.told[key][message.offset()] = message.value()


class Numbered:
    """An idempotent producer of one partition that numbers its batches itself, each with one record. It may send one of
    them again, or leave one out."""

    def __init__(self, key: Key, producer_id: int) -> None:
        self.offsets: dict[int, int] = {}
        """Where its batches were acknowledged, by number, the last time."""
        self.key = key
        self._id = producer_id

    def value(self, number: int, by: str = "") -> bytes:
        return f"numbered {number}{by} ".encode().ljust(100, b".")

    async def send(self, leader: str, number: int, by: str = "") -> int:
        """The error code."""
        record = Record(0, TIMESTAMP, None, self.value(number, by), ())
        batch = encode_batch([record], producer_id=self._id, producer_epoch=0, base_sequence=number)
        async with RawClient(leader) as client:
            told = await produce(client, self.key[0], batch, partition=self.key[1])
        if told.error_code == 0:
            self.offsets[number] = told.base_offset
        return int(told.error_code)


class Reader:
    """librdkafka's consumer, of some partitions, that resets nothing by itself."""

    def __init__(self, bootstrap: str, *keys: Key, start: int = 0, group: str = "reader") -> None:
        """`start`: -1001: where its group is."""
        options = {"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False}
        options |= {"auto.offset.reset": "error", "topic.metadata.refresh.interval.ms": 500}
        self.client: Any = confluent_kafka.Consumer(options | {"socket.timeout.ms": 2_000} | dict(QUIET))
        self.read: dict[Key, dict[int, tuple[bytes, int]]] = {key: {} for key in keys}
        """Value and leader epoch, by offset."""
        self.lost: dict[Key, str] = {}
        """Records that, as it was told, do not continue the log."""
        self.client.assign([confluent_kafka.TopicPartition(*key, start) for key in keys])

    def read_to(self, ends: Mapping[Key, int]) -> dict[Key, list[bytes]]:
        """From 0 on, in order and without a gap: the values."""
        while any(len(self.read[key]) < ends[key] for key in self.read):
            self._poll()
            assert not self.lost, self.lost
        return {key: [value for value, _ in found.values()] for key, found in self.read.items()}

    def read_until_told(self) -> None:
        """Of all of them that they do not go on."""
        while len(self.lost) < len(self.read):
            self._poll()

    def close(self) -> None:
        self.client.close()

    def _poll(self) -> None:
        message = self.client.poll(DEADLINE_S)
        assert message is not None, f"nothing came: { ({key: len(found) for key, found in self.read.items()}) }"
        key, error = (message.topic(), message.partition()), message.error()
        if error is None:
            assert key not in self.lost
            found = self.read[key]
            assert message.offset() == len(found), f"{key}: {message.offset()} came after {len(found) - 1}"
            found[message.offset()] = message.value(), message.leader_epoch()
        elif error.code() in IS_LOSS:
            self.lost[key] = error.str()
        else:
            assert error.retriable() or error.code() == confluent_kafka.KafkaError._TRANSPORT, error


async def until(true: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while True:
            if await true():
                return
            await asyncio.sleep(ASKED_EVERY_S)


def _created(future: Any) -> None:
    """Wait until the topic is there: librdkafka asks again where an answer is lost, and may hear of its own doing."""
    try:
        future.result(DEADLINE_S)
    except confluent_kafka.KafkaException as error:
        if error.args[0].code() != confluent_kafka.KafkaError.TOPIC_ALREADY_EXISTS:
            raise


class Story:
    """One round. See the module."""

    def __init__(self, cluster: BrokerCluster, *, back: int) -> None:
        """`back`: whose disk turns up again; the other one comes back with an empty one."""
        self._cluster = cluster
        self._back = back
        self._sent: dict[Key, list[bytes]] = {key: [] for key in ALL}
        self._bootstrap = ",".join(str(cluster.address(broker)) for broker in LIVING)
        self._numbered: dict[Key, Numbered] = {}
        self._ends: dict[Key, int] = {}
        """Where durable history of the lost ones ends; exclusive."""
        self._before: dict[Key, MetadataResponsePartition] = {}
        """The known state of the partitions while their brokers lived."""

    # requests

    async def _command(self, *words: str) -> tuple[int, list[dict[str, Any]]]:
        command = [sys.executable, "-m", "headrace.cli.main", *words, "--json", "--bootstrap", self._bootstrap]
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        out, err = await process.communicate()
        assert process.returncode in (0, 1), err.decode()
        told = [json.loads(line) for line in out.splitlines()]
        assert told or words == ("doctor",), err.decode()
        return process.returncode, told

    async def _told(self, through: int = LIVING[0]) -> dict[Key, MetadataResponsePartition]:
        async with RawClient(str(self._cluster.address(through))) as client:
            answer = await client.ask(12, MetadataRequest(topics=None))
        topics = [topic for topic in answer.topics if topic.name in PLACES]
        return {(topic.name, part.partition_index): part for topic in topics for part in topic.partitions}

    async def _until_led(self, *keys: Key) -> None:
        """Wait until the asked broker knows that these are led."""

        async def is_led() -> bool:
            told = await self._told()
            return all(key in told and told[key].leader_id != -1 for key in keys)

        await until(is_led)

    async def _leader(self, key: Key) -> str:
        """Its leader, once there is one."""
        found: list[int] = []

        async def is_led() -> bool:
            told = await self._told()
            if key in told and told[key].leader_id != -1:
                found.append(told[key].leader_id)
            return bool(found)

        await until(is_led)
        return str(self._cluster.address(found[0]))

    async def _frontiers(self) -> dict[Key, int]:
        """The frontiers of partitions that have one; exclusive."""
        async with DurableLink(self._cluster.address(LIVING[0])) as link:
            return {
                (topic["topic"], part["partition"]): part["end_offset"] + 1
                async for topic in link.topics()
                for part in topic["partitions"]
            }

    async def _until_exported(self, ends: Mapping[Key, int]) -> None:
        async def is_exported() -> bool:
            found = await self._frontiers()
            return all(found.get(key, 0) >= end for key, end in ends.items())

        await until(is_exported)

    async def _configure(self, segment_bytes: int) -> None:
        entry = ConfigEntry("segment.bytes", str(segment_bytes), incremental_operation=AlterConfigOpType.SET)
        wanted = [ConfigResource("TOPIC", topic, incremental_configs=[entry]) for topic in PLACES]
        admin = AdminClient({"bootstrap.servers": self._bootstrap, **QUIET})
        for future in admin.incremental_alter_configs(wanted).values():
            await asyncio.to_thread(future.result, DEADLINE_S)

    # faults

    async def begin(self) -> None:
        """All is there, and some of it is exported; then what comes is not."""
        cluster = self._cluster
        await cluster.start(*cluster.nodes)
        await cluster.start(cluster.add())
        everybody = cluster.bootstrap
        admin = AdminClient({"bootstrap.servers": everybody, **QUIET})
        config = {"segment.bytes": str(SEGMENT_BYTES), "retention.ms": "-1", "min.insync.replicas": "1"}
        made = [
            NewTopic(name, len(places), replica_assignment=places, config=config) for name, places in PLACES.items()
        ]
        for future in admin.create_topics(made).values():
            await asyncio.to_thread(_created, future)
        await self._until_led(*ALL)
        for key in LOST:
            await self._begin_numbered(key)
        self._sender = Sender(everybody, "first", self._sent)
        await asyncio.to_thread(self._sender.send, EXPORTED, *ALL)
        await self._until_exported(dict.fromkeys(LOST, NUMBERED + EXPORTED // 2))
        await self._configure(ENDLESS)
        await cluster.kill(GONE[0])  # so that a later leader epoch has what is lost
        await cluster.start(GONE[0])
        await self._until_led(*ALL)

    async def _begin_numbered(self, key: Key) -> None:
        async with RawClient(self._bootstrap.partition(",")[0]) as client:
            given = await client.ask(4, InitProducerIdRequest(transactional_id=None))
        assert given.error_code == 0
        self._numbered[key] = numbered = Numbered(key, given.producer_id)
        for number in range(NUMBERED):
            await self._send_numbered(numbered, number)

    async def _send_numbered(self, numbered: Numbered, number: int) -> None:
        assert await self._told_of(numbered, number) is ErrorCode.NONE
        self._sent[numbered.key].append(numbered.value(number))

    async def _told_of(self, numbered: Numbered, number: int, by: str = "") -> ErrorCode:
        """Of what a client does not send again by itself."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                code = error_of(await numbered.send(await self._leader(numbered.key), number, by))
                if not code.retriable:
                    return code
                await asyncio.sleep(ASKED_EVERY_S)

    async def write_beyond(self) -> None:
        """More is acknowledged, and read, and positions are committed behind it."""
        await asyncio.to_thread(self._sender.send, BEYOND, *ALL)
        for numbered in self._numbered.values():
            await self._send_numbered(numbered, NUMBERED)
            await self._send_numbered(numbered, NUMBERED + 1)
        self._positions = {key: len(self._sent[key]) for key in LOST}
        self._follower = Reader(self._cluster.bootstrap, *LOST)
        assert await asyncio.to_thread(self._follower.read_to, self._positions) == {k: self._sent[k] for k in LOST}
        await asyncio.to_thread(self._commit)
        self._before = await self._told()

    def _commit(self) -> None:
        client = confluent_kafka.Consumer({"bootstrap.servers": self._cluster.bootstrap, "group.id": GROUP, **QUIET})
        offsets = [
            confluent_kafka.TopicPartition(*key, end, leader_epoch=self._epoch_committed(key))
            for key, end in self._positions.items()
        ]
        client.commit(offsets=offsets, asynchronous=False)
        client.close()

    def _epoch_committed(self, key: Key) -> int:
        """Of the last record before the group's position; its partition may have a later one."""
        return self._follower.read[key][self._positions[key] - 1][1]

    async def lose(self) -> None:
        """Both brokers are gone with their disks, while a producer sends."""
        await asyncio.to_thread(self._sender.begin, UNDER_WAY, *LOST)
        await self._cluster.kill(*GONE)
        for broker in GONE:
            data = self._cluster.nodes[broker].data
            data.rename(self._found_again) if broker == self._back else shutil.rmtree(data)

        async def nobody_leads() -> bool:
            told = await self._told()
            return all(told[key].leader_id == -1 for key in LOST)

        await until(nobody_leads)
        self._sender.hear()
        _, listed = await self._command("durable", "list")
        self._ends = {(one["topic"], one["partition"]): one["end_offset"] + 1 for one in listed}
        for key in LOST:
            beyond = self._numbered[key].offsets[NUMBERED]
            assert NUMBERED + EXPORTED // 2 <= self._ends[key] <= beyond, "some of it is durable, and some is not"
            assert self._sender.told[key].keys() >= {self._ends[key]}

    @property
    def _found_again(self) -> Path:
        return self._cluster.nodes[self._back].data.with_suffix(".found")

    async def recover(self) -> None:
        """As an operator does, who is told what is lost before it is given up; a broker that is to go on dies."""
        offline = await self._offline()
        assert offline.keys() == {f"{topic}-{number}" for topic, number in LOST}
        for topic, number in LOST:
            todo = offline[f"{topic}-{number}"]
            assert f"'headrace durable recover {topic} --partition {number}'" in todo
            assert f"behind offset {self._ends[topic, number] - 1}, the last durable one" in todo
        before = await self._told()
        for topic in PLACES:
            code, told = await self._command("durable", "recover", topic)
            assert code == 1
            self._check_told(topic, told, done=False)
        assert await self._told() == before, "nothing is done before somebody accepts the loss"
        for topic, to in (("alone", ()), ("paired", ("--to", str(LIVING[1])))):
            code, told = await self._command("durable", "recover", topic, "--accept-loss", *to)
            assert code == 0
            self._check_told(topic, told, done=True)
        await self._cluster.kill(LIVING[1])
        await self._cluster.start(LIVING[1])
        await self._until_led(*ALL)
        assert not await self._offline()
        now = await self._told()
        assert now[KEPT] == before[KEPT]
        for key in LOST:
            assert now[key].leader_id in LIVING
            assert now[key].leader_epoch > self._before[key].leader_epoch

    def _check_told(self, topic: str, told: Iterable[Mapping[str, Any]], *, done: bool) -> None:
        found = {(one["topic"], one["partition"]): one for one in told}
        assert found.keys() == {key for key in LOST if key[0] == topic}
        for key, one in found.items():
            assert (one["refusal"], one["warning"], one["done"]) == ("", "", done)
            assert one["end_offset"] == self._ends[key] - 1
            assert one["replicas"] == PLACES[topic][key[1]]
            assert one["target"] in LIVING

    async def _offline(self) -> dict[str, str]:
        """The advice of `headrace doctor`."""
        _, found = await self._command("doctor")
        return {one["subject"]: one["todo"] for one in found if one["kind"] in ("offline", "waits for history")}

    async def go_on(self) -> None:
        """History alone is there, as it was sent; and is gone on from as if nothing had been above it."""
        for key in LOST:
            del self._sent[key][self._ends[key] :]
        await self._check_all("once it goes on")
        await self._check_group()
        await self._check_group_is_told()
        await self._check_old_producer()
        await self._configure(SEGMENT_BYTES)
        for key in LOST:
            await self._go_on_numbered(self._numbered[key])
        after = Sender(self._bootstrap, "second", self._sent)
        await asyncio.to_thread(after.send, AFTER, *ALL)
        await asyncio.to_thread(after.close)
        for key in LOST:
            assert min(after.told[key]) == self._ends[key] + 2, "behind the two of who numbers its own"
            assert len(self._sent[key]) > self._positions[key], "it is further again than readers were"
        await self._check_all("once it has gone on")
        await self._check_group()
        await asyncio.to_thread(self._follower.read_until_told)
        for key, found in self._follower.read.items():
            epochs = {epoch for _, epoch in found.values()}
            assert max(epochs) <= self._before[key].leader_epoch, "it was shown nothing of the other branch"
        self._follower.close()

    async def _check_epochs(self, key: Key, *, epoch: int, beyond: ErrorCode) -> None:
        """Lost records can be told from new ones by a client that asks for the end of its leader epoch (KIP-320).
        `beyond` is the error of a fetch that starts at the group's position and names no epoch."""
        asked = OffsetForLeaderPartition(key[1], -1, epoch)
        wanted = FetchPartition(key[1], epoch, self._positions[key], partition_max_bytes=1 << 20)
        async with RawClient(await self._leader(key)) as client:
            topics = (OffsetForLeaderTopic(key[0], (asked,)),)
            (ended,) = (await client.ask(4, OffsetForLeaderEpochRequest(-1, topics))).topics[0].partitions
            assert (ended.error_code, ended.end_offset) == (0, self._ends[key])
            assert ended.leader_epoch <= epoch
            for named, error in ((epoch, ErrorCode.FENCED_LEADER_EPOCH), (-1, beyond)):
                topic = FetchTopic(key[0], partitions=(wanted._replace(current_leader_epoch=named),))
                fetched = await client.ask(11, FetchRequest(max_wait_ms=0, min_bytes=1, topics=(topic,)))
                assert fetched.responses[0].partitions[0].error_code == error

    async def _check_group(self) -> None:
        """It has the epochs of what it read last, by which it sees what it has lost, also once others have its offsets.
        (librdkafka does not look when it begins at a committed offset; while it reads it does.)"""
        client: Any = confluent_kafka.Consumer({"bootstrap.servers": self._bootstrap, "group.id": GROUP, **QUIET})
        wanted = [confluent_kafka.TopicPartition(*key) for key in LOST]
        found = {
            (one.topic, one.partition): one for one in await asyncio.to_thread(client.committed, wanted, DEADLINE_S)
        }
        client.close()
        for key in LOST:
            assert found[key].offset == self._positions[key]
            assert found[key].leader_epoch == self._epoch_committed(key)
            there = len(self._sent[key])
            beyond = ErrorCode.NONE if found[key].offset <= there else ErrorCode.OFFSET_OUT_OF_RANGE
            await self._check_epochs(key, epoch=found[key].leader_epoch, beyond=beyond)

    async def _check_group_is_told(self) -> None:
        """A reader that was further than history is told so, and gets nothing."""
        reader = Reader(self._bootstrap, *LOST, start=confluent_kafka.OFFSET_STORED, group=GROUP)
        await asyncio.to_thread(reader.read_until_told)
        assert not any(reader.read.values())
        reader.close()

    async def _check_old_producer(self) -> None:
        """Lost records, which the producer believes to be there, lie between the log and its next batch: it is
        refused."""
        told = {key: self._sender.told[key].keys() for key in LOST}
        before = {key: set(offsets) for key, offsets in told.items()}
        await asyncio.to_thread(self._sender.check_ended, LOST[0])
        assert not {key: more for key in LOST if (more := told[key] - before[key])}, "taken after all"

    async def _go_on_numbered(self, numbered: Numbered) -> None:
        key, end, last = numbered.key, self._ends[numbered.key], NUMBERED - 1
        known = numbered.offsets[last]
        assert await self._told_of(numbered, last) is ErrorCode.NONE
        assert numbered.offsets[last] == known, "it is in history, and not written again"
        assert await self._told_of(numbered, NUMBERED + 1) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        for number in (NUMBERED, NUMBERED + 1):
            assert await self._told_of(numbered, number, "b") is ErrorCode.NONE
            self._sent[key].append(numbered.value(number, "b"))
        assert [numbered.offsets[number] for number in (NUMBERED, NUMBERED + 1)] == [end, end + 1]

    async def _check_all(self, when: str) -> None:
        """Everybody's records, at their offsets, once, and nothing else."""
        ends = {key: len(values) for key, values in self._sent.items()}
        now = await self._told()
        reader = Reader(self._bootstrap, *ALL)
        found = await asyncio.to_thread(reader.read_to, ends)
        for key in ALL:
            differing = [at for at, value in enumerate(self._sent[key]) if found[key][at] != value]
            assert not differing, f"{when} {key} holds {found[key][differing[0]]!r} at {differing[0]}"
            assert await asyncio.to_thread(ends_of, reader.client, *key) == (0, ends[key]), when
        for key in LOST:
            epochs, end, old = [epoch for _, epoch in reader.read[key].values()], self._ends[key], self._before[key]
            assert epochs == sorted(epochs)
            assert max(epochs[:end]) <= old.leader_epoch
            assert all(old.leader_epoch < epoch <= now[key].leader_epoch for epoch in epochs[end:])
        reader.close()

    async def come_back(self) -> None:
        """One with what was lost, the other with nothing."""
        cluster = self._cluster
        self._found_again.rename(cluster.nodes[self._back].data)
        await cluster.start(*GONE)
        await self._check_all("with the old disk")
        self._check_set_aside()

        async def all_is_well() -> bool:
            return (await self._command("doctor"))[0] == 0

        await until(all_is_well)
        assert len((await self._told())["paired", 0].replica_nodes) == 2, "it has as many as it shall have, again"
        for key in LOST:
            if self._back in PLACES[key[0]][key[1]]:
                await self._give_back(key)
        await self._check_all("where it was at first")
        self._check_set_aside()
        await self._until_exported({key: len(self._sent[key]) - AFTER // 2 for key in LOST})
        code, verdicts = await self._command("durable", "verify")
        assert (code, [one for one in verdicts if one["problems"]]) == (0, [])

    async def _give_back(self, key: Key) -> None:
        """Whose disk it was leads it again."""
        topic, number = key
        operator = Operator(self._cluster, topic)
        others = LIVING[: len(PLACES[topic][number]) - 1]
        assert await operator.move(number, self._back, *others) is ErrorCode.NONE
        await operator.until_over()

        async def leads() -> bool:
            return (await self._told())[key].leader_id == self._back

        await until(leads)

    async def end(self) -> None:
        await asyncio.to_thread(self._sender.close)

    def _check_set_aside(self) -> None:
        """With all that was acknowledged and is lost."""
        logs = self._cluster.nodes[self._back].data / "logs"
        for topic, number in LOST:
            if self._back in PLACES[topic][number]:
                (stray,) = logs.glob(f"{topic}-{number}.*{STRAY}")
                held = b"".join(path.read_bytes() for path in stray.glob("*.log"))
                end = self._ends[topic, number]
                lost = [value for offset, value in self._sender.told[topic, number].items() if offset >= end]
                assert len(lost) >= BEYOND
                assert not [value for value in lost if value not in held]


def test_what_lost_its_brokers_goes_on_behind_history_and_no_reader_is_misled(tmp_path: Path, few_rounds: int) -> None:
    async def once(directory: Path, back: int) -> None:
        directory.mkdir()
        more = ("--durable", f"file://{directory / 'store'}", "--config", "offsets.topic.num.partitions=1")
        async with BrokerCluster(directory, VOTERS, *OPTIONS, *more) as cluster:
            story = Story(cluster, back=back)
            await story.begin()
            await story.write_beyond()
            await story.lose()
            await story.recover()
            await story.go_on()
            await story.come_back()
            await story.end()

    async def work() -> None:
        for number in range(few_rounds):
            await once(tmp_path / str(number), GONE[number % len(GONE)])

    loops.run(work())
