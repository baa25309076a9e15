"""Avro becomes JSON within bounds, whatever schemas and values claim."""

from __future__ import annotations

import asyncio
import io
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import fastavro
import pytest

from headrace.base.limits import DECODED_BYTES_MAX, DECODING_FAILURES_MAX, DECODING_SCHEMAS_MAX
from headrace.operations.schemas import decoder
from headrace.operations.schemas.decoder import Decoder, DecoderError, Job, Outcome, Result
from headrace.operations.schemas.schema import avro_schema

ORDER: Final[dict[str, Any]] = {
    "type": "record",
    "name": "Order",
    "namespace": "org.example",
    "fields": [
        {"name": "id", "type": "long"},
        {
            "name": "card",
            "type": ["null", {"type": "record", "name": "Card", "fields": [{"name": "n", "type": "string"}]}],
        },
        {"name": "tags", "type": {"type": "map", "values": {"type": "array", "items": "string"}}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
        {"name": "seal", "type": {"type": "fixed", "name": "Seal", "size": 2}},
    ],
}
VALUE: Final = {"id": 7, "card": {"n": "4111"}, "tags": {"a": ["x", "ż"]}, "state": "PAID", "seal": b"\x00\xff"}
NESTED: Final = {"type": "record", "name": "R", "fields": [{"name": "n", "type": ["null", "R"]}]}
ENDLESS: Final = {"type": "record", "name": "R", "fields": [{"name": "n", "type": "R"}]}
EMPTY: Final = {"type": "record", "name": "E", "fields": []}
LONG_NAME: Final = {"type": "enum", "name": "e", "symbols": ["A" * 100_000]}


def binary(schema: Any, value: Any) -> bytes:
    target = io.BytesIO()
    fastavro.schemaless_writer(target, fastavro.parse_schema(schema), value)
    return target.getvalue()


def long(number: int) -> bytes:
    return binary("long", number)


def nested(depth: int) -> bytes:
    return b"\x02" * depth + b"\x00"


def job(schema: Any, data: bytes) -> Job:
    return Job(avro_schema(json.dumps(schema), "a test"), data)


GOOD: Final = job(ORDER, binary(ORDER, VALUE))


@asynccontextmanager
async def decoding() -> AsyncIterator[Decoder]:
    found = Decoder()
    try:
        yield found
    finally:
        await found.close()


async def decoded(*jobs: Job) -> list[Result]:
    async with decoding() as found:
        return await found.decode(jobs, DECODING_FAILURES_MAX)


async def as_json(schema: Any, value: Any) -> Any:
    (found,) = await decoded(job(schema, binary(schema, value)))
    assert found.outcome is Outcome.JSON
    return json.loads(found.data)


async def test_a_value_becomes_plain_json() -> None:
    (found,) = await decoded(GOOD)
    assert json.loads(found.data) == {**VALUE, "seal": "\x00ÿ"}, "no union names its branch, and bytes are text"
    assert list(json.loads(found.data)) == [field["name"] for field in ORDER["fields"]]


@pytest.mark.parametrize(
    ("type_", "logical", "value", "shown"),
    [
        ("bytes", {"logicalType": "decimal", "precision": 9, "scale": 2}, Decimal("-12.30"), "-12.30"),
        ("bytes", {"logicalType": "decimal", "precision": 40, "scale": 0}, Decimal(10**39), "1" + "0" * 39),
        ("int", {"logicalType": "date"}, date(2026, 1, 31), "2026-01-31"),
        ("int", {"logicalType": "date"}, 2**31 - 1, 2**31 - 1),
        ("int", {"logicalType": "time-millis"}, time(23, 5, 9, 7_000), "23:05:09.007"),
        ("long", {"logicalType": "time-micros"}, time(0, 0, 1, 5), "00:00:01.000005"),
        (
            "long",
            {"logicalType": "timestamp-millis"},
            datetime(2026, 1, 31, 12, tzinfo=UTC),
            "2026-01-31T12:00:00.000Z",
        ),
        ("long", {"logicalType": "timestamp-micros"}, -1, "1969-12-31T23:59:59.999999Z"),
        ("long", {"logicalType": "timestamp-nanos"}, 1_700_000_000_123_456_789, "2023-11-14T22:13:20.123456789Z"),
        ("long", {"logicalType": "timestamp-millis"}, 2**63 - 1, 2**63 - 1),
        ("long", {"logicalType": "local-timestamp-millis"}, 0, "1970-01-01T00:00:00.000"),
        ("string", {"logicalType": "uuid"}, "no uuid at all", "no uuid at all"),
        ("string", {"logicalType": "uuid"}, UUID(int=5), "00000000-0000-0000-0000-000000000005"),
        ("long", {"logicalType": "of-somebody"}, 3, 3),
        ("double", {}, float("nan"), "NaN"),
        ("double", {}, float("-inf"), "-Infinity"),
        ("bytes", {}, b"\x01\xfe", "\x01þ"),
    ],
)
async def test_logical_types_are_plain_text_where_they_can_be(type_: str, logical: Any, value: Any, shown: Any) -> None:
    schema = {"type": "record", "name": "T", "fields": [{"name": "f", "type": {"type": type_, **logical}}]}
    assert await as_json(schema, {"f": value}) == {"f": shown}


async def test_fixed_bytes_have_logical_types_too() -> None:
    for logical, data, shown in (
        ({"size": 16, "logicalType": "uuid"}, bytes(15) + b"\x05", "00000000-0000-0000-0000-000000000005"),
        ({"size": 2, "logicalType": "decimal", "precision": 4, "scale": 1}, b"\x00\x7b", "12.3"),
        ({"size": 12, "logicalType": "duration"}, b"\1\0\0\0\2\0\0\0\3\0\0\0", {"months": 1, "days": 2, "millis": 3}),
    ):
        fixed = {"type": "fixed", "name": "F", **logical}
        schema = {"type": "record", "name": "T", "fields": [{"name": "f", "type": fixed}]}
        (found,) = await decoded(job(schema, data))
        assert json.loads(found.data) == {"f": shown}


async def test_a_text_is_itself() -> None:
    results = await decoded(job("string", binary("string", "a b")), job("long", long(5)), job("null", b""))
    assert [each.data for each in results] == [b"a b", b"5", b"null"]


@pytest.mark.parametrize(
    ("schema", "data", "outcome"),
    [
        ({"type": "array", "items": "null"}, long(10**9) + long(0), Outcome.FAILED),
        ({"type": "array", "items": "null"}, long(-(10**9)) + long(0) + long(0), Outcome.FAILED),
        ({"type": "array", "items": EMPTY}, long(10**9) + long(0), Outcome.FAILED),
        ({"type": "map", "values": "null"}, long(10**9), Outcome.OTHER),
        ({"type": "array", "items": LONG_NAME}, long(10**5) + bytes(10**5 + 1), Outcome.FAILED),
        ({"type": "array", "items": "null"}, long(DECODED_BYTES_MAX) + long(0), Outcome.LARGE),
        ("string", long(2**40) + b"abc", Outcome.OTHER),
        ("string", long(-3) + b"abc", Outcome.OTHER),
        ("bytes", b"\xff" * 100_000, Outcome.OTHER),
        ({"type": "fixed", "name": "f", "size": 2**40}, b"abc", Outcome.OTHER),
        (NESTED, nested(900_000), Outcome.FAILED),
        (ENDLESS, b"", Outcome.FAILED),
        ("long", long(5) + b"more", Outcome.OTHER),
        ({"type": "record", "name": "R", "fields": [{"name": "f", "type": "Nowhere"}]}, b"", Outcome.REFUSED),
        ({"type": "nothing"}, b"", Outcome.REFUSED),
    ],
    ids=lambda each: each.name if isinstance(each, Outcome) else None,
)
async def test_a_hostile_value_is_given_up_and_costs_no_other(schema: Any, data: bytes, outcome: Outcome) -> None:
    results = await decoded(GOOD, job(schema, data), GOOD)
    assert [each.outcome for each in results] == [Outcome.JSON, outcome, Outcome.JSON]


async def test_deep_nesting_is_told_or_given_up_whatever_its_depth() -> None:
    some = [job(NESTED, nested(depth)) for depth in (200, 500, 900, 2_000, 10_000)]
    outcomes = [each.outcome for each in await decoded(*some)]
    assert outcomes[0] is Outcome.JSON
    assert set(outcomes[1:]) <= {Outcome.JSON, Outcome.LARGE, Outcome.FAILED}


async def test_a_schema_that_grows_when_it_is_read_is_given_up() -> None:
    """Each record holds the one before twice: 2 ** 40 of them, in no bytes at all."""
    grown: dict[str, Any] = {"type": "record", "name": "R0", "fields": [{"name": "a", "type": "null"}]}
    for number in range(1, 41):
        fields = [{"name": "a", "type": grown}, {"name": "b", "type": f"R{number - 1}"}]
        grown = {"type": "record", "name": f"R{number}", "fields": fields}
    assert [each.outcome for each in await decoded(job(grown, b""), GOOD)] == [Outcome.FAILED, Outcome.JSON]


async def test_after_some_failures_no_more_are_tried() -> None:
    endless = job(ENDLESS, b"")
    results = await decoded(*[endless] * (DECODING_FAILURES_MAX + 2), GOOD)
    expected = [Outcome.FAILED] * DECODING_FAILURES_MAX + [Outcome.LEFT] * 3
    assert [each.outcome for each in results] == expected


async def test_a_page_that_gives_up_leaves_no_answers_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = asyncio.Event()
    real = decoder._result

    async def result(source: asyncio.StreamReader) -> Result:
        waiting.set()
        return await real(source)

    async with decoding() as found:
        await found.decode([GOOD], 1)
        process = found._process
        monkeypatch.setattr(decoder, "_result", result)
        task = asyncio.create_task(found.decode([job({"type": "array", "items": "null"}, long(10**9) + long(0))], 1))
        await waiting.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await found.decode([job("long", long(5))], 1))[0].data == b"5"
        assert found._process is not process


async def test_a_process_is_given_a_bounded_number_of_schemas() -> None:
    async with decoding() as found:
        for number in range(DECODING_SCHEMAS_MAX + 1):
            assert (await found.decode([job("long", long(number))], 1))[0].data == b"%d" % number
        assert len(found._known) == 1, "another process has taken its place"


async def test_a_process_that_cannot_start_is_told_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async with decoding() as found:
        monkeypatch.setattr(sys, "executable", str(tmp_path / "away"))
        with pytest.raises(DecoderError, match=r"cannot be started: No such file"):
            await found.decode([GOOD], 1)
        monkeypatch.setattr(sys, "executable", "/bin/true")
        with pytest.raises(DecoderError, match="does not start"):
            await found.decode([GOOD], 1)


async def test_the_process_gets_no_secrets_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_SCHEMA_REGISTRY_USER", "ada:of-ada-alone")
    async with decoding() as found:
        await found.decode([GOOD], 1)
        assert found._process is not None
        environment = Path(f"/proc/{found._process.pid}/environ").read_bytes()
        assert (b"PATH=" in environment, b"of-ada-alone" in environment) == (True, False)


async def test_a_value_that_is_waited_for_too_long_is_given_up() -> None:
    found = Decoder(ms_max=0)
    try:
        assert [each.outcome for each in await found.decode([GOOD], 1)] == [Outcome.FAILED]
    finally:
        await found.close()
