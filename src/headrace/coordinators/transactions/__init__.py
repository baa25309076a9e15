"""Transactions (KIP-98, KIP-890, KIP-939): which producer may write under a transactional id, and what becomes of its
transaction.

`machine.step` applies one event to one transactional id. `replay.Replay` rebuilds all of a partition from its records,
whose form in the log is in `records`. `views` answers DescribeTransactions and ListTransactions. Never does IO: what is
to be appended, sent, answered and waited for comes out as effects. docs/rooms/coordinators.md says what a driver does.
"""
