"""Agreement on the order of commit-log entries. `core.Raft` takes events and returns what to persist, what to send and
what is committed. It never touches a disk, a socket or a clock, and has no randomness of its own."""
