"""The commands' output after a lost answer: it states the truth, and never calls their own success a failure."""

from __future__ import annotations

import asyncio
import json

import pytest

from headrace.cli.main import main
from tests.net.test_changes_on_a_script import LOST, State, cluster


async def test_a_topic_whose_creation_was_not_answered_is_there_and_nobody_says_it_existed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for json_too in (True, False):
        state = State(LOST)
        async with cluster(state) as made:
            command = ["topic", "create", "t", "--partitions", "2", "--bootstrap", str(made._bootstrap[0])]
            code = await asyncio.to_thread(main, [*command, *(["--json"] if json_too else [])])
        out, err = capsys.readouterr()
        assert (code, err, state.changes) == (0, "", 1)
        if json_too:
            assert json.loads(out)["created"] is None
        else:
            assert "topic t is there with 2 partitions" in out


async def test_a_deletion_that_was_not_answered_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    state = State(LOST, partitions=1)
    async with cluster(state) as made:
        command = ["topic", "delete", "t", "--bootstrap", str(made._bootstrap[0])]
        assert await asyncio.to_thread(main, command) == 0
    assert capsys.readouterr() == ("deleted topic t\n", "")
