"""Write `src/headrace/metadata/kafka_configs.json` from Apache Kafka's own classes, of the version that
tools/kafka_newest/pom.xml names: needs java, and mvn to fetch the jars once.

    python tools/generate_kafka_configs.py [--check]

`--check` writes nothing and fails where the file is not what Kafka's classes say.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools.kafka_jars import newest_class_path, newest_version  # noqa: E402 - needs the path above

FILE: Final = ROOT / "src/headrace/metadata/kafka_configs.json"
PROGRAM: Final = ROOT / "tools/kafka_newest/KafkaConfigs.java"
RUN_TIMEOUT_S: Final = 120.0
NONE: Final = "\\N"


def facts() -> list[list[str]]:
    """As Kafka's classes print them: kind, name, type, default, validator, whether internal, mode, synonym."""
    command = ["java", "-cp", newest_class_path(), str(PROGRAM)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=RUN_TIMEOUT_S)
    return [line.split("\t") for line in done.stdout.splitlines()]


def told() -> str:
    """The whole file: one line for each config."""
    lines = facts()
    parts = [f'{{\n  "version": {json.dumps(newest_version())}']
    for kind in ("topic", "broker"):
        rows = ",\n".join(f"    {json.dumps(_row(line[1:]))}" for line in lines if line[0] == kind)
        parts.append(f'  "{kind}": [\n{rows}\n  ]')
    return ",\n".join(parts) + "\n}\n"


def _row(fields: list[str]) -> list[Any]:
    """As the fields of `Fact` are."""
    key, type_, default, validator, internal, updates, synonym = fields
    row = [key, type_, _text(default), *_bounds(validator), _text(updates)]
    if synonym != NONE or internal == "true":
        row.append(_text(synonym))
    if internal == "true":
        row.append(True)
    return row


def _bounds(validator: str) -> tuple[float | None, float | None, list[str]]:
    """Least, most, and values."""
    if match := re.fullmatch(r"\[(-?[\d.]+?),\.\.\.(?:,(-?[\d.]+))?\]", validator):
        return _number(match[1]), None if match[2] is None else _number(match[2]), []
    if match := re.fullmatch(r"\[(\d+),\.\.\.,(\d+)\] or (-?\d+)", validator):
        return None, None, [match[3], *map(str, range(int(match[1]), int(match[2]) + 1))]
    if match := re.fullmatch(r"(?:\(case insensitive\) )?\[([A-Za-z0-9_, ]+)\]", validator):
        return None, None, match[1].split(", ")
    return None, None, []


def _number(text: str) -> float:
    return float(text) if "." in text else int(text)


def _text(text: str) -> str | None:
    return None if text == NONE else text


def main(arguments: list[str]) -> int:
    text = told()
    stale = not FILE.exists() or FILE.read_text(encoding="utf-8") != text
    if "--check" in arguments:
        if stale:
            print(f"{FILE} is not what Kafka's classes say: run tools/generate_kafka_configs.py", file=sys.stderr)
        return int(stale)
    FILE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
