"""`--version` and `--help` import few modules. Seconds change with what else the machine does, modules do not."""

from __future__ import annotations

import subprocess
import sys

import pytest

VERSION_MODULES_MAX = 175
HELP_MODULES_MAX = 440
HEAVY = {
    "aiokafka",
    "asyncio",
    "caio",
    "confluent_kafka",
    "headrace.broker",
    "headrace.net",
    "headrace.storage",
    "headrace.wire",
    "jmespath",
    "obstore",
    "prometheus_client",
    "pyarrow",
    "pyspark",
    "structlog",
    "uvloop",
}


def imported(*arguments: str) -> set[str]:
    """The modules that a command imports, as the interpreter lists them."""
    command = [sys.executable, "-X", "importtime", "-m", "headrace.cli.main", *arguments]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, timeout=150)
    lines = [line for line in shown.stderr.splitlines() if line.startswith("import time:")]
    found = {line.rpartition("|")[2].strip() for line in lines}
    assert "typer" in found, "these lines tell what was imported"
    return found


@pytest.mark.parametrize("option", ["--version", "-V"])
def test_the_version_loads_no_command(option: str) -> None:
    found = imported(option)
    assert not found & (HEAVY | {"rich"})
    assert {each for each in found if each.startswith("headrace.cli.")} <= {
        "headrace.cli.commands",
        "headrace.cli.options",
    }
    assert len(found) < VERSION_MODULES_MAX, sorted(found)


@pytest.mark.parametrize("words", [(), ("topic",), ("consume",)])
def test_help_loads_nothing_that_works(words: tuple[str, ...]) -> None:
    found = imported(*words, "--help")
    assert not found & HEAVY
    assert len(found) < HELP_MODULES_MAX, sorted(found)


def test_one_command_does_not_load_the_others() -> None:
    assert "headrace.cli.topic" not in imported("group", "--help")


def test_neither_a_broker_nor_a_reader_loads_the_language_of_filters() -> None:
    code = (
        "import sys, headrace.broker.boot, headrace.cli.work.serve, headrace.cli.work.consuming, "
        "headrace.operations.reading; sys.exit('jmespath' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=150)
