"""Tables that are sorted and paged: partitions, users, ACLs, segments of history; and lists of very many rows."""

from __future__ import annotations

import threading
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.limits import CONSOLE_ROWS, CONSOLE_SORTED_ROWS_MAX
from headrace.console import lists
from headrace.console.lists import listing
from headrace.console.pages import access, history, topic
from headrace.metadata.access.scram import ScramMechanism
from headrace.net.client.access.users import set_password
from headrace.net.client.cluster import Cluster
from headrace.net.client.producer import Producer
from headrace.storage.disk import LocalDisk
from headrace.storage.objects import DirectoryObjects
from tests import loops
from tests.broker.clusters import BY_HAND
from tests.broker.replication_world import World, replicating
from tests.cli.test_doctor import others, run
from tests.console.asking import Answer, Viewer, console_of, fresh
from tests.console.test_login import ADMIN, as_, place
from tests.console.test_moves_and_history import SMALL
from tests.console.test_records import write
from tests.console.test_topics import query

Pair = tuple[str, int]
KEYS = {"name": itemgetter(0), "size": itemgetter(1)}


def of_pairs(rows: list[Pair], **settings: Any) -> lists.Listing[Pair]:
    return listing(query(**settings), rows, name=itemgetter(0), keys=KEYS, default="name")


@given(st.lists(st.tuples(st.text("ab", max_size=3), st.integers(0, 3)), max_size=60), st.integers(1, 7), st.booleans())
def test_rows_sorted_in_pieces_are_those_of_one_sort(rows: list[Pair], piece: int, is_descending: bool) -> None:
    sort = "-size" if is_descending else "size"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(lists, "CONSOLE_ROWS", 10)
        whole = [row for page in range(1, 7) for row in of_pairs(rows, sort=sort, page=page).rows][: len(rows)]
        patched.setattr(lists, "CONSOLE_SORTED_ROWS_MAX", piece)
        pages = [of_pairs(rows, sort=sort, page=page) for page in range(1, of_pairs(rows).pages + 1)]
    assert whole[: len(rows)] == sorted(sorted(rows, key=itemgetter(0)), key=itemgetter(1), reverse=is_descending)
    assert [row for page in pages for row in page.rows] == whole


class Watched(list[Pair]):
    """Rows that note how many of them are taken at once."""

    most = 0

    def __getitem__(self, at: Any) -> Any:
        found = super().__getitem__(at)
        if isinstance(at, slice):
            self.most = max(self.most, len(found))
        return found


@pytest.mark.parametrize("sort", ["size", "-size", "number", "-number"])
def test_of_very_many_rows_no_more_than_some_are_sorted_at_once(sort: str) -> None:
    rows = Watched((f"{number}", number * 7_919 % 50_021) for number in range(100_000))
    keys: dict[str, Callable[[Pair], int]] = {"number": lambda row: int(row[0]), "size": itemgetter(1)}
    found = listing(query(sort=sort, page=3), rows, name=itemgetter(0), keys=keys, default="number", given="number")
    assert (len(found.rows), found.total, found.pages) == (CONSOLE_ROWS, 100_000, 1_000)
    wanted = sorted(rows, key=keys[sort.strip("-")], reverse=sort.startswith("-"))
    assert found.rows == wanted[2 * CONSOLE_ROWS : 3 * CONSOLE_ROWS]
    if "size" in sort:
        assert 0 < rows.most <= CONSOLE_SORTED_ROWS_MAX


def test_two_lists_of_a_page_turn_by_themselves() -> None:
    rows = [(f"{number:03}", number) for number in range(3 * CONSOLE_ROWS)]
    asked = query(page=2, user_page=1, user_sort="-size", user_q="1")
    one, other = (
        listing(asked, rows, name=itemgetter(0), keys=KEYS, default="name", prefix=each) for each in ("", "user_")
    )
    assert (one.page, one.sort, one.query, one.total) == (2, "name", "", 300)
    assert (other.sort, other.is_descending, other.query, other.page, other.pages) == ("size", True, "1", 1, 2)
    assert all("1" in name for name, _ in other.rows)


def column(found: Answer, at: int) -> list[str]:
    return [row[at] for row in found.rows if len(row) > at]


def test_partitions_are_sorted_by_each_column_and_paged(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        many = CONSOLE_ROWS + 5
        await world.make("t", partitions=many, replicas=1)
        async with Cluster(world.cluster.bootstrap) as cluster, Producer(cluster) as producer:
            for index in (5, 103, 50):
                for number in range(index):
                    await producer.send("t", value=bytes(20), timestamp_ms=number, partition=index)
            await producer.flush()
        async with console_of(world.cluster.bootstrap) as viewer:
            await fresh(viewer.console.sizes)
            by_number = await viewer.get("/topics/t")
            assert column(by_number, 0)[:CONSOLE_ROWS] == [str(each) for each in range(CONSOLE_ROWS)]
            assert column(await viewer.get("/topics/t?page=2"), 0)[:5] == [str(100 + each) for each in range(5)]
            last = await viewer.get("/topics/t?sort=-number")
            assert column(last, 0)[:3] == [str(many - 1), str(many - 2), str(many - 3)]
            assert 'aria-sort="descending"><a href="/topics/t?sort=number"' in last.body
            assert 'rel="next" href="/topics/t?sort=-number&amp;page=2"' in last.body
            leaders = [int(each) for each in column(await viewer.get("/topics/t?sort=-leader"), 1)[:CONSOLE_ROWS]]
            assert leaders == sorted(leaders, reverse=True)
            for key, at in (("end", 6), ("epoch", 3)):
                shown = await viewer.get(f"/topics/t?sort=-{key}")
                figures = [int(each.replace(",", "")) for each in column(shown, at)[:CONSOLE_ROWS]]
                assert figures == sorted(figures, reverse=True), key
                assert key != "end" or figures[0] > figures[-1] == 0
            sizes = viewer.console.sizes.value
            assert sizes is not None
            assert column(await viewer.get("/topics/t?sort=-size"), 0)[:4] == ["103", "50", "5", "0"]
            largest = [int(each) for each in column(await viewer.get("/topics/t?sort=-size"), 0)[:CONSOLE_ROWS]]
            assert [sizes.by_place["t", each] for each in largest] == sorted(sizes.by_place.values(), reverse=True)[
                :100
            ]
            assert column(await viewer.get("/topics/t?sort=nothing"), 0)[0] == "0"

    run(tmp_path, work)


def test_partitions_in_trouble_come_first_by_their_replicas(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        await world.make("t", partitions=6, replicas=1)
        away = world.leader("t", 3)
        lost = {str(each) for each in range(6) if world.leader("t", each) == away}
        await world.fence(away)
        assert others(away)
        async with console_of(world.cluster.bootstrap) as viewer:
            shown = await viewer.get("/topics/t?sort=-health")
            assert set(column(shown, 0)[: len(lost)]) == lost
            assert set(column(shown, 1)[: len(lost)]) == {"none"}

    run(tmp_path, work)


async def test_users_and_acls_are_sorted_each_by_themselves(tmp_path: Path) -> None:
    async with place(tmp_path, allows_changes=True) as world:
        viewer = world.browser
        async with Cluster(world.bootstrap, security=as_(ADMIN)) as cluster:
            both = (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
            for name, mechanisms in (("bob", both), ("ann", both[1:]), ("eve", both[:1])):
                await set_password(cluster, name, f"of {name}", mechanisms, iterations=4_096)
        await viewer.log_in(*ADMIN)
        for name, address in (("bob", "10.0.0.2"), ("ann", "10.0.0.3"), ("eve", "10.0.0.1")):
            query = f"principal=User:{name}&permission=Allow&operation=Read&resource=Topic&name=t&host={address}"
            form = await viewer.form(f"/acl-add?{query}", "Apply")
            assert (await viewer.post("/acl-add", form)).status == 303
        console = world.console_of(viewer)
        await fresh(console.users)
        await fresh(console.acls)

        async def firsts(path: str) -> list[str]:
            return column(await viewer.get(path), 0)

        acls = ["User:ann", "User:bob", "User:eve"]
        assert await firsts("/access") == ["ann", "bob", "eve", *acls]
        assert await firsts("/access?user_sort=-name") == ["eve", "bob", "ann", *acls]
        assert await firsts("/access?user_sort=mechanisms") == ["eve", "bob", "ann", *acls]
        assert await firsts("/access?sort=host&user_sort=-name") == [
            *["eve", "bob", "ann"],
            *["User:eve", "User:bob", "User:ann"],
        ]
        found = await viewer.get("/access?sort=host&user_q=b")
        assert column(found, 0) == ["bob", "User:eve", "User:bob", "User:ann"]
        assert 'href="/access?sort=-host&amp;user_q=b"' in found.body, "a list keeps the other's settings"
        assert 'type="hidden" name="user_q" value="b"' in found.body
        assert "None has “x” in its name: show all 3" in (await viewer.get("/access?user_q=x")).text


async def of_history(viewer: Viewer, sort: str) -> list[list[str]]:
    found = await viewer.get(f"/history/t/0?sort={sort}")
    assert found.status == 200, found.text
    return found.rows


def test_segments_are_sorted_by_each_column(tmp_path: Path) -> None:
    async def whole() -> None:
        objects = DirectoryObjects(LocalDisk(), tmp_path / "store")
        async with replicating(tmp_path, BY_HAND, objects=objects) as world:
            await world.make("t", partitions=2, replicas=1, **SMALL)
            for count in (40, 44, 48, 52, 56, 60):
                await write(world, "t", count)
            async with console_of(world.cluster.bootstrap) as viewer:

                async def exported() -> bool:
                    await fresh(viewer.console.histories)
                    return any(
                        each.segments > 3 and each.partition == 0 for each in viewer.console.histories.value or ()
                    )

                while not await exported():
                    pass
                newest = await of_history(viewer, "")
                firsts = [int(row[0].replace(",", "")) for row in newest]
                assert firsts == sorted(firsts, reverse=True)
                assert len(firsts) > 3
                assert [row[0] for row in await of_history(viewer, "first")] == [row[0] for row in newest[::-1]]
                for key, at in (("records", 2), ("epoch", 5)):
                    figures = [int(row[at]) for row in await of_history(viewer, f"-{key}")]
                    assert figures == sorted(figures, reverse=True)
                for key in ("size", "stored"):
                    alike = [row[0] for row in await of_history(viewer, f"-{key}")]
                    assert alike == [row[0] for row in await of_history(viewer, "-records")], "records are alike"
                times = [row[6] for row in await of_history(viewer, "written")]
                assert times == sorted(times)

    loops.run(whole())


def test_lists_that_may_be_long_are_made_beside_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: dict[str, bool] = {}

    def watch(module: Any, name: str) -> None:
        def watched(*arguments: Any, **settings: Any) -> Any:
            made[name] = threading.current_thread() is not threading.main_thread()
            return listing(*arguments, **settings)

        monkeypatch.setattr(module, "listing", watched)

    for module, name in ((topic, "partitions"), (access, "users"), (history, "histories")):
        watch(module, name)

    async def work(world: World) -> None:
        await world.make("t")
        async with console_of(world.cluster.bootstrap) as viewer:
            await viewer.console.users.settled(60_000)
            for path in ("/topics/t", "/history", "/access"):
                assert (await viewer.get(path)).status == 200, path
        assert made == {"partitions": True, "users": True, "histories": True}

    run(tmp_path, work)
