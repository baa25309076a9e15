"""Agreement on the order of commit-log entries. A core is stepped with events and answers with what must be persisted
and what is committed; it never touches a disk or a socket. Today's core is the sole voter of a cluster of one."""
