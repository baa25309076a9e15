"""Consumer groups of the new protocol (KIP-848): the coordinator assigns partitions, and each member adopts its new
assignment at its own pace.

- `heartbeats` applies heartbeats to one group.
- `assignors` distribute partitions.
- `reconciliation` brings a member to its assignment without a partition ever having two owners.
- `changes` gives the records for a change; `records` and `replay` write them and read them back.

A group is a value here. `machine` connects it to the one machine for all groups.
"""
