"""Several brokers are one cluster: any of them answers and takes any request, and each knows what it was asked for."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from headrace.base.addresses import Address
from headrace.base.errors import UsageError
from headrace.base.ids import NO_LEADER, BrokerId
from headrace.broker.cluster.driver import NotController
from headrace.broker.replication.isr import IsrKeeper
from headrace.controller.asks.brokers import ChangeVoter
from headrace.controller.voters import withhold_vote
from headrace.metadata.image import MetadataImage
from headrace.net.client.admin import Admin
from headrace.net.client.cluster import Cluster as Client
from headrace.net.client.errors import ClientError
from headrace.net.client.members import Members, QuorumView
from headrace.wire.errors import ErrorCode
from headrace.wire.messages.alter_configs import AlterableConfig, AlterConfigsRequest, AlterConfigsResource
from headrace.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from headrace.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from headrace.wire.messages.describe_cluster import DescribeClusterRequest
from headrace.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from headrace.wire.messages.envelope import EnvelopeRequest
from headrace.wire.messages.find_coordinator import FindCoordinatorRequest
from headrace.wire.messages.init_producer_id import InitProducerIdRequest
from headrace.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests import loops
from tests.broker.clusters import BY_HAND, Cluster, running
from tests.broker.data_path import batch, produce
from tests.broker.group_broker import RawClient, until
from tests.broker.replicas import release_later

NOBODY = Address("127.0.0.1", 9)
"""The discard port: refused."""


def run(work: Coroutine[Any, Any, None]) -> None:
    loops.run(work)


async def quorum(cluster: Cluster, broker: int) -> QuorumView:
    async with Client(str(cluster.address(broker))) as client:
        return await Members(client).quorum()


def votes(view: QuorumView) -> dict[int, bool]:
    return {member.id: member.voter for member in view.members}


def test_any_broker_takes_a_change_and_has_it_when_it_answers(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, 3) as cluster:
            for broker in (1, 2, 3):
                async with RawClient(str(cluster.address(broker))) as client:
                    await _create_describe_alter_and_delete(client, f"topic-{broker}")
            image = await cluster.agree()
            assert all(cluster.image(broker) == image for broker in (1, 2, 3))
            assert image.topic_names() == ["kept-topic-1", "kept-topic-2", "kept-topic-3"]
            assert dict(image.leaderships) == {1: 1, 2: 1, 3: 1}

    run(work())


async def _create_describe_alter_and_delete(client: RawClient, name: str) -> None:
    for topic in (name, f"kept-{name}"):
        wanted = CreatableTopic(name=topic, num_partitions=1, replication_factor=1)
        (made,) = (await client.ask(7, CreateTopicsRequest(topics=(wanted,), timeout_ms=120_000))).topics
        assert (made.error_code, made.num_partitions) == (0, 1)
        assert any(config.name == "retention.ms" for config in made.configs)
        asked = MetadataRequest(topics=(MetadataRequestTopic(name=topic),), allow_auto_topic_creation=False)
        (found,) = (await client.ask(12, asked)).topics
        assert (found.error_code, found.topic_id) == (0, made.topic_id)
        resource = AlterConfigsResource(2, topic, (AlterableConfig("retention.ms", "5"),))
        (altered,) = (await client.ask(2, AlterConfigsRequest(resources=(resource,)))).responses
        assert altered.error_code == 0
    (gone,) = (await client.ask(6, DeleteTopicsRequest(topics=(DeleteTopicState(name=name),)))).responses
    assert gone.error_code == 0
    asked = MetadataRequest(topics=(MetadataRequestTopic(name=name),), allow_auto_topic_creation=False)
    (found,) = (await client.ask(12, asked)).topics
    assert found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_every_broker_answers_every_question_about_the_cluster(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, 3) as cluster:
            await cluster.agree()
            told = set()
            producers: list[int] = []
            for broker in (1, 2, 3):
                view = await quorum(cluster, broker)
                assert votes(view) == {1: True, 2: True, 3: True}
                async with RawClient(str(cluster.address(broker))) as client:
                    described = await client.ask(2, DescribeClusterRequest())
                    metadata = await client.ask(12, MetadataRequest(topics=()))
                    producers.append((await client.ask(4, InitProducerIdRequest(None))).producer_id)
                told.add((view.leader, described.controller_id, metadata.controller_id, described.cluster_id))
                assert [one.broker_id for one in described.brokers] == [1, 2, 3]
            ((leader, described_controller, controller, _),) = told
            assert leader == described_controller == controller
            assert len(set(producers)) == 3, "each has a block of its own"

    run(work())


def test_a_broker_joins_by_any_address_and_learners_are_promoted_until_there_are_three(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, 1) as cluster:
            async with Client(cluster.bootstrap) as client:
                await Admin(client).create_topic("before")
            await cluster.start(2, join=(NOBODY, cluster.address(1)))
            assert cluster.image(2).contains("before")
            await cluster.start(3, join=(cluster.address(2),))
            await voters_are(cluster, {1, 2, 3})
            await cluster.start(4, join=(cluster.address(3), cluster.address(1)))
            await grow(cluster)
            for broker in (1, 2, 3, 4):
                assert votes(await quorum(cluster, broker)) == {1: True, 2: True, 3: True, 4: False}
            assert cluster.image(4).cluster_id == cluster.image(1).cluster_id

    run(work())


async def voters_are(cluster: Cluster, wanted: set[int]) -> None:
    """Wait until these have a vote."""

    def are() -> bool:
        return all(
            {peer.node for peer in running.parts.metadata.membership.voters} == wanted
            for running in cluster.brokers.values()
        )

    await until(are)


async def grow(cluster: Cluster) -> None:
    """As the controller does now and then."""
    await (await cluster.decider()).cluster.controller.voters.grow()


def test_a_replaced_broker_restores_the_number_of_voters(tmp_path: Path) -> None:
    """Broker after broker, until none of the first three is left; once there are three, a fourth has to wait."""

    async def work() -> None:
        async with running(tmp_path, 3) as cluster:
            for gone, new in ((1, 4), (2, 5), (3, 6)):
                await cluster.stop(gone)
                async with Client(cluster.bootstrap) as client:
                    await Members(client).remove(gone)
                    view = await Members(client).quorum()
                    assert sum(votes(view).values()) == 2
                    assert "another broker that joins will be promoted" in view.outlook
                await cluster.start(new, join=tuple(cluster.address(one) for one in cluster.brokers))
                await voters_are(cluster, set(cluster.brokers))
                async with Client(cluster.bootstrap) as client:
                    assert (await Members(client).quorum()).outlook == ""

    run(work())


def test_who_was_demoted_by_hand_is_not_promoted_until_somebody_asks_for_it(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, 3) as cluster, Client(cluster.bootstrap) as client:
            members = Members(client)
            await members.demote(2)
            for _ in range(3):
                await grow(cluster)
            view = await members.quorum()
            assert votes(view) == {1: True, 3: True, 2: False}
            assert "broker 2 was demoted, and only 'headrace broker promote 2'" in view.outlook
            await cluster.start(4, join=(cluster.address(1),))
            await voters_are(cluster, {1, 3, 4})
            assert (await members.quorum()).outlook == ""
            await cluster.stop(4)
            async with Client(cluster.bootstrap) as other:
                members = Members(other)
                await members.remove(4)
                await grow(cluster)
                assert votes(await members.quorum()) == {1: True, 3: True, 2: False}
                await members.promote(2)
                assert votes(await members.quorum()) == {1: True, 2: True, 3: True}
                assert not (await cluster.agree()).withheld

    run(work())


def test_a_demotion_that_was_refused_is_not_remembered(tmp_path: Path) -> None:
    """The last voter stays one; should it be replaced by itself one day, it is promoted as any other."""

    async def work() -> None:
        async with running(tmp_path, 1) as cluster:
            async with Client(cluster.bootstrap) as client:
                with pytest.raises(ClientError, match="without its last voter"):
                    await Members(client).demote(1)
            assert not cluster.image(1).withheld

    run(work())


def test_a_note_of_a_demotion_that_was_never_made_goes_again(tmp_path: Path) -> None:
    """Its controller died in between."""

    async def work() -> None:
        async with running(tmp_path, 3) as cluster:
            metadata = (await cluster.decider()).metadata
            await metadata.submit(partial(withhold_vote, broker_id=BrokerId(2), withheld=True))
            await grow(cluster)
            assert not metadata.image.withheld

    run(work())


def test_a_promotion_that_was_done_is_told_as_done_though_its_controller_is_deposed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The note of an earlier demotion is removed by the next controller. Asked again, it would say that broker 2 is a
    voter already."""

    async def work() -> None:
        async with running(tmp_path, 3) as cluster:
            async with Client(cluster.bootstrap) as client:
                await Members(client).demote(2)
            parts = await cluster.decider()
            submit = parts.metadata.submit

            async def deposed(decide: Any) -> Any:
                raise NotController(None)

            monkeypatch.setattr(parts.metadata, "submit", deposed)
            asked, controller = (
                ChangeVoter(broker_id=BrokerId(2), directory_id=None, voter=True),
                parts.cluster.controller,
            )
            while (answer := await controller.answer(asked)) is not None and "caught up" in answer.message:
                await parts.metadata.confirmed()
            assert answer is None
            monkeypatch.setattr(parts.metadata, "submit", submit)
            await grow(cluster)
            assert not parts.metadata.image.withheld

    run(work())


def test_the_quorum_is_changed_by_hand(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, 3) as cluster:
            await cluster.start(4, join=(cluster.address(1),))
            async with Client(cluster.bootstrap) as client:
                members = Members(client)
                await members.promote(4)
                await members.demote(2)
                assert votes(await members.quorum()) == {1: True, 3: True, 4: True, 2: False}
                with pytest.raises(ClientError, match="is no voter already"):
                    await members.demote(2)
                with pytest.raises(ClientError, match="no member of the quorum"):
                    await members.promote(9)
                with pytest.raises(ClientError, match="stop it before"):
                    await members.remove(2)
            await cluster.stop(2)
            async with Client(cluster.bootstrap) as client:  # that has no connection to broker 2
                members = Members(client)
                await members.remove(2)
                assert [broker.id for broker in await members.brokers()] == [1, 3, 4]
                assert votes(await members.quorum()) == {1: True, 3: True, 4: True}
                with pytest.raises(ClientError, match="is not registered"):
                    await members.broker(2)

    run(work())


def test_a_wiped_voter_comes_back_as_a_learner_and_is_promoted_again(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, 3) as cluster:
            before = {member.id: member.directory_id for member in (await quorum(cluster, 1)).members}
            await cluster.stop(2)
            cluster.wipe(2)
            await cluster.start(2, join=(cluster.address(1), cluster.address(3)))
            learnt = {member.id: member.directory_id for member in (await quorum(cluster, 2)).members}
            assert learnt[2] != before[2]
            await voters_are(cluster, {1, 2, 3})

    run(work())


def test_a_voter_that_has_lost_its_commit_log_alone_does_not_vote_again(tmp_path: Path) -> None:
    """Under the directory's id it would be taken for the voter that remembers."""

    async def work() -> None:
        async with running(tmp_path, 1) as cluster:
            await cluster.stop(1)
            shutil.rmtree(cluster.data(1) / "metadata")
            with pytest.raises(UsageError, match="start this one with an empty data directory and --join"):
                await cluster.start(1)

    run(work())


def test_a_directory_of_another_cluster_is_refused_with_one_sentence(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path / "a", 1) as one, running(tmp_path / "b", 1) as other:
            await one.start(2, join=(one.address(1),))
            await one.stop(2)
            stranger = Cluster(tmp_path / "a")
            with pytest.raises(UsageError, match=r"belongs to cluster .*, but .* to .*: choose an empty directory"):
                await stranger.start(2, join=(other.address(1),))

    run(work())


def test_a_stop_hands_over_what_others_can_lead(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, 3) as cluster:
            async with Client(cluster.bootstrap) as client:
                await Admin(client).create_topic("t", partitions=3, replication_factor=3)
            await cluster.agree()
            await cluster.stop(2)
            left = cluster.image(1)
            assert left.brokers[BrokerId(2)].fenced
            assert {part.leader for _, part in left.all_partitions()} <= {1, 3}
            assert {part.isr for _, part in left.all_partitions()} == {(1, 3), (3, 1)} or {
                tuple(sorted(part.isr)) for _, part in left.all_partitions()
            } == {(1, 3)}
            await cluster.start(2)
            await cluster.until(1, lambda image: not image.brokers[BrokerId(2)].fenced)

    run(work())


def test_a_stop_waits_a_moment_for_followers_that_come_to_be_in_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So brokers can be restarted one after the other as soon as each is ready, and every partition has a leader
    meanwhile."""
    ask, growing = IsrKeeper._ask, asyncio.Event()

    async def when_growing(self: IsrKeeper) -> None:
        await growing.wait()
        await ask(self)

    monkeypatch.setattr(IsrKeeper, "_ask", when_growing)

    async def work() -> None:
        async with running(tmp_path, 3) as cluster:
            async with Client(cluster.bootstrap) as client:
                await Admin(client).create_topic("t", partitions=1, replication_factor=3)
            (partition,) = [part for _, part in (await cluster.agree()).all_partitions()]
            leader, *others = partition.replicas
            for other in others:
                await cluster.stop(other)
                await cluster.start(other)
            leaders = set[int]()
            cluster.brokers[others[0]].observe(lambda delta: leaders.update(led(delta.after)))
            with capture_logs() as told:
                stopping = asyncio.ensure_future(cluster.stop(leader))
                await until(lambda: any(line["event"].startswith("waits for followers") for line in told))
                assert not stopping.done()
                growing.set()
                await stopping
            await cluster.until(others[0], lambda image: led(image) != {leader})
            assert NO_LEADER not in leaders
            assert not any(line["event"].startswith("stops while nobody") for line in told)

    run(work())


def led(image: MetadataImage) -> set[int]:
    return {part.leader for _, part in image.all_partitions()}


def test_who_is_no_broker_is_closed_and_a_stranger_is_refused(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, 1) as cluster:
            async with RawClient(cluster.bootstrap) as client:
                with pytest.raises(asyncio.IncompleteReadError):
                    await client.ask(0, EnvelopeRequest(request_data=b"{}"))
            async with RawClient(cluster.bootstrap) as client:
                stranger = EnvelopeRequest(request_data=b'{"cluster":"x","ask":"RemoveBroker","broker_id":1}')
                answer = await client.ask(0, stranger)
                assert b"name addresses of its own cluster" in answer.response_data

    run(work())


def test_what_three_replicas_mean_is_told_as_it_holds(tmp_path: Path) -> None:
    """min.insync.replicas by default, when it is made and when it is described; also of the offsets topic."""
    configs = {"default.replication.factor": "3", "offsets.topic.replication.factor": "3"}

    async def work() -> None:
        async with running(tmp_path, 3, configs) as cluster, RawClient(str(cluster.address(1))) as client:
            for name, factor, told in (("three", -1, "2"), ("two", 2, "1")):
                wanted = CreatableTopic(name=name, num_partitions=-1, replication_factor=factor)
                (made,) = (await client.ask(7, CreateTopicsRequest(topics=(wanted,), timeout_ms=120_000))).topics
                assert (made.error_code, made.replication_factor) == (0, 3 if factor == -1 else factor)
                (value,) = [config.value for config in made.configs if config.name == "min.insync.replicas"]
                resource = DescribeConfigsResource(2, name, ("min.insync.replicas",))
                (found,) = (await client.ask(4, DescribeConfigsRequest(resources=(resource,)))).results
                (config,) = found.configs
                assert (value, config.value, config.config_source) == (told, told, 5), "the table's default"
            await client.ask(4, FindCoordinatorRequest(coordinator_keys=("g",)))
            offsets = cluster.image(1).topic("__consumer_offsets")
            assert offsets is not None
            assert offsets.replication_factor == 3

    run(work())


def test_a_broker_that_leads_no_more_says_so_and_leads_again_with_all_that_it_had(tmp_path: Path) -> None:
    async def work() -> None:
        async with running(tmp_path, 3, BY_HAND) as cluster:
            async with Client(cluster.bootstrap) as client:
                await Admin(client).create_topic("gone", partitions=3)
                await Admin(client).create_topic("t", partitions=3)
            topic = (await cluster.agree()).topic("t")
            assert topic is not None
            (led,) = [part for part in topic.partitions if part.leader == 2]
            async with RawClient(str(cluster.address(2))) as leader:
                assert (await produce(leader, "t", batch(b"a", b"b"), partition=led.index)).error_code == 0
                assert await cluster.fence(2) is None
                await cluster.agree()
                refused = await produce(leader, "t", batch(b"x"), partition=led.index)
                assert refused.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
                assert await cluster.unfence(2) is None
                await cluster.settled(2)
                closing = asyncio.Event()

                async def held_up(_: object) -> None:
                    await closing.wait()

                release_later(cluster, 2, held_up)
                async with RawClient(str(cluster.address(1))) as other:
                    request = DeleteTopicsRequest(topics=(DeleteTopicState(name="gone"),), timeout_ms=120_000)
                    assert (await other.ask(6, request)).responses[0].error_code == 0
                assert await cluster.fence(2) is None
                assert await cluster.unfence(2) is None
                await cluster.agree(is_carried_out=False)  # it is elected again while its log waits to be closed
                closing.set()
                await cluster.settled(2)
                again = await produce(leader, "t", batch(b"c"), partition=led.index)
                assert (again.error_code, again.base_offset) == (0, 2)
            after = cluster.image(2).partition_info("t", led.index)
            assert after is not None
            assert after.leader_epoch == led.leader_epoch + 4

    run(work())
