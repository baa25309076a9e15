"""Charts: the last hour from memory, and more from Prometheus where the console knows one."""
