"""Kafka's own Java client on a secured listener (tools/Secured.java), one process for many properties."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeAlias

import pytest

from tests.interop.support.asking import asked
from tools import kafka_jars

PROGRAM: Final = Path(__file__).parent.parent / "tools" / "Secured.java"
Outcome: TypeAlias = Callable[..., str]
"""The outcome for a topic that is made, and properties whose names have underscores in place of dots."""


@contextmanager
def secured_java(directory: Path, *options: str, is_bearer: bool = False) -> Iterator[Outcome]:
    """`options`: of Java. `is_bearer`: with the library that Kafka reads tokens by, which servers bring. Skips the test
    where there is no Java."""
    if kafka_jars.missing_tool() is not None:
        pytest.skip(kafka_jars.missing_tool() or "")
    jars = kafka_jars.class_path() if is_bearer else kafka_jars.newest_class_path()
    *java, main = kafka_jars.compiled(PROGRAM, jars)
    process = subprocess.Popen([*java, *options, main], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with asked(process) as put:

        def outcome(topic: str, **properties: str) -> str:
            file = directory / f"{topic}.properties"
            named = {key.replace("_", "."): value for key, value in properties.items()}
            file.write_text("".join(f"{key}={value}\n" for key, value in named.items()))
            return put(f"{file}\t{topic}")

        yield outcome
