"""Commands that wait say for what, and for how long."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headrace.base.addresses import Address
from headrace.base.errors import HeadraceError
from headrace.base.ids import BrokerId
from headrace.broker.home.nodes import Node
from headrace.cli.work import supervisor
from headrace.cli.work.supervisor import _Supervisor
from headrace.net.client import durable
from headrace.testing import BrokerThread
from tests.cli.test_commands import Headrace, headrace

__all__ = ["headrace"]


def test_up_says_for_which_broker_it_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(supervisor, "TOLD_EVERY_S", 0.05)
    monkeypatch.setattr(supervisor, "START_SECONDS_MAX", 0.15)
    nodes = [
        Node(id=BrokerId(number), data=tmp_path / str(number), listen=Address("127.0.0.1", 0)) for number in (1, 2)
    ]

    async def whole() -> None:
        async def ready() -> str:
            return "127.0.0.1:1"

        async def never() -> str:
            await asyncio.Event().wait()
            return ""

        await _Supervisor(nodes, (), None, None)._unless_asked([ready(), never()])

    with pytest.raises(HeadraceError, match=r"^broker 2 did not become ready in 0\.15 s: see the logs above\.$"):
        asyncio.run(whole())
    assert "waits until broker 2 serves and knows of the others, for 0.05 s" in capsys.readouterr().err


def test_a_sweep_says_which_broker_is_at_work(
    tmp_path: Path, headrace: Headrace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable, "DURABLE_WAIT_TOLD_S", 0)
    with BrokerThread(configs={"durable.url": f"file://{tmp_path}/store"}) as broker:
        code, _, said = headrace("durable", "sweep", "--bootstrap", broker.bootstrap)
        assert code == 0
        assert f"the broker at {broker.bootstrap} is at work (sweep), for 0 s" in said
