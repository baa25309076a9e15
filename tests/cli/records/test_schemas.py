"""`headrace consume --schema-registry` and `--schemas`: keys and values of Avro as JSON, before they are searched."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from headrace.cli.work import consuming
from tests.cli.test_commands import Headrace
from tests.console.schema_registry import registry
from tests.console.test_schemas import framed, order
from tests.operations.test_decoding import ORDER, VALUE, binary


def write(headrace: Headrace, directory: Path, *values: bytes) -> None:
    headrace.ok("topic", "create", "t", "--partitions", 1)
    file = directory / "records.json"
    lines = [json.dumps({"key": "k", "value_base64": base64.b64encode(each).decode()}) for each in values]
    file.write_text("\n".join(lines))
    headrace.ok("produce", "t", file, "-f", "json")


def test_avro_is_printed_searched_and_chosen_as_json(headrace: Headrace, tmp_path: Path) -> None:
    with registry() as served:
        value = order(served.register("t-value", ORDER))
        write(headrace, tmp_path, value, b"plain text")
        asked = ("consume", "t", "--end", "--schema-registry", served.url)
        first, second = headrace.json(*asked)
        assert json.loads(first["value"])["card"]["n"] == "4111"
        assert second["value"] == "plain text"
        assert [each["offset"] for each in headrace.json(*asked, "--grep", "PAID")] == [0]
        assert [each["offset"] for each in headrace.json(*asked, "--filter", "value.state == 'PAID'")] == [0]
        stored = f"value.state == 'PAID' && size == `{len(value) + 1}`"
        assert [each["offset"] for each in headrace.json(*asked, "--filter", stored)] == [0], "as it is stored"
        assert len(headrace.json(*asked, "--tail", "2")) == 2
    assert [each["offset"] for each in headrace.json("consume", "t", "--end", "--grep", "PAID")] == []


def test_more_records_than_a_page_are_decoded_by_files(
    headrace: Headrace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consuming, "CONSOLE_RECORDS_MAX", 2)
    schemas = tmp_path / "schemas"
    schemas.mkdir()
    (schemas / "t.avsc").write_text(json.dumps(ORDER))
    write(headrace, tmp_path, *[binary(ORDER, VALUE)] * 5)
    found = headrace.json("consume", "t", "--end", "--schemas", schemas)
    assert [json.loads(each["value"])["state"] for each in found] == ["PAID"] * 5


def test_why_bytes_are_not_decoded_is_told_once_and_no_password(
    headrace: Headrace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consuming, "CONSOLE_RECORDS_MAX", 1)
    write(headrace, tmp_path, *[framed(7, b"x")] * 3)
    code, out, err = headrace("consume", "t", "--end", "--schema-registry", "http://ada:of-ada@127.0.0.1:1", "--json")
    assert (code, len(out.splitlines())) == (0, 3)
    assert err.count("What it would tell is shown as bytes.") == 1
    assert "of-ada" not in err
    assert "is no directory" in headrace.refused("consume", "t", "--schemas", tmp_path / "away", code=2)
