"""The fate of a proposed ISR after the controller's answer: when it no longer counts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.broker.replication import isr as isr_module
from headrace.controller.asks.replicas import AlterIsr
from headrace.controller.decision import Refusal
from headrace.wire.errors import ErrorCode
from tests import loops
from tests.broker.clusters import Cluster, running
from tests.broker.data_path import batch, produce
from tests.broker.group_broker import RawClient
from tests.broker.replicas import elect, known, leader, make_topic, set_isr, until


@pytest.mark.parametrize("code", [ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_TOPIC_ID])
def test_a_leader_that_is_none_any_more_still_waits_for_whom_it_proposed(
    code: ErrorCode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first ask was heard, and its answer lost; then another was elected, of that ISR. Were it taken back, this
    leader would acknowledge alone."""
    monkeypatch.setattr(isr_module, "ISR_BACKOFF_MS", 0)

    async def work() -> None:
        async with running(tmp_path, 2) as cluster:
            key = await make_topic(cluster, "t", 2)
            first = known(await cluster.agree(), key).leader
            asked, answer = held_answer(cluster, first, (code,))
            leads = leader(cluster, first, key)
            await set_isr(cluster, key, [first])
            async with asyncio.timeout(150):
                await asked.wait()
            assert leads.isr.leader.proposed is not None
            await cluster.brokers[3 - first].parts.replication.copying.stop()
            async with RawClient(str(cluster.address(first))) as client:
                assert (await produce(client, "t", batch(b"alone"), acks=1)).error_code == 0
            await until(lambda: leads.log.flushed_end == 1)
            answer.set()
            for _ in range(20):
                await asyncio.sleep(0)
            assert leads.high_watermark == 0

    loops.run(work())


def held_answer(cluster: Cluster, broker: int, codes: tuple[ErrorCode, ...]) -> tuple[asyncio.Event, asyncio.Event]:
    """Its asks for an ISR reach nobody, and are answered so, once that is allowed (the second event); the first tells
    that there was one."""
    control, asked, answer = cluster.brokers[broker].parts.control, asyncio.Event(), asyncio.Event()
    submit = control.submit

    async def answered(ask: Any, **more: Any) -> Any:
        if not isinstance(ask, AlterIsr):
            return await submit(ask, **more)
        asked.set()
        await answer.wait()
        return codes

    control.submit = answered  # type: ignore[method-assign]
    return asked, answer


def test_what_may_yet_be_heard_is_taken_back_only_once_it_cannot_be_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request whose answer is lost may still be on its way when a later one is refused for a member that was just
    fenced."""
    monkeypatch.setattr(isr_module, "ISR_BACKOFF_MS", 0)

    async def work() -> None:
        async with running(tmp_path, 2) as cluster:
            key = await make_topic(cluster, "t", 2)
            first = known(await cluster.agree(), key).leader
            leads = leader(cluster, first, key)
            control = cluster.brokers[first].parts.control
            submit, asked, late = control.submit, list[AlterIsr](), asyncio.Event()

            async def answered(ask: Any, **more: Any) -> Any:
                if not isinstance(ask, AlterIsr):
                    return await submit(ask, **more)
                asked.append(ask)
                await late.wait()
                if len(asked) == 1:
                    return Refusal(ErrorCode.REQUEST_TIMED_OUT, "planted: the answer was lost")
                if len(asked) == 2:
                    return (ErrorCode.INELIGIBLE_REPLICA,)
                assert leads.high_watermark == 0, "it may yet be in sync"
                return await submit(ask, **more)

            control.submit = answered  # type: ignore[method-assign]
            await set_isr(cluster, key, [first])
            await until(lambda: len(asked) == 1)
            await cluster.brokers[3 - first].parts.replication.copying.stop()
            async with RawClient(str(cluster.address(first))) as client:
                assert (await produce(client, "t", batch(b"alone"), acks=1)).error_code == 0
            await until(lambda: leads.log.flushed_end == 1)
            late.set()
            await until(lambda: leads.high_watermark == 1)
            assert [[member.broker_id for member in ask.proposals[0].isr] for ask in asked][2:] == [[first]]
            assert await submit(asked[0]) == (ErrorCode.INVALID_UPDATE_VERSION,)

    loops.run(work())


def test_what_is_asked_again_for_a_leadership_that_is_over_puts_off_nothing_of_the_next(tmp_path: Path) -> None:
    """The controller does not answer for an ISR in one epoch, and the request is repeated later. By then this broker
    leads again, and has proposed an ISR of its own, which waits for an earlier request. If it were forgotten, nobody
    would ever repeat it."""

    async def work() -> None:
        async with running(tmp_path, 2) as cluster:
            key = await make_topic(cluster, "t", 2)
            first = known(await cluster.agree(), key).leader
            parts = cluster.brokers[first].parts
            control, again, asked, late = parts.control, list[Callable[[], None]](), list[AlterIsr](), asyncio.Event()
            parts.replication.isr._later = again.append  # type: ignore[method-assign, assignment]
            submit = control.submit

            async def answered(ask: Any, **more: Any) -> Any:
                if not isinstance(ask, AlterIsr):
                    return await submit(ask, **more)
                asked.append(ask)
                if len(asked) == 1:
                    return Refusal(ErrorCode.REQUEST_TIMED_OUT, "planted: the answer was lost")
                answer = await submit(ask, **more)
                await late.wait()
                return answer

            control.submit = answered  # type: ignore[method-assign]
            before = leader(cluster, first, key)
            await set_isr(cluster, key, [first])
            await until(lambda: len(again) == 1)
            await elect(cluster, key, 3 - first, [3 - first])
            await until(lambda: before.has_stepped_down)
            await elect(cluster, key, first, [first])
            await until(lambda: len(known(cluster.image(first), key).isr) == 2)
            after = leader(cluster, first, key)
            assert after is not before
            await set_isr(cluster, key, [first])
            await until(lambda: after.isr.leader.proposed is not None)
            for each in again:
                each()
            late.set()
            await until(lambda: len(known(cluster.image(first), key).isr) == 2)

    loops.run(work())
