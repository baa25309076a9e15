"""The records of replicated partitions in simulated clusters: clients, their history, and judges."""
