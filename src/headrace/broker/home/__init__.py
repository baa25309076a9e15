"""A broker's own disk, read before it serves: its identity, its directories, and the addresses of other brokers."""
