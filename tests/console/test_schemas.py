"""Keys and values of Avro on a page of records: read by the schemas of a registry or of files, masked, and searched."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from headrace.base.errors import UsageError
from headrace.base.limits import (
    DECODED_BYTES_MAX,
    SCHEMA_ASKS_AT_ONCE_MAX,
    SCHEMA_ASKS_MAX,
    SCHEMA_BYTES_MAX,
    SCHEMA_REFERENCES_DEPTH_MAX,
    SCHEMA_REGISTRY_AGAIN_MS,
    SCHEMA_UNKNOWN_MS,
    SCHEMAS_MAX,
)
from headrace.console.serving import schemas_of
from headrace.net.client.cluster import Cluster
from headrace.net.client.producer import Producer
from headrace.operations.masking import NO_MASK, Mask, masks_of, parse_rule
from headrace.operations.schemas import records as decoding
from headrace.operations.schemas import registry as asking
from headrace.operations.schemas.files import Files
from headrace.operations.schemas.records import Decoded, Schemas
from headrace.operations.schemas.registry import Place, Registry
from headrace.operations.schemas.schema import Cache, Schema, avro_schema
from headrace.wire.records import Record
from tests.broker.replication_world import World
from tests.certificates import Authority
from tests.cli.test_doctor import run
from tests.console.asking import console_of
from tests.console.schema_registry import ServedRegistry, registry
from tests.operations.test_decoding import ENDLESS, ORDER, VALUE, binary, long

CARD: Final = "4111"
ROOT: Final = "/topics/t/records"
PATIENCE_MS: Final = 120_000


def framed(schema_id: int, data: bytes) -> bytes:
    """Confluent's wire format."""
    return b"\0" + schema_id.to_bytes(4, "big") + data


def order(schema_id: int) -> bytes:
    return framed(schema_id, binary(ORDER, VALUE))


def by_others(served: ServedRegistry, topic: str) -> bytes:
    """The order as Confluent's own client writes it."""
    with SchemaRegistryClient({"url": served.url}) as client:
        written = AvroSerializer(client, json.dumps(ORDER))(VALUE, SerializationContext(topic, MessageField.VALUE))
    assert written is not None
    return bytes(written)


async def write(world: World, *values: bytes | None, key: bytes | None = None) -> None:
    async with Cluster(world.cluster.bootstrap) as client, Producer(client) as producer:
        for value in values:
            await producer.send("t", value=value, key=key, timestamp_ms=1, headers=(("source", b"till"),))


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that waits for its registry as long as a test does: a busy machine is no slow registry."""
    for module in (decoding, asking):
        monkeypatch.setattr(module, "SCHEMA_REGISTRY_MS_MAX", PATIENCE_MS)


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def schemas(
    served: ServedRegistry | None, directory: Path | None = None, *, clock: Clock | None = None, user: str = ""
) -> AsyncIterator[Schemas]:
    known = None if served is None else Registry(Place.of(served.url, user), clock=clock or Clock())
    found = Schemas(known, None if directory is None else Files(directory))
    try:
        yield found
    finally:
        await found.close()


async def read(found: Schemas, *values: bytes, mask: Mask = NO_MASK, key: bytes | None = None) -> Sequence[Decoded]:
    """As one page reads them."""
    return await found.of("t").read([Record(at, 1, key, value, ()) for at, value in enumerate(values)], mask)


def test_a_page_shows_and_searches_what_avro_says(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        await world.make("t")
        with registry() as served:
            value = await asyncio.to_thread(by_others, served, "t")
            key_id = served.register("t-key", '"string"')
            await write(world, value, None, b"plain text", key=framed(key_id, binary("string", "ada")))
            async with schemas(served) as found, console_of(world.cluster.bootstrap, schemas=found) as viewer:
                page = await viewer.get(ROOT)
                for text in ('"card": { "n": "4111" }', '"state": "PAID"', "plain text", "null", "ada"):
                    assert text in page.text
                assert "Read with org.example.Order (schema 1)." in page.text
                assert page.text.count(f"Read with string (schema {key_id}).") == 3
                assert served.asked.count("/schemas/ids/1") == 1
                as_hex = await viewer.get(f"{ROOT}?as=hex")
                assert value[:16].hex(" ") in as_hex.text
                assert "PAID" not in as_hex.body
                for query, is_found in (("has=paid", True), ("has=4112", False), ("key=ada", True), ("key=ad", False)):
                    body = (await viewer.get(f"{ROOT}?{query}")).body
                    assert (query, "org.example.Order" in body) == (query, is_found)
                size = len(value) + len(framed(key_id, b"")) + len(binary("string", "ada"))
                for text, is_found in (
                    (f"value.state == 'PAID' && value.card.n == '{CARD}' && key == 'ada' && size == `{size}`", True),
                    ("value.state == 'LOST'", False),
                ):
                    body = (await viewer.get(f"{ROOT}?{urlencode({'filter': text})}")).body
                    assert (text, "org.example.Order" in body) == (text, is_found)
                lines = (await viewer.get(f"/export{ROOT}?at=oldest")).body.splitlines()
                exported = [(each["key"], each["value"]) for each in map(json.loads, lines)]
                assert json.loads(exported[0][1])["card"] == {"n": "4111"}
                assert [each[0] for each in exported] == ["ada"] * 3
                async with viewer.stream(f"/tail{ROOT}?has=paid") as events:
                    while events.empty():
                        await write(world, value)
                    assert "Read with org.example.Order (schema 1)." in await events.get()
                assert served.asked.count("/schemas/ids/1") == 1, "it is kept"

    run(tmp_path, work)


def test_what_cannot_be_decoded_is_shown_as_before_and_the_console_goes_on(tmp_path: Path) -> None:
    async def work(world: World) -> None:
        await world.make("t")
        with registry() as served:
            nulls = served.register("a", {"type": "array", "items": "null"})
            endless, good = served.register("b", ENDLESS), served.register("c", ORDER)
            await write(
                world, framed(nulls, long(10**9) + long(0)), framed(endless, b""), b"\0\0\0\0\x63x", order(good)
            )
            async with schemas(served) as found, console_of(world.cluster.bootstrap, schemas=found) as viewer:
                page = await viewer.get(f"{ROOT}?at=oldest")
                for text in (
                    "It cannot be read with array (schema 1) within the bounds of time and memory.",
                    "It cannot be read with R (schema 2) within the bounds of time and memory.",
                    "00 00 00 00 02",
                    "The registry knows no schema 99.",
                    "00 00 00 00 63 78",
                    "Read with org.example.Order (schema 3).",
                ):
                    assert text in page.text
                served.status = 503
                found.registry, other = Registry(Place.of(served.url)), found.registry
                page = await viewer.get(f"{ROOT}?at=oldest")
                host = served.url.removeprefix("http://")
                told = f"The schema registry at {host} answers 503. What it would tell is shown as bytes."
                assert (page.status, page.text.count(told), "PAID" in page.body) == (200, 1, False)
                found.registry = other
                assert "PAID" in (await viewer.get(f"{ROOT}?at=oldest")).text

    run(tmp_path, work)


def test_a_masked_field_is_masked_in_avro_and_other_bytes_tell_nothing(tmp_path: Path) -> None:
    masks = masks_of(["t:value.card.n=masked-card", "t:key=masked-key"], None)

    async def work(world: World) -> None:
        await world.make("t")
        with registry() as served:
            value = order(served.register("t-value", ORDER))
            proto = framed(served.register("p", 'syntax = "proto3";', "PROTOBUF"), b"\x0a\x044111")
            unknown = framed(0x34313131, b"4111")
            broken = value + b"4111"
            secret = framed(served.register("k", '"string"'), binary("string", CARD))
            await write(world, value, proto, unknown, broken, b"\x084111", key=secret)
            async with (
                schemas(served) as found,
                console_of(world.cluster.bootstrap, schemas=found, masks=masks) as viewer,
            ):
                for path in (f"{ROOT}?at=oldest", f"{ROOT}?as=hex", f"{ROOT}?as=text", f"/export{ROOT}"):
                    page = await viewer.get(path)
                    assert (page.status, CARD in page.body, CARD.encode().hex(" ") in page.body) == (200, False, False)
                    assert str(0x34313131) not in page.body, "an id of masked bytes is not told"
                page = await viewer.get(f"{ROOT}?at=oldest")
                assert ('"n": "masked-card"' in page.text, '"state": "PAID"' in page.text) == (True, True)
                assert page.text.count("Read with") == 1
                assert "PROTOBUF" not in page.text
                for query in (f"has={CARD}", f"key={CARD}", "has=proto"):
                    assert "was found" in (await viewer.get(f"{ROOT}?{query}")).text, "a search is no oracle"
                for query in ("has=masked-card", "key=masked-key"):
                    assert '"state": "PAID"' in (await viewer.get(f"{ROOT}?{query}")).text
                async with viewer.stream(f"/tail{ROOT}") as events:
                    while events.empty():
                        await write(world, value)
                    part = await events.get()
                assert ("masked-card" in part, CARD in part) == (True, False)
            assert not any(path.endswith("/3") for path in served.asked), "the schema of a masked key is not asked for"

    run(tmp_path, work)


async def test_a_record_of_a_masked_topic_that_is_not_decoded_is_masked_as_before() -> None:
    """A rule for a field hides all of the bytes that nobody can look into."""
    mask = Mask([parse_rule("t:value.card=XX")])
    with registry() as served:
        schema_id = served.register("t-value", ORDER)
        values = (
            b'{"card": "4111"}',
            order(schema_id),
            framed(schema_id, b"junk"),
            framed(served.register("p", "x", "PROTOBUF"), b'{"card": "4111"}'),
            framed(served.register("j", "{}", "JSON"), b'{"card": "4111", "n": 1}'),
            framed(served.register("j", "{}", "JSON"), b'{"card": "4111", "card": "4111"}'),
            framed(77, bytes(DECODED_BYTES_MAX)),
            b"",
        )
        async with schemas(served) as found:
            shown = await read(found, *values, mask=mask)
    before = [mask(Record(at, 1, None, value, ())) for at, value in enumerate(values)]
    assert [each.raw for each in shown] == before
    others = {at: each.record.value for at, each in enumerate(shown) if each.record != each.raw}
    assert others.keys() == {1, 4}
    assert json.loads(others[1] or b"")["card"] == "XX"
    assert others[4] == b'{"card":"XX","n":1}'
    assert [at for at, each in enumerate(shown) if each.told.value] == [1, 4]


async def test_files_have_the_schemas_of_topics_and_of_ids(tmp_path: Path) -> None:
    (tmp_path / "t.avsc").write_text(json.dumps(ORDER))
    (tmp_path / "t-key.avsc").write_text('"string"')
    (tmp_path / "7.avsc").write_text('"long"')
    async with schemas(None, tmp_path) as found:
        bare = binary(ORDER, {**VALUE, "id": 0})
        assert bare[0] == 0, "it looks as if it had an id"
        values = (bare, binary(ORDER, VALUE), framed(7, long(5)), b'{"is": "JSON"}', b"other")
        shown = await read(found, *values, key=binary("string", "ada"))
        assert [each.record.key for each in shown] == [b"ada"] * 5
        assert [json.loads(each.record.value or b"")["id"] for each in shown[:2]] == [0, 7]
        assert [each.record.value for each in shown[2:]] == [b"5", b'{"is": "JSON"}', b"other"]
        assert [each.told.value for each in shown[1:]] == [
            "Read with org.example.Order (t.avsc).",
            "Read with long (7.avsc).",
            "",
            "It is not as org.example.Order (t.avsc) says.",
        ]
        (tmp_path / "t.avsc").write_text('"bytes"')
        assert (await read(found, b"\x06abc"))[0].record.value == b"abc", "a file that has changed is read again"
        for text, reason in (
            ("{", "It cannot be read with t.avsc, which is no schema of Avro: "),
            ("[" * 100_000, "It cannot be read with t.avsc, which is no schema of Avro: it is nested too deeply."),
            (
                '{"type": "record", "name": "R", "fields": 3}',
                "It cannot be read with R (t.avsc): that is no usable schema",
            ),
            ('"Nowhere"', "It cannot be read with Nowhere (t.avsc): that is no usable schema (UnknownType: Nowhere)."),
            (" " * (SCHEMA_BYTES_MAX + 1), "It cannot be read with t.avsc: it has more than 1,048,576 bytes."),
        ):
            (tmp_path / "t.avsc").write_text(text)
            assert (await read(found, b"\x06abc"))[0].told.value.startswith(reason)
        (tmp_path / "t.avsc").write_bytes(b"\xff")
        assert (await read(found, b"\x06abc"))[0].told.value == "It cannot be read with t.avsc: it is no text in UTF-8."
    async with schemas(None, tmp_path / "away") as found:
        page = found.of("t")
        assert (await page.read([Record(0, 1, None, b"abc", ())], NO_MASK))[0].record.value == b"abc"
        assert page.troubles == ["The directory of schemas cannot be read: No such file or directory."]


async def test_references_are_resolved_each_once_and_in_their_order() -> None:
    with registry() as served:
        served.register("a/b", {"type": "enum", "name": "x.State", "symbols": ["NEW", "PAID"]})
        state = {"name": "x.State", "subject": "a/b", "version": 1}
        line = {"type": "record", "name": "x.Line", "fields": [{"name": "state", "type": "x.State"}]}
        served.register("line", line, references=[state])
        fields = [{"name": "line", "type": "x.Line"}, {"name": "state", "type": "x.State"}]
        root = {"type": "record", "name": "x.Root", "fields": fields}
        lines = {"name": "x.Line", "subject": "line", "version": 1}
        schema_id = served.register("root", root, references=[lines, state])
        async with schemas(served) as found:
            (shown,) = await read(found, framed(schema_id, long(1) + long(0)))
            assert json.loads(shown.record.value or b"") == {"line": {"state": "PAID"}, "state": "NEW"}
            assert shown.told.value == f"Read with x.Root (schema {schema_id})."
        assert served.asked.count("/subjects/a%2Fb/versions/1") == 1


async def test_references_that_cannot_be_resolved_are_told_of() -> None:
    with registry() as served:
        chain = [
            served.register(
                f"s{number}",
                '"int"' + " " * number,
                references=[{"subject": f"s{number + 1}", "version": 1, "name": "n"}],
            )
            for number in range(SCHEMA_REFERENCES_DEPTH_MAX + 2)
        ]
        away = served.register("away", '"int"', references=[{"name": "n", "subject": "none", "version": 3}])
        wrong = served.register("wrong", '"int"', references=[{"name": "n", "subject": "none", "version": "latest"}])
        large = served.register("large", '"int"' + " " * SCHEMA_BYTES_MAX)
        larger = served.register("larger", '"int"' + " " * 3 * SCHEMA_BYTES_MAX)
        async with schemas(served) as found:
            shown = await read(found, *(framed(each, long(1)) for each in (chain[0], away, wrong, large, larger)))
        told = [each.told.value.removeprefix("It cannot be read with schema ") for each in shown]
        assert told == [
            f"{chain[0]}: it refers to too many others.",
            f"{away}: it refers to version 3 of 'none', which the registry does not know.",
            f"{wrong}: one of its references names no version of a subject.",
            f"{large}: it has more than 1,048,576 characters with those that it refers to.",
            f"{larger}: it is too large.",
        ]


async def test_other_kinds_of_schemas_are_told_by_name() -> None:
    with registry() as served:
        js, proto = served.register("j", "{}", "JSON"), served.register("p", "message M {}", "PROTOBUF")
        values = framed(js, b'{"a": 1}'), framed(js, b"3"), framed(js, b"{"), framed(proto, b"\0\x08\x01"), b"\0\0"
        async with schemas(served) as found:
            shown = await read(found, *values)
        assert [each.record.value for each in shown] == [b'{"a": 1}', b"3", *values[2:]]
        assert [each.told.value for each in shown] == [
            "Read with JSON (schema 1).",
            "Read with JSON (schema 1).",
            "It is not JSON, as schema 1 says.",
            "Its schema is of the kind PROTOBUF (schema 2), which is not decoded here.",
            "",
        ]


async def test_an_id_that_is_not_known_is_asked_for_again_after_a_while() -> None:
    clock = Clock()
    with registry() as served:
        async with schemas(served, clock=clock) as found:
            for _ in range(3):
                (shown,) = await read(found, framed(1, long(5)))
                assert shown.told.value == "The registry knows no schema 1."
            assert len(served.asked) == 1
            served.register("t-value", '"long"')
            clock.now += SCHEMA_UNKNOWN_MS / 1000
            assert (await read(found, framed(1, long(5))))[0].record.value == b"5"
            assert len(served.asked) == 2


async def test_one_page_asks_for_a_bounded_number_of_schemas() -> None:
    """Numbers in eight bytes look as if each had an id of its own."""
    with registry() as served:
        async with schemas(served) as found:
            page = found.of("t")
            records = [Record(at, 1, None, b"\0" + at.to_bytes(7, "little"), ()) for at in range(3 * SCHEMA_ASKS_MAX)]
            for at in range(0, len(records), 10):
                await page.read(records[at : at + 10], NO_MASK)
            assert len(served.asked) == SCHEMA_ASKS_MAX
            assert page.troubles == [f"Records name more than {SCHEMA_ASKS_MAX} schemas: the others are not asked for."]


async def test_a_registry_that_does_not_answer_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(decoding, "SCHEMA_REGISTRY_MS_MAX", 500)
    with registry() as served:
        served.register("t-value", '"long"')
        served.answers.clear()
        values = [framed(each, long(5)) for each in range(1, 100)]
        told = f"The schema registry at {served.url.removeprefix('http://')} does not answer in time."
        async with schemas(served, clock=clock) as found:
            for _ in range(3):
                page = found.of("t")
                shown = await page.read([Record(0, 1, None, each, ()) for each in values], NO_MASK)
                assert [each.record.value for each in shown] == values
                assert f"{told} What it would tell is shown as bytes." in page.troubles
            assert len(served.asked) <= SCHEMA_ASKS_AT_ONCE_MAX
            served.answers.set()
            monkeypatch.setattr(decoding, "SCHEMA_REGISTRY_MS_MAX", PATIENCE_MS)
            clock.now += SCHEMA_REGISTRY_AGAIN_MS / 1000
            assert (await read(found, values[0]))[0].record.value == b"5"


async def test_a_registry_that_is_away_or_something_else_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    with registry() as served:
        for change, told in (
            ({"status": 500}, "answers 500."),
            ({"status": 302}, "answers 302."),
            ({"answer": lambda *_: (200, {"what": "is this"})}, "answers without a schema: --schema-registry may be"),
            ({"answer": lambda *_: (200, ["a list"])}, "answers without JSON: --schema-registry may be"),
        ):
            with monkeypatch.context() as patch:
                for name, value in change.items():
                    patch.setattr(served, name, value)
                async with schemas(served) as found:
                    page = found.of("t")
                    await page.read([Record(0, 1, None, framed(1, b"x"), ())], NO_MASK)
                    assert told in page.troubles[0]
    async with schemas(served) as found:
        page = found.of("t")
        await page.read([Record(0, 1, None, framed(1, b"x"), ())], NO_MASK)
        assert "does not answer: All connection attempts failed. What it would tell" in page.troubles[0]


async def test_a_user_of_the_registry_is_proven_and_never_told() -> None:
    with registry("ada:p@ss/word") as served:
        served.register("t-value", '"long"')
        async with schemas(served) as found:
            page = found.of("t")
            await page.read([Record(0, 1, None, framed(1, long(5)), ())], NO_MASK)
            assert "refuses the console (401): give USER:PASSWORD by HEADRACE_SCHEMA_REGISTRY_USER." in page.troubles[0]
        async with schemas(served, user="ada:p@ss/word") as found:
            assert (await read(found, framed(1, long(5))))[0].record.value == b"5"
        place = Place.of(served.url.replace("//", "//ada:p%40ss%2Fword@"))
        assert (place.user, place.password, place.site.url) == ("ada", "p@ss/word", served.url)
        assert "p@ss" not in repr(place)
        assert "ada" not in repr(place)


async def test_a_registry_is_trusted_as_the_settings_say(tmp_path: Path) -> None:
    authority = Authority.made(tmp_path)
    with registry("ada:pw", authority.server_context("127.0.0.1")) as served:
        served.register("t-value", '"long"')
        trusted = {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(authority.trust)}
        for properties, value in (({}, framed(1, long(5))), (trusted, b"5")):
            found = schemas_of(served.url, None, user_info="ada:pw", properties=properties)
            assert found is not None
            try:
                assert (await read(found, framed(1, long(5))))[0].record.value == value
            finally:
                await found.close()
        assert served.asked == ["/schemas/ids/1"]


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("registry:8081", "has to be a URL"),
        ("ftp://ada:secret@registry", "has to be a URL"),
        ("https://ada:secret@registry:port", "has to be a URL"),
        ("https://ada:secret@registry/?a=secret", "has to be a URL"),
        ("http://ada:secret@registry.test:8081", "would send a password to registry.test in clear text"),
    ],
)
def test_an_address_that_is_none_is_refused_without_its_secrets(url: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason) as caught:
        schemas_of(url, None, user_info="", properties={})
    assert "secret" not in str(caught.value)


def test_a_directory_that_is_none_is_refused(tmp_path: Path) -> None:
    assert schemas_of(None, None, user_info="", properties={}) is None
    with pytest.raises(UsageError, match=r"--schemas .*/away is no directory\."):
        schemas_of(None, tmp_path / "away", user_info="", properties={})


def test_nothing_of_avro_is_imported_without_an_option() -> None:
    code = (
        "import sys, headrace.cli.console, headrace.console.serving; print({'fastavro', 'httpx2'} & set(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "set()\n"


def test_the_cache_keeps_the_schemas_that_were_used_last() -> None:
    cache: Cache[int] = Cache()
    for number in range(SCHEMAS_MAX + 1):
        assert number < 2 or cache.get(0) is not None
        cache.put(number, Schema(f"schema {number}", '"int"'))
    assert (len(cache), cache.get(1), cache.get(0) is None) == (SCHEMAS_MAX, None, False)
    for number in range(40):
        cache.put(number, Schema(f"schema {number}", " " * SCHEMA_BYTES_MAX))
    assert (len(cache), cache.get(7), cache.get(8) is None) == (32, None, False)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('"int"', "int"),
        ('["null", "int"]', "union"),
        ('{"type": "array", "items": "int"}', "array"),
        ('{"type": "record", "name": "a.B", "namespace": "c", "fields": []}', "a.B"),
        ('{"type": "record", "name": "B", "namespace": "c", "fields": []}', "c.B"),
        ('{"type": "record", "name": "B", "fields": []}', "B"),
    ],
)
def test_a_schema_has_its_full_name(text: str, name: str) -> None:
    assert avro_schema(text, "here").name == name
