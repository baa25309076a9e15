"""Transactions, users, ACLs, quotas, records that are written and saved, topics that go: each by its plan."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer

from headrace.net.client.access.users import users
from headrace.net.client.admin import Admin
from headrace.net.client.cluster import Cluster
from headrace.testing import broker
from tests.broker.replication_world import World
from tests.cli.test_doctor import run
from tests.console.asking import Viewer, console_of, fresh, hidden_of
from tests.console.test_login import ADMIN, as_, place
from tests.console.test_records import write


async def apply(viewer: Viewer, path: str, query: str, **typed: str) -> tuple[int, str]:
    """Carry out the plan of a page: the status, and the page that follows."""
    form = await viewer.form(f"{path}?{query}", "Apply")
    done = await viewer.post(path, {**form, **typed})
    return done.status, done.headers.get("location", "")


def test_a_record_is_written_saved_and_its_topic_deleted(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        await world.make("t", partitions=2)
        async with console_of(world.cluster.bootstrap, allows_changes=True) as viewer:
            wish = await viewer.form("/record-produce?topic=t")
            asked = {**wish, "topic": "t", "partition": "1", "key": " k ", "kind": "text", "headers": "h=x=y\r\n"}
            asked |= {"value": '{"a":\r\n"it\'s"}'}
            planned = await viewer.post("/record-produce", asked)
            assert planned.rows[0] == ["t", "1", "k", '{"a": "it\'s"}', "h=x=y"]
            assert "headrace produce t --format json --partition 1" in planned.text
            assert await offsets(world) == 0, "a plan writes nothing"
            hidden = hidden_of(planned, "Apply")
            assert (await viewer.post("/record-produce", hidden)).status == 303
            saved = await viewer.get("/export/topics/t/records?at=oldest")
            (line,) = [json.loads(each) for each in saved.body.splitlines()]
            assert (line["partition"], line["key"], line["value"]) == (1, " k ", '{"a":\n"it\'s"}')
            assert line["headers"] == [{"name": "h", "value": "x=y"}]
            assert 'filename="t.jsonl"' in saved.headers["content-disposition"]
            for wrong in ({"partition": "9"}, {"partition": "x"}, {"headers": "nothing"}, {"value": "x" * 40_000}):
                found = await viewer.post("/record-produce", {**asked, **wrong, "token": hidden["token"]})
                assert 'role="alert"' in found.body
            assert (await viewer.post("/record-produce", {**asked, "token": "x"})).status == 403
            assert await apply(viewer, "/topic-delete", "topic=t", typed="t") == (303, "/topics")
            await world.cluster.agree()
            await fresh(viewer.console.seen)
            assert (await viewer.get("/topics/t")).status == 404

    async def offsets(world: World) -> int:
        async with console_of(world.cluster.bootstrap) as viewer:
            return len((await viewer.get("/export/topics/t/records?at=oldest")).body.splitlines())

    run(tmp_path, work)


def test_records_are_searched_by_what_they_have_in_them(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        await world.make("t", partitions=2)
        await write(world, "t", 20)
        async with console_of(world.cluster.bootstrap) as viewer:
            found = await viewer.get("/topics/t/records?has=%22number%22:%2013")
            assert ("1 records" in found.text, '"number": 13' in found.text) == (True, True)
            assert "4 records" in (await viewer.get("/topics/t/records?has=KEY-3&at=oldest")).text
            saved = await viewer.get("/export/topics/t/records?has=key-3&at=oldest")
            assert [json.loads(line)["key"] for line in saved.body.splitlines()] == ["key-3"] * 4
            assert (
                "No record like this was found 20 records were read"
                in (await viewer.get("/topics/t/records?has=nowhere")).text
            )

    run(tmp_path, work)


async def test_an_open_transaction_is_listed_and_aborted_by_its_plan(tmp_path: Path) -> None:
    async with broker(data=tmp_path) as running:
        async with Cluster(running.bootstrap) as client:
            await Admin(client).create_topic("t", partitions=1)
        producer = Producer({"bootstrap.servers": running.bootstrap, "transactional.id": "till-7", "linger.ms": 0})
        await asyncio.to_thread(begin, producer)
        async with console_of(running.bootstrap, allows_changes=True) as viewer:
            await viewer.console.transactions.settled(60_000)
            found = await viewer.get("/transactions")
            assert found.rows[0][:2] == ["till-7", "open"]
            assert "1 of 1 have a transaction under way" in found.text
            assert "t-0" in (await viewer.get("/transactions/till-7")).text
            assert (await viewer.get("/transactions/away")).status == 404
            form = await viewer.form("/transaction-abort?name=till-7", "Apply")
            assert (await viewer.post("/transaction-abort", form)).status == 409, "the id is not typed"
            done = await viewer.post("/transaction-abort", {**form, "typed": "till-7"})
            assert (done.status, done.headers["location"]) == (303, "/transactions/till-7")
            refused = await viewer.get("/transaction-abort?name=till-7")
            assert "has no open transaction" in refused.text
        with pytest.raises(KafkaException):
            await asyncio.to_thread(producer.commit_transaction, 60)


def begin(producer: Producer) -> None:
    """A transaction with one record in it, which its broker has."""
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce("t", b"x")
    producer.flush(60)


async def test_users_acls_and_quotas_are_listed_and_changed_by_plans(tmp_path: Path) -> None:
    async with place(tmp_path, allows_changes=True) as world:
        viewer = world.browser
        await viewer.log_in(*ADMIN)
        assert "There are none." in (await viewer.get("/access")).text
        plan = await viewer.get("/user-set?name=bob&mechanism=SCRAM-SHA-512")
        assert plan.rows == [["bob", "SCRAM-SHA-512", "none", "a password, 8,192 iterations"]]
        assert "headrace user create bob --mechanism SCRAM-SHA-512 --password-stdin --execute" in plan.text
        form = await viewer.form("/user-set?name=bob", "Apply")
        assert (await viewer.post("/user-set", form)).status == 409, "a password is needed"
        assert (await viewer.post("/user-set", {**form, "password": "builder"})).status == 303
        query = "principal=User:bob&permission=Allow&operation=consumer&resource=Topic&pattern=prefixed&name=ord"
        plan = await viewer.get(f"/acl-add?{query}")
        assert [row[2] for row in plan.rows] == ["Read", "Describe"]
        command = "headrace acl allow --principal User:bob --topic ord --resource-pattern-type prefixed --consumer"
        assert command in plan.text
        form = await viewer.form(f"/acl-add?{query}", "Apply")
        assert (await viewer.post("/acl-add", form)).status == 303
        console = world.console_of(viewer)
        await fresh(console.users)
        await fresh(console.acls)
        found = await viewer.get("/access?q=bob")
        assert ["User:bob", "allow", "Read", "Topic ord…", "everywhere", "Remove …"] in found.rows
        assert ["bob", "SCRAM-SHA-256, SCRAM-SHA-512", "Password … Delete …"] in found.rows
        gone = "principal=User:bob&permission=Allow&operation=Read&resource=Topic&pattern=prefixed&name=ord&host=*"
        form = await viewer.form(f"/acl-remove?{gone}", "Apply")
        assert (await viewer.post("/acl-remove", form)).status == 303
        assert "There is no such ACL any more" in (await viewer.get(f"/acl-remove?{gone}")).text
        nameless = "principal=User:bob&permission=Allow&operation=Describe&resource=Group&pattern=prefixed&name="
        found = await viewer.get(f"/acl-remove?{nameless}")
        assert ("Name the group" in found.text, found.rows) == (True, []), "it is not each of bob's"
        form = await viewer.form("/quota-set?user=bob&key=producer_byte_rate&value=1048576", "Apply")
        assert (await viewer.post("/quota-set", form)).status == 303
        await console.quotas.settled(60_000)
        await fresh(console.quotas)
        assert (await viewer.get("/quotas")).rows[0][:3] == ["user 'bob'", "producer_byte_rate", "1,048,576"]
        assert (
            "headrace quota unset --user bob producer_byte_rate"
            in (await viewer.get("/quota-set?user=bob&key=producer_byte_rate&value=")).text
        )
        for wrong in (
            "user=bob&key=no_such&value=1",
            "user=bob&ip=1.2.3.4&key=producer_byte_rate",
            "user=b&key=request_percentage&value=x",
        ):
            assert 'role="alert"' in (await viewer.get(f"/quota-set?{wrong}")).body
        form = await viewer.form("/user-delete?name=bob", "Apply")
        assert (await viewer.post("/user-delete", {**form, "typed": "bo"})).status == 409
        assert (await viewer.post("/user-delete", {**form, "typed": "bob"})).status == 303
        async with Cluster(world.bootstrap, security=as_(ADMIN)) as cluster:
            assert await users(cluster) == {}


def test_a_broker_is_drained_by_a_plan(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        await world.make("t", partitions=3)
        async with console_of(world.cluster.bootstrap, allows_changes=True) as viewer:
            found = await viewer.get("/broker-drain?broker=1")
            assert "headrace broker drain 1 --wait" in found.text
            assert "No move of t-0 is under way" in (await viewer.get("/move-cancel?topic=t&partition=0")).text
            assert 'role="alert"' in (await viewer.get("/broker-drain?broker=one")).body

    run(tmp_path, work)
