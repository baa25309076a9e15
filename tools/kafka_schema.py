"""Take the facts of Kafka's message definitions into our own table, `tools/kafka_messages.txt`.

    python tools/kafka_schema.py JAR [JAR ...]

Each JAR holds `common/message/*.json`. The protocol is that of kafka-clients 4.1.0, with WriteTxnMarkers v2 of 4.3.0.
The records in `__consumer_offsets` and in `__transaction_state` are those of the coordinators' jars of 4.3.0. Only
facts are kept: names, types, versions, tags, nullability, defaults. It is run by hand when Kafka's protocol grows, and
`tools/generate_wire.py` turns the table into codecs. Nothing of the jar is kept.

The table, one line a thing, children indented by two spaces:

    message KIND KEY NAME VERSIONS flexible=VERSIONS
      FIELD TYPE VERSIONS [null=VERSIONS] [tag=N@VERSIONS] [default=VALUE] [flexible=none] [ignorable]
      struct NAME
"""

from __future__ import annotations

import json
import re
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TABLE = Path(__file__).with_name("kafka_messages.txt")
KINDS = {"request": 0, "response": 1, "header": 2, "data": 3, "coordinator-key": 4, "coordinator-value": 5}
CONSUMER_GROUP = (
    *("Metadata", "PartitionMetadata", "MemberMetadata", "TargetAssignmentMetadata"),
    *("TargetAssignmentMember", "CurrentMemberAssignment", "RegularExpression"),
)
COORDINATOR_RECORDS = {
    *("OffsetCommitKey", "OffsetCommitValue", "GroupMetadataKey", "GroupMetadataValue"),
    *("TransactionLogKey", "TransactionLogValue"),
    *(f"ConsumerGroup{thing}{half}" for thing in CONSUMER_GROUP for half in ("Key", "Value")),
}
HEADER = "# Facts of the Kafka protocol, written by tools/kafka_schema.py, which says how to read them.\n"


def main(jars: list[str]) -> int:
    if not jars:
        print(__doc__, file=sys.stderr)
        return 2
    messages = [message for jar in jars for message in definitions(Path(jar))]
    messages.sort(key=lambda message: (message.get("apiKey", 1000), KINDS[message["type"]], message["name"]))
    TABLE.write_text(HEADER + "".join("\n".join(lines(message)) + "\n" for message in messages), encoding="utf-8")
    print(f"{TABLE}: {len(messages)} messages")
    return 0


def definitions(jar: Path) -> Iterator[dict[str, Any]]:
    """The messages of a jar that still have a version. The files are JSON with `//` comments on lines of their own."""
    with zipfile.ZipFile(jar) as archive:
        for name in archive.namelist():
            if not re.fullmatch(r"common/message/\w+\.json", name):
                continue
            text = re.sub(r"^\s*//.*$", "", archive.read(name).decode(), flags=re.MULTILINE)
            message: dict[str, Any] = json.loads(text)
            wanted = not message["type"].startswith("coordinator") or message["name"] in COORDINATOR_RECORDS
            if wanted and message["validVersions"] != "none":
                yield message


def lines(message: dict[str, Any]) -> Iterator[str]:
    key = message.get("apiKey", "-")
    flexible = message.get("flexibleVersions", "none")
    yield f"message {message['type']} {key} {message['name']} {message['validVersions']} flexible={flexible}"
    yield from fields(message["fields"], "  ")
    for struct in message.get("commonStructs", []):
        yield f"  struct {struct['name']}"
        yield from fields(struct["fields"], "    ")


def fields(definitions: list[dict[str, Any]], indent: str) -> Iterator[str]:
    for field in definitions:
        words = [field["name"], field["type"], field.get("versions", field.get("taggedVersions"))]
        if "nullableVersions" in field:
            words.append(f"null={field['nullableVersions']}")
        if "tag" in field:
            words.append(f"tag={field['tag']}@{field['taggedVersions']}")
        if field.get("default") is not None:  # to Kafka's generator a null without quotation marks is no default
            words.append(f"default={field['default']}")
        if "flexibleVersions" in field:
            words.append(f"flexible={field['flexibleVersions']}")
        if field.get("ignorable") in (True, "true"):
            words.append("ignorable")
        yield indent + " ".join(words)
        yield from fields(field.get("fields", []), indent + "  ")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
