"""The records of replicated partitions in simulated clusters: clients, judges, and what they are told."""
