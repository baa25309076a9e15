"""States of transactions on a page of records: tags, the choice of committed ones, live pages and saved files."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from urllib.parse import urlencode

from confluent_kafka import Producer

from headrace.console.serving import schemas_of
from headrace.operations.masking import masks_of
from headrace.testing import RunningBroker
from tests import loops
from tests.console.asking import Answer, Viewer, console_of
from tests.interop.support.mixed import DEADLINE_S, STATES, mixed, transaction, write

ROOT = "/topics/t/records"
COMMITTED_ONLY = "isolation=read_committed"


def tagged(found: Answer) -> list[tuple[str, str | None]]:
    """The value of each record that a page shows, with the text of its tag."""
    rows = re.findall(r'<span class="value">(?:<span class="tag (\w+)">(.*?)</span></span> )?(\w+)</span>', found.body)
    assert all(
        Answer(200, {}, text + "</span>").text.strip() == f"{state} transaction" for state, text, _ in rows if text
    )
    return [(value, state or None) for state, _, value in rows]


async def shown(viewer: Viewer, **query: str) -> list[tuple[str, str | None]]:
    return tagged(await viewer.get(f"{ROOT}?{urlencode({'at': 'oldest', **query})}"))


async def test_each_record_of_a_transaction_has_its_state(headrace_broker: RunningBroker) -> None:
    with mixed(headrace_broker.bootstrap, "t") as opened:
        async with console_of(headrace_broker.bootstrap) as viewer:
            page = await viewer.get(f"{ROOT}?at=oldest")
            assert tagged(page) == STATES
            assert page.text.count("aborted: readers under read_committed never get this record") == 1
            held = "Readers under read_committed get no record of partition 0 from offset 5 on"
            assert held in page.text
            assert tagged(await viewer.get(f"{ROOT}?count=3")) == STATES[:-4:-1]
            assert held not in (await viewer.get(f"{ROOT}?at=oldest&count=2")).text, "nothing of it is held"
            assert await shown(viewer, filter="transaction == 'aborted'") == [("a0", "aborted")]
            assert await shown(viewer, filter="!transaction") == [("p0", None), ("p1", None)]
            saved = await viewer.get(f"/export{ROOT}?at=oldest")
            lines = [json.loads(line) for line in saved.body.splitlines()]
            assert [(line["value"], line.get("transaction")) for line in lines] == STATES
            assert [line for line in lines if line.get("transaction", "") is None] == []
            await asyncio.to_thread(opened.commit_transaction, DEADLINE_S)
            while ("o0", "committed") not in (found := tagged(page := await viewer.get(f"{ROOT}?at=oldest"))):
                assert ("o0", "open") in found
            assert "get no record" not in page.text


async def test_committed_records_alone_may_be_asked_for(headrace_broker: RunningBroker) -> None:
    with mixed(headrace_broker.bootstrap, "t") as opened:
        async with console_of(headrace_broker.bootstrap) as viewer:
            page = await viewer.get(f"{ROOT}?at=oldest&{COMMITTED_ONLY}")
            assert tagged(page) == STATES[:2]
            assert "get no record of partition 0 from offset 5 on" in page.text
            assert "headrace consume t --max 50 --isolation-level read_committed --json" in page.text
            assert '<option value="read_committed" selected>' in page.body
            saved = await viewer.get(f"/export{ROOT}?at=oldest&{COMMITTED_ONLY}")
            assert [json.loads(line)["value"] for line in saved.body.splitlines()] == ["p0", "c0"]
            nothing = await viewer.get(f"{ROOT}?at=offset&offset=4&{COMMITTED_ONLY}")
            assert "There is no committed record here" in nothing.text
            await asyncio.to_thread(opened.commit_transaction, DEADLINE_S)
            wanted = [("p0", None), ("c0", "committed"), ("o0", "committed"), ("c1", "committed"), ("p1", None)]
            while (found := await shown(viewer, isolation="read_committed")) != wanted:
                assert found == STATES[:2]
            for number in range(4):
                lost = [f"x{number}-{at}" for at in range(10)]
                await asyncio.to_thread(transaction, headrace_broker.bootstrap, "t", *lost, commits=False)
            newest = await viewer.get(f"{ROOT}?count=3&{COMMITTED_ONLY}")
            assert tagged(newest) == wanted[:-4:-1], "they are behind more aborted ones than the page has records"


def test_new_records_come_with_their_state(headrace_broker: RunningBroker) -> None:
    async def work(opened: Producer) -> None:
        async with asyncio.timeout(DEADLINE_S), console_of(headrace_broker.bootstrap) as viewer:
            assert len(await shown(viewer)) == len(STATES)
            async with (
                viewer.stream(f"/tail{ROOT}?filter=transaction") as everything,
                viewer.stream(f"/tail{ROOT}?{COMMITTED_ONLY}") as committed,
            ):
                while everything.empty():
                    await asyncio.to_thread(write, opened, "t", "o1")
                assert ("o1", "open") in tagged(Answer(200, {}, await everything.get()))
                assert committed.empty()
                await asyncio.to_thread(opened.commit_transaction, DEADLINE_S)
                came: list[tuple[str, str | None]] = []
                while ("o1", "committed") not in came:
                    came += tagged(Answer(200, {}, await committed.get()))
                assert {("o0", "committed"), ("p1", None)} <= {*came}, "they were not to be seen before"

    with mixed(headrace_broker.bootstrap, "t") as opened:
        loops.run(work(opened))


async def test_what_is_decoded_and_masked_keeps_its_state(headrace_broker: RunningBroker, tmp_path: Path) -> None:
    (tmp_path / "t.avsc").write_text('"long"')
    schemas = schemas_of(None, tmp_path, user_info="", properties={})
    assert schemas is not None
    masks = masks_of(["t:key=hidden"], None)
    with mixed(headrace_broker.bootstrap, "t"):
        transaction(headrace_broker.bootstrap, "t", "*", commits=False)  # 21, as Avro has it
        transaction(headrace_broker.bootstrap, "t", "x", commits=False)
        try:
            async with console_of(headrace_broker.bootstrap, schemas=schemas) as viewer:
                assert await shown(viewer, filter="value == `21`") == [("21", "aborted")]
        finally:
            await schemas.close()
        async with console_of(headrace_broker.bootstrap, masks=masks) as viewer:
            assert await shown(viewer, filter="transaction && value != '*'", at="offset", offset="9") == [
                ("x", "aborted")
            ]
