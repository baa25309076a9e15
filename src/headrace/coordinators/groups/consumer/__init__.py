"""Consumer groups of the new protocol (KIP-848): the coordinator decides who reads what, and each member goes there at
its own pace.

`heartbeats` takes one group from heartbeat to heartbeat, `assignors` share partitions out, `reconciliation` brings a
member to its share without a partition ever having two owners, `changes` says what the log has to hold for it, and
`records` and `replay` are the way into the log and back. A group is a value here; `machine` has it kept by the one
machine that all groups have.
"""
