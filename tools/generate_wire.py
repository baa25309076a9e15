"""Write the codecs in `src/headrace/wire/messages` from `tools/kafka_messages.txt`.

    python tools/generate_wire.py [--check]

To speak another API, add its name to `APIS` and run this. `--check` writes nothing and fails where the checked-in
modules are not what the table says.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools.wiregen.modules import catalog_text, module_text  # noqa: E402 - needs the path above when run as a script
from tools.wiregen.table import Message, read_table, snake  # noqa: E402 - likewise

MESSAGES: Final = ROOT / "src/headrace/wire/messages"
PACKAGE: Final = '"""The messages of the Kafka protocol, a module each. Generated: see tools/generate_wire.py."""\n'

APIS: Final = (
    *("Produce", "Fetch", "ListOffsets", "Metadata", "OffsetCommit", "OffsetFetch", "FindCoordinator", "JoinGroup"),
    *("Heartbeat", "LeaveGroup", "SyncGroup", "DescribeGroups", "ListGroups", "ApiVersions", "CreateTopics"),
    *("DeleteTopics", "DeleteRecords", "InitProducerId", "OffsetForLeaderEpoch", "DescribeConfigs", "AlterConfigs"),
    *("IncrementalAlterConfigs", "CreatePartitions", "DescribeCluster", "DescribeTopicPartitions", "DescribeLogDirs"),
    *("DescribeProducers", "DeleteGroups", "DescribeQuorum", "Envelope", "UnregisterBroker", "AddRaftVoter"),
    *("RemoveRaftVoter", "ElectLeaders", "AlterPartitionReassignments", "ListPartitionReassignments", "OffsetDelete"),
    *("DescribeClientQuotas", "AlterClientQuotas", "ListConfigResources", "DescribeUserScramCredentials"),
    *("ConsumerGroupHeartbeat", "ConsumerGroupDescribe", "AlterReplicaLogDirs", "UpdateFeatures", "SaslHandshake"),
    *("SaslAuthenticate", "DescribeAcls", "CreateAcls", "DeleteAcls", "AlterUserScramCredentials"),
    *("CreateDelegationToken", "RenewDelegationToken", "ExpireDelegationToken", "DescribeDelegationToken"),
    *("DescribeTransactions", "ListTransactions", "AddPartitionsToTxn", "AddOffsetsToTxn", "EndTxn", "TxnOffsetCommit"),
    *("WriteTxnMarkers",),
)
CONSUMER_GROUP: Final = (
    *("Metadata", "PartitionMetadata", "MemberMetadata", "TargetAssignmentMetadata"),
    *("TargetAssignmentMember", "CurrentMemberAssignment", "RegularExpression"),
)
RECORDS: Final = (
    *("ConsumerProtocolSubscription", "ConsumerProtocolAssignment"),
    *("OffsetCommitKey", "OffsetCommitValue", "GroupMetadataKey", "GroupMetadataValue"),
    *(f"ConsumerGroup{thing}{half}" for thing in CONSUMER_GROUP for half in ("Key", "Value")),
    *("TransactionLogKey", "TransactionLogValue"),
)


def generate() -> dict[str, str]:
    """The text of every generated module, by its file's name."""
    messages = read_table()
    by_name: dict[str, Message] = {message.root.name: message for message in messages}
    files = {"__init__.py": PACKAGE, "catalog.py": catalog_text(messages, set(APIS))}
    for name in APIS:
        pair = [by_name[f"{name}Request"], by_name[f"{name}Response"]]
        files[f"{snake(name)}.py"] = module_text(f"{name}, API key {pair[0].key}", pair)
    for name in RECORDS:
        files[f"{snake(name)}.py"] = module_text(name, [by_name[name]])
    return files


def main(arguments: list[str]) -> int:
    files = generate()
    present = {path.name: path.read_text(encoding="utf-8") for path in MESSAGES.glob("*.py")}
    stale = sorted(name for name in files.keys() | present.keys() if files.get(name) != present.get(name))
    if "--check" in arguments:
        for name in stale:
            print(f"{MESSAGES / name} is not what the table says: run tools/generate_wire.py", file=sys.stderr)
        return 1 if stale else 0
    for name in stale:
        if name in files:
            (MESSAGES / name).write_text(files[name], encoding="utf-8")
        else:
            (MESSAGES / name).unlink()
    print(f"{len(files)} modules, {len(stale)} changed")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
