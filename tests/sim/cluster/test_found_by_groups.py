"""A fault that a reader of the lease found (decision 0028), as a story in a simulated cluster."""

from __future__ import annotations

import asyncio
from typing import Final

from headrace.base.ids import BrokerId
from headrace.broker.parts import Parts
from headrace.metadata.image import MetadataImage
from headrace.sim.cluster.brokers import BrokerProgram
from tests.sim.cluster.test_found_by_clusters import Script, until

SLOWNESS: Final = 1_500.0
"""Of disks: an entry takes some seconds."""


def parts(script: Script, node: int) -> Parts:
    program = script.hosts[node].program
    assert isinstance(program, BrokerProgram)
    return program._broker.parts


def test_who_comes_back_while_another_is_fenced_is_not_fenced() -> None:
    """Two brokers were silent for a session. While the fencing of the first is on its way to the disks the second is
    heard, and so gets a lease. It must not be fenced for a silence that is over."""
    script = Script(born=7, spare=0)

    def newest() -> MetadataImage:
        return script.judge.images[max(script.judge.images)]

    async def story() -> None:
        for host in script.hosts.values():
            host.boot()
        await script.served(*script.hosts)
        await until(lambda: len(newest().live_brokers()) == 7)
        controller = script.judge.leaders[max(script.judge.leaders)].node
        silent = [BrokerId(node) for node in script.hosts if node != controller][:3]
        for node in silent:
            script.hosts[node].pause()
        for host in script.hosts.values():
            host.disk.slowness = SLOWNESS
        await until(lambda: any(newest().brokers[node].fenced for node in silent))
        # this took so long that the others' time is up too: they are found silent together
        dead, back = [node for node in silent if not newest().brokers[node].fenced]
        service, metadata = parts(script, controller).cluster.controller, parts(script, controller).metadata

        def is_decided() -> bool:
            assert metadata._pending is not None
            return metadata._pending.image.brokers[dead].fenced

        await until(is_decided)
        assert service._sessions is not None
        assert service._is_silent(service._sessions, back)
        assert not newest().brokers[dead].fenced, "it is on its way"
        script.hosts[back].resume()
        await until(lambda: newest().brokers[dead].fenced)
        await asyncio.sleep(5)
        started = max(script.judge.leaders)
        assert script.judge.leaders[started].node == controller
        ready = min(index for index, image in script.judge.images.items() if len(image.live_brokers()) == 7)
        assert not any(image.brokers[back].fenced for index, image in script.judge.images.items() if index >= ready)

    script.run(story)
