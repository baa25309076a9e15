"""Masked fields are in no page, no file and no stream, and no search finds them."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlencode

from headrace.net.client.cluster import Cluster
from headrace.net.client.producer import Producer
from headrace.operations.masking import masks_of
from tests.broker.replication_world import World
from tests.cli.test_doctor import run
from tests.console.asking import console_of

CARD = "4111-1111-1111-1111"
TOLD = f"value.card == 'masked-card' && !contains(to_string(@), '{CARD}')"
MASKS = masks_of(["t:value.card=masked-card", "t:key=masked-key", "t:header.token=masked-token"], None)


async def write(world: World, number: int) -> None:
    async with Cluster(world.cluster.bootstrap) as client, Producer(client) as producer:
        value = f'{{"number": {number}, "card": "{CARD}"}}'.encode()
        headers = (("token", CARD.encode()), ("source", b"till"))
        await producer.send("t", value=value, key=CARD.encode(), timestamp_ms=1, headers=headers)


def test_a_masked_field_is_shown_nowhere_and_found_by_nothing(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        await world.make("t")
        await write(world, 1)
        async with console_of(world.cluster.bootstrap, masks=MASKS) as viewer:
            root = "/topics/t/records"
            for path in (f"{root}?at=oldest", f"{root}?as=hex", f"/export{root}", f"{root}?has=till"):
                found = await viewer.get(path)
                assert (found.status, CARD in found.body, CARD.encode().hex(" ") in found.body) == (200, False, False)
            shown = await viewer.get(f"{root}?at=oldest")
            for text in ('"card": "masked-card"', "masked-key", "masked-token", '"number": 1', "till"):
                assert text in shown.text
            assert "Masked for everybody: value.card , key , header.token" in shown.text
            for query in (f"has={CARD}", f"has={CARD[:4]}", f"key={CARD}"):
                assert "was found" in (await viewer.get(f"{root}?{query}")).text, "a search is no oracle"
            for query in ("has=masked-card", "key=masked-key", "has=NUMBER"):
                assert '"number": 1' in (await viewer.get(f"{root}?{query}")).text
            for text in (f"value.card == '{CARD}'", f"contains(to_string(@), '{CARD[:4]}')", f"key == '{CARD}'"):
                for door in (root, f"/export{root}"):
                    assert "number" not in (await viewer.get(f"{door}?{urlencode({'filter': text})}")).text
            for text in ("value.card == 'masked-card'", "[key, headers.token] == ['masked-key', 'masked-token']"):
                found = await viewer.get(f"{root}?{urlencode({'filter': text})}")
                assert ('"number": 1' in found.text, CARD in found.body) == (True, False)
            async with viewer.stream(f"/tail{root}?{urlencode({'filter': TOLD})}") as events:
                while events.empty():
                    await write(world, 2)
                assert CARD not in await events.get()
            async with viewer.stream(f"/tail{root}?has=source") as events:
                while events.empty():
                    await write(world, 2)
                part = await events.get()
            assert ("masked-card" in part, CARD in part) == (True, False)

    run(tmp_path, work)
