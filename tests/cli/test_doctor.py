"""`headrace doctor` on real brokers: each thing that may be wrong is made so, and told with what to do about it."""

from __future__ import annotations

import asyncio
import gc
import json
import re
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.addresses import Address
from headrace.base.ids import BrokerId, LeaderEpoch, PartitionIndex
from headrace.base.limits import DOCTOR_ASK_MS_MAX
from headrace.base.ports import Space
from headrace.cli.main import main
from headrace.controller.asks.brokers import Heartbeat
from headrace.net.client.cluster import Cluster
from headrace.net.client.members import Members
from headrace.net.client.replicas.reassignments import with_more_replicas
from headrace.net.client.view import PartitionView
from headrace.net.peer import copylink
from headrace.operations import diagnosis
from headrace.operations.diagnosis import PARTITIONS_NAMED_MAX
from headrace.operations.finding import Finding
from headrace.wire.ailments import State
from headrace.wire.apis import ApiKey
from tests import loops
from tests.broker.clusters import BY_HAND
from tests.broker.group_broker import until
from tests.broker.patience import findings, patient
from tests.broker.replication_world import ALL, World, replicating


def run(directory: Path, work: Callable[[World], Awaitable[None]], **configs: str) -> None:
    named = {key.replace("_", "."): value for key, value in configs.items()}
    lasting = {"broker.session.timeout.ms": "600000", "broker.heartbeat.interval.ms": "600000", **named}

    async def whole() -> None:
        async with replicating(directory, {**BY_HAND, **lasting}) as world:
            await work(world)

    with patient():
        loops.run(whole())


async def found(world: World, kind: str) -> list[Finding]:
    """The findings of this kind from a live broker."""
    return [finding for finding in await findings(world.cluster) if finding.kind == kind]


async def command(world: World, *words: str) -> int:
    return await asyncio.to_thread(main, [*words, "--bootstrap", world.cluster.bootstrap])


def commands_of(finding: Finding) -> list[list[str]]:
    """The arguments of each command that a finding names."""
    return [words.split() for words in re.findall(r"'headrace ([^']+)'", f"{finding.text} {finding.todo}")]


def told_lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines of a command. Brokers in this process log to the same output, with the time in front."""
    return [line for line in capsys.readouterr().out.splitlines() if not line[:2].isdigit()]


def others(broker: int) -> list[int]:
    return [each for each in ALL if each != broker]


def test_where_nothing_is_wrong_it_says_so_and_exits_with_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def work(world: World) -> None:
        await world.make("t", partitions=2)
        capsys.readouterr()
        assert await findings(world.cluster) == []
        assert await command(world, "doctor") == 0
        assert "nothing is wrong" in capsys.readouterr().out
        assert await command(world, "doctor", "--json") == 0

    run(tmp_path, work)


def test_a_quorum_that_bears_no_loss_is_told_of_before_it_is_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All live, and the next disk that is lost would end the cluster."""

    async def work(world: World) -> None:
        assert await command(world, "broker", "demote", "3") == 0
        (finding,) = await findings(world.cluster)
        assert (finding.kind, finding.subject, finding.is_wrong) == ("no loss borne", "the quorum", True)
        assert "2 voters (1, 2)" in finding.text
        assert "headrace broker promote 3" in finding.todo
        capsys.readouterr()
        assert await command(world, "quorum") == 0
        assert "2 voters: bears no loss; broker 3 was demoted" in capsys.readouterr().out
        assert await command(world, "broker", "promote", "3") == 0
        assert await findings(world.cluster) == []
        assert await command(world, "quorum") == 0
        assert "3 voters: bears the loss of 1 more\n" in capsys.readouterr().out

    run(tmp_path, work)


def test_a_broker_that_does_not_say_is_not_taken_for_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one whose advertised address is not reached from here."""

    async def work(world: World) -> None:
        real, away = copylink.open_link, world.cluster.address(2)

        async def reached(address: Address, *rest: Any, **more: Any) -> Any:
            if address == away:
                raise ConnectionRefusedError
            return await real(address, *rest, **more)

        monkeypatch.setattr("headrace.net.client.ailments.open_link", reached)
        (finding,) = await findings(world.cluster)
        assert (finding.kind, finding.subject, finding.is_wrong) == ("not asked", "broker 2", True)
        assert str(away) in finding.text
        assert await command(world, "doctor") == 1

    run(tmp_path, work)


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_one_who_goes_away_at_once_leaves_no_question_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session of the console may end while its doctor begins to ask."""

    async def work(world: World) -> None:
        listed = Members.brokers

        async def brokers(self: Members) -> Any:
            answer = await listed(self)
            asyncio.get_running_loop().call_soon(asking.cancel)
            return answer

        monkeypatch.setattr(Members, "brokers", brokers)
        asking = asyncio.create_task(diagnosis.findings(partial(Cluster, world.cluster.bootstrap)))
        with pytest.raises(asyncio.CancelledError):
            await asking
        gc.collect()

    run(tmp_path, work)


def test_a_partition_that_nobody_leads_is_told_with_who_has_its_records(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def work(world: World) -> None:
        await world.make("t", replicas=1)
        holder = world.leader("t")
        await world.fence(holder)
        (finding,) = await found(world, "offline")
        assert finding.subject == "t-0"
        assert f"start broker {holder} with its disk" in finding.todo
        assert "nobody else has a copy" in finding.todo
        assert commands_of(finding) == []
        assert await command(world, "topic", "elect", "t", "--partition", "0", "--unclean") == 1
        assert (await findings(world.cluster))[0] == finding, "the worst comes first"
        (down,) = await found(world, "broker down")
        assert "the only in-sync copy of 1 partitions" in down.todo
        assert await command(world, "broker", "remove", str(holder)) == 1
        capsys.readouterr()
        assert await command(world, "doctor", "--json") == 1
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
        assert {"kind": "offline", "subject": "t-0", "text": finding.text, "todo": finding.todo} in lines

    run(tmp_path, work)


def test_a_partition_with_too_few_in_sync_for_acks_all_is_told(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        await world.make("t", min_insync_replicas="3")
        away = others(world.leader("t"))[0]
        await world.fence(away)
        (finding,) = await found(world, "below min.insync.replicas")
        assert finding.text.startswith("2 of its replicas are in sync, acks=all needs 3")
        assert finding.todo == f"start broker {away}"
        assert await found(world, "out of sync") == []

    run(tmp_path, work)


def test_configs_of_all_topics_that_ail_are_asked_for_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other, thousands would take longer than a doctor may: nothing would be told of partitions."""

    async def work(world: World) -> None:
        await world.make("t", min_insync_replicas="3")
        await world.make("u")
        await world.fence(others(world.leader("t"))[0])
        asked, real = list[int](), Cluster.ask_any

        async def ask_any(self: Cluster, key: ApiKey, message: Any, **options: Any) -> Any:
            if key is ApiKey.DESCRIBE_CONFIGS:
                asked.append(len(message.resources))
            return await real(self, key, message, **options)

        monkeypatch.setattr(Cluster, "ask_any", ask_any)
        kinds = {each.subject: each.kind for each in await findings(world.cluster)}
        assert (kinds["t-0"], kinds["u-0"]) == ("below min.insync.replicas", "out of sync")
        assert asked == [2]

    run(tmp_path, work)


def test_a_broker_that_is_down_is_told_as_that_and_as_a_voter(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        await world.make("t")
        away = others(world.leader("t"))[0]
        await world.fence(away)
        (broker,) = await found(world, "broker down")
        assert broker.subject == f"broker {away}"
        assert "1 partitions have 2 of 3 replicas in sync" in broker.text
        assert f"headrace broker remove {away}" in broker.todo
        (voter,) = await found(world, "voter down")
        assert f"of the 3 voters of the quorum {away} is down: none more may go" in voter.text
        (partition,) = await found(world, "out of sync")
        assert (partition.subject, partition.todo) == ("t-0", f"start broker {away}")

    run(tmp_path, work)


def test_a_broker_that_lives_and_is_behind_is_waited_for(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        await world.make("t")
        leader = world.leader("t")
        behind = others(leader)[0]
        await world.fence(behind)
        await world.cluster.brokers[behind].parts.replication.copying.stop()
        followers = world.cluster.brokers[leader].parts.replication.followers
        await until(lambda: BrokerId(behind) not in followers.heard_at())  # its last words are heard: it copies no more
        await world.unfence(behind)
        (finding,) = await found(world, "out of sync")
        assert finding.text == f"broker {behind} is not in sync"
        assert finding.todo == f"wait until broker {behind} has caught up"
        assert await found(world, "broker down") == []

    run(tmp_path, work)


def test_of_very_many_partitions_some_are_named_and_the_rest_are_counted(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        await world.make("t", partitions=PARTITIONS_NAMED_MAX + 3, replicas=3)
        away = next(each for each in ALL if world.cluster.image(each).brokers[BrokerId(each)].id != world.leader("t"))
        await world.fence(away)
        told = await found(world, "out of sync")
        assert len(told) == PARTITIONS_NAMED_MAX + 1
        assert (told[-1].subject, told[-1].text) == ("t", "so are 3 more of its partitions")

    run(tmp_path, work)


def test_a_topic_made_while_fewer_brokers_lived_is_told_and_the_command_mends_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may be meant so: nothing is wrong."""

    async def work(world: World) -> None:
        await world.make("t", partitions=3, replicas=1)
        (finding,) = await findings(world.cluster)
        assert (finding.kind, finding.subject, finding.is_wrong) == ("few replicas", "t", False)
        assert finding.text == "3 of its partitions have fewer replicas (1) than the 3 that 3 brokers allow"
        capsys.readouterr()
        assert await command(world, "doctor") == 0
        out = capsys.readouterr().out
        assert "nothing is wrong" in out
        assert finding.text in out
        _, mending, _ = finding.todo.split("'")
        headrace, *words = mending.split()
        assert headrace == "headrace"
        assert await command(world, *words) == 0
        for index in range(3):
            await world.in_sync("t", 3, index)
        assert await findings(world.cluster) == []
        assert await command(world, *words) == 0
        assert "has as many replicas already" in capsys.readouterr().out

    run(tmp_path, work, default_replication_factor="3")


def test_brokers_may_be_named_to_hold_a_partition(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def work(world: World) -> None:
        await world.make("t", partitions=2, replicas=1)
        to = others(world.leader("t", 1))[0]
        assert await command(world, "topic", "reassign", "t", "--partition", "1", "--replicas", str(to)) == 0
        await world.cluster.until(to, lambda _: world.image("t", 1, broker=to).replicas == (to,))
        for wrong, told in (
            (("--partition", "7", "--replicas", "1"), "has no partition 7"),
            (("--replicas", "one"), "no list of broker ids"),
            (("--replicas", "99"), "t-0"),
            (("--replication-factor", "4"), "no partition can have 4 replicas"),
            ((), "either --replicas"),
        ):
            capsys.readouterr()
            assert await command(world, "topic", "reassign", "t", *wrong) != 0
            said = capsys.readouterr()
            assert told in said.out + said.err

    run(tmp_path, work)


brokers = st.integers(1, 6)


@given(
    st.lists(st.lists(brokers, min_size=1, max_size=3, unique=True), max_size=8), st.sets(brokers), st.integers(1, 4)
)
def test_a_plan_adds_live_brokers_and_moves_nobody(held: list[list[int]], live: set[int], factor: int) -> None:
    parts = [
        PartitionView(
            index=PartitionIndex(index),
            leader=BrokerId(replicas[0]),
            leader_epoch=LeaderEpoch(0),
            replicas=tuple(map(BrokerId, replicas)),
            isr=(),
            offline=(),
            error_code=0,
        )
        for index, replicas in enumerate(held)
    ]
    plan = with_more_replicas(parts, live, factor)
    for index, replicas in enumerate(held):
        possible = len(set(replicas) | live)
        wanted = plan.get(index, tuple(replicas))
        assert list(wanted[: len(replicas)]) == replicas
        assert len(wanted) == len(set(wanted)) == max(len(replicas), min(factor, possible))
        assert set(wanted) <= set(replicas) | live
    assert all(len(wanted) > len(held[index]) for index, wanted in plan.items())


def test_what_brokers_tell_of_themselves_is_told_and_goes_when_it_is_over(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        parts = world.cluster.brokers[2].parts
        parts.logs.room.stop()
        parts.condition.stop()
        parts.logs.room._space = lambda: Space(1000, 10)
        await parts.logs.room.look()
        await parts.condition.look()
        (finding,) = await findings(world.cluster)
        assert (finding.kind, finding.subject, finding.is_wrong) == ("disk full", "broker 2", True)
        assert "10 bytes left" in finding.text
        assert "free space" in finding.todo
        assert await command(world, "doctor") == 1
        parts.logs.room._space = lambda: Space(1000, 1000)
        await parts.logs.room.look()
        await parts.condition.look()
        assert await findings(world.cluster) == []

    run(tmp_path, work)


def test_what_a_broker_told_the_controller_is_known_where_it_is_not_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And its clock, which nobody sees but the controller."""

    async def work(world: World) -> None:
        controller = world.cluster.controller
        away = others(controller.metadata.quorum().leader.node)[0]  # type: ignore[union-attr]
        known = controller.metadata.image.brokers[BrokerId(away)]
        state = State(kind="journal given up", text="it writes no journal", todo="restart it")
        beat = Heartbeat(broker_id=known.id, broker_epoch=known.epoch, ready=True, states=(state,), clock_ms=1_000_000)
        monkeypatch.setattr(world.cluster.brokers[away].parts.membership, "_heartbeat", lambda **_: beat)
        assert await controller.cluster.controller.answer(beat) is True
        assert {each.kind for each in controller.cluster.controller.heard[known.id]} == {"journal given up", "clock"}
        kinds = [each.kind for each in await findings(world.cluster) if each.subject == f"broker {away}"]
        assert kinds == ["clock"], "it tells of itself that its journal is well"
        real, address = copylink.open_link, world.cluster.address(away)

        async def reached(to: Address, *rest: Any, **more: Any) -> Any:
            if to == address:
                raise ConnectionRefusedError
            return await real(to, *rest, **more)

        monkeypatch.setattr("headrace.net.client.ailments.open_link", reached)
        kinds = [each.kind for each in await findings(world.cluster) if each.subject == f"broker {away}"]
        assert kinds == ["clock", "journal given up", "not asked"]

    run(tmp_path, work)


def test_without_a_quorum_it_answers_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(world: World) -> None:
        monkeypatch.setattr(diagnosis, "DOCTOR_ASK_MS_MAX", DOCTOR_ASK_MS_MAX)  # the quorum's answer never comes
        await world.make("t")
        await world.stop(2, 3)
        found = await findings(world.cluster)
        assert found[0].kind == "no quorum"
        assert "'headrace quorum recover --data DIR --accept-loss'" in found[0].todo
        assert {"broker 2", "broker 3"} <= {each.subject for each in found}
        named = {words[0] for finding in found for words in commands_of(finding)}
        assert named == {"quorum"}, "nobody decides, so all else would be refused"
        assert await command(world, "doctor") == 1

    run(tmp_path, work)


def test_a_leader_that_lacks_records_is_elected_by_the_command_that_is_named(tmp_path: Path) -> None:
    """Of three copies one had all, and its broker is gone."""

    async def work(world: World) -> None:
        await world.make("t")
        last = world.leader("t")
        for broker in others(last):
            await world.fence(broker)
            await world.cluster.brokers[broker].parts.replication.copying.stop()
        await world.fence(last)
        for broker in others(last):
            await world.unfence(broker)
        (finding,) = await found(world, "offline")
        assert finding.text == f"it has no leader: of those that have all that was acknowledged ({last}) none can lead"
        (mending,) = commands_of(finding)
        assert mending == ["topic", "elect", "t", "--partition", "0", "--unclean"]
        assert await command(world, *mending) == 0
        assert await found(world, "offline") == []

    run(tmp_path, work)


def test_a_broker_that_is_down_is_one_line_with_all_that_comes_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It stands where the worst of that would stand. Partitions of other causes have lines of their own."""

    async def work(world: World) -> None:
        await world.make("t", partitions=2, min_insync_replicas="3")
        await world.make("u", partitions=3)
        away = others(world.leader("t"))[0]
        await world.fence(away)
        capsys.readouterr()
        assert await command(world, "doctor") == 1
        first, *rest = told_lines(capsys)
        assert first.startswith(f"broker {away}: it is down, or not ready")
        assert "5 partitions have 2 of 3 replicas in sync; 2 of these take no writes at acks=all" in first
        assert "none more may go" in first
        assert first.endswith(f"start it, or 'headrace broker remove {away}' where it shall not come back")
        assert rest == []

    run(tmp_path, work)


def test_more_partitions_than_are_named_are_shown_by_the_command_that_is_named(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        await world.make("t", partitions=PARTITIONS_NAMED_MAX + 1, replicas=3)
        await world.fence(others(world.leader("t"))[0])
        last = (await found(world, "out of sync"))[-1]
        (shown,) = commands_of(last)
        assert shown == ["topic", "describe", "t"]
        assert await command(world, *shown) == 0

    run(tmp_path, work)
