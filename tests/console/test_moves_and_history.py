"""Moves and durable history on pages, of two brokers with one store."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

from headrace.broker.moves.service import Phase
from headrace.console.pages.history import blocks
from headrace.console.pages.moves import PHASES
from headrace.metadata.segments import PartitionCatalog
from headrace.operations.changes.costs import Cost, Pause, Share, pause_of, told
from headrace.operations.histories import History
from headrace.storage.disk import LocalDisk
from headrace.storage.objects import DirectoryObjects
from headrace.wire.moves import AskedView, FinishedView
from tests import loops
from tests.broker.clusters import BY_HAND
from tests.broker.group_broker import until
from tests.broker.replication_world import World, replicating
from tests.cli.test_doctor import run
from tests.console.asking import console_of, fresh
from tests.console.test_records import write
from tests.metadata.test_runs import TOPIC, ZERO
from tests.tier.test_chunks import publish

SMALL = {"segment_bytes": "1024", "durable_enable": "true"}


def test_every_phase_of_a_move_has_its_words() -> None:
    assert [name for name, *_ in PHASES] == [phase.value for phase in Phase]


def test_a_move_is_planned_carried_out_and_told_of_and_its_history_is_shown(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        await world.make("t", partitions=2, replicas=1, **SMALL)
        await write(world, "t", 60)
        target = world.leader("t", 1)
        source = world.leader("t", 0)
        assert source != target
        async with console_of(world.cluster.bootstrap, allows_changes=True) as viewer:
            assert "No move is under way" in (await viewer.get("/moves")).text
            found = await viewer.get(f"/move?topic=t&partitions=0&to={target}")
            assert found.rows[0][:3] == ["t-0", str(source), str(target)]
            assert found.rows[0][3].startswith("handed over through the store")
            assert f"headrace topic move t --to {target} --partition 0 --wait" in found.text
            assert "No move has finished yet that could tell how long." in found.text
            inner = found.body.split("<form method=")[1]
            form = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', inner))
            async with viewer.stream("/live/moves") as events:
                done = await viewer.post("/move", form)
                assert (done.status, done.headers["location"]) == (303, "/moves")
                while "Writes waited" not in await events.get():
                    viewer.console.moves.want()
            await world.cluster.agree()
            assert world.leader("t", 0) == target
            found = await viewer.get(f"/move?topic=t&partitions=0&to={source}")
            moves = viewer.console.moves.value
            assert moves is not None
            ((*_, waited),) = moves.finished
            assert f"In the last move they waited {waited:,} ms." in found.text
            await fresh(viewer.console.histories)
            found = await viewer.get("/history")
            assert "t-0" in [row[0] for row in found.rows]
            found = await viewer.get("/history/t/0")
            assert "The catalog fits its chain" in found.text
            assert len(found.rows) >= 1
            assert (await viewer.get("/history/t/9")).status == 404
            form = await viewer.form("/history/t/0", "prove it")
            assert (await viewer.post("/history/t/0/proof", {"token": "x"})).status == 403
            begun = await viewer.post("/history/t/0/proof", form)
            assert (begun.status, begun.headers["location"]) == (303, "/history/t/0#proof")
            proof = viewer.console.proofs["t", 0]
            await until(lambda: proof.is_over)
            shown = await viewer.get("/history/t/0/proof")
            assert "No broker has a durable store" in shown.text, "the test's store has no address"
            assert "hx-get" not in shown.body, "it is over, and not asked for any more"
            assert (await viewer.post("/history/t/9/proof", form)).status == 404

    async def whole() -> None:
        objects = DirectoryObjects(LocalDisk(), tmp_path / "store")
        async with replicating(tmp_path, BY_HAND, objects=objects) as world:
            await work(world)

    loops.run(whole())


def test_what_is_copied_is_told_in_bytes_and_no_wait_is(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        await world.make("t", partitions=2, replicas=1)
        await write(world, "t", 60)
        source = world.leader("t")
        target = next(each for each in (1, 2, 3) if each != source)
        async with console_of(world.cluster.bootstrap) as viewer:
            found = await viewer.get(f"/move?topic=t&partitions=0&to={target}")
        assert re.fullmatch(r"copied; its log has [1-9][0-9.]* K?B", found.rows[0][3])
        assert "Writes to a partition wait" not in found.text

    run(tmp_path, work)


def test_a_broker_that_has_a_copy_already_is_sent_no_bytes(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        await world.make("t", partitions=2, replicas=3)
        await write(world, "t", 60)
        target = next(each for each in (1, 2, 3) if each != world.leader("t"))
        async with console_of(world.cluster.bootstrap) as viewer:
            found = await viewer.get(f"/move?topic=t&partitions=0&to={target}")
        assert found.rows[0][3] == "it has a copy already, and is the first to lead it"
        assert f"1 partition would have broker {target} as the first to lead, which has a copy already." in found.text
        assert "to export or to copy" not in found.text

    run(tmp_path, work)


def test_the_plan_of_a_drain_has_its_cost(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        await world.make("t", partitions=3, replicas=1, **SMALL)
        await world.make("unwritten", partitions=1, replicas=1, **SMALL)
        await write(world, "t", 60)
        source = world.leader("t", 0)
        async with console_of(world.cluster.bootstrap, allows_changes=True) as viewer:
            found = await viewer.get(f"/broker-drain?broker={source}")
            going = {row[0]: row for row in found.rows}
            assert going["t-0"][3] == "handed over through the store"
            assert re.fullmatch(r"[1-9][0-9.]* K?B", going["t-0"][4])
            targets = sorted({row[2] for row in found.rows})
            for target in targets:
                count = sum(row[2] == target for row in found.rows)
                many = "1 partition" if count == 1 else f"{count} partitions"
                assert re.search(
                    rf"{many} would go to broker {target}, with [0-9.]+ K?B to export or to copy\.", found.text
                )
            assert "No move has finished yet that could tell how long." in found.text
            done = await viewer.post("/broker-drain", await viewer.form(f"/broker-drain?broker={source}", "Apply"))
            assert done.status == 303
            async with viewer.stream("/live/moves") as events:
                while "Writes waited" not in await events.get():
                    viewer.console.moves.want()
            found = await viewer.get(f"/broker-drain?broker={targets[0]}")
            assert re.search(r"In the last (move|[0-9]+ moves) they waited [0-9,]+ ms", found.text)

    async def whole() -> None:
        objects = DirectoryObjects(LocalDisk(), tmp_path / "store")
        async with replicating(tmp_path, BY_HAND, objects=objects) as world:
            await work(world)

    loops.run(whole())


def asked(target: int, partition: int, *, is_handed_over: bool, has_copy: bool = False) -> AskedView:
    return AskedView("t", partition, 1, target, is_handed_over, "", has_copy)


def test_the_cost_of_moves_is_that_of_each_target() -> None:
    moves = [asked(2, 0, is_handed_over=True), asked(3, 1, is_handed_over=False), asked(2, 2, is_handed_over=False)]
    moves += [asked(3, 3, is_handed_over=False), asked(-1, 4, is_handed_over=False)]
    moves += [asked(2, each, is_handed_over=False, has_copy=True) for each in (5, 6)]
    moves += [asked(1, 7, is_handed_over=False, has_copy=True)]
    cost = Cost(dict(zip(moves, (5, 7, 11, None, None, 0, 0, 0), strict=True)), Pause(2, 40, 60))
    assert cost.by_target == [Share(-1, 1, 0, 1, 0), Share(1, 1, 0, 0, 1), Share(2, 4, 16, 0, 2), Share(3, 2, 7, 1, 0)]
    assert told(cost, "{} B".format) == [
        "1 partition would go to brokers that are not chosen yet; no broker tells how many bytes.",
        "1 partition would have broker 1 as the first to lead, which has a copy already.",
        "2 partitions would go to broker 2, with 16 B to export or to copy.",
        "2 partitions would have broker 2 as the first to lead, which has a copy already.",
        "2 partitions would go to broker 3, with 7 B to export or to copy, beside 1 of unknown size.",
        "Writes to a partition wait while it is handed over. In the last 2 moves they waited 40 ms at the median, and "
        "60 ms at most.",
    ]
    copied = Cost({asked(2, 0, is_handed_over=False): 1}, None)
    assert told(copied, "{} B".format) == ["1 partition would go to broker 2, with 1 B to export or to copy."]


def test_the_wait_of_a_move_is_that_of_those_before() -> None:
    assert pause_of([]) is None
    assert pause_of([FinishedView("t", 0, 1, 5, each) for each in (30, 90, 41)]) == (3, 41, 90)


def test_the_timeline_covers_all_that_is_durable_in_the_order_of_offsets() -> None:
    catalog = publish(PartitionCatalog.empty(TOPIC, ZERO), 9, 1)
    end = catalog.next_offset
    history = History(
        topic="t", topic_id=TOPIC, partition=0, partitions=1, segments=9, start=0, end=end - 1, bytes=0, log_end=2 * end
    )
    found = blocks(catalog, list(catalog), history)
    assert len(found) == 9
    assert found[0].begin == 0.0
    assert all(abs(one.begin + one.width - other.begin) < 0.01 for one, other in pairwise(found))
    assert abs(found[-1].begin + found[-1].width - 50) < 0.01
