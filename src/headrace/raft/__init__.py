"""Agreement on the order of commit-log entries. `core.Raft` is stepped with events and answers with what must be
persisted, what may be sent and what is committed; it never touches a disk, a socket, a clock or chance of its own."""
