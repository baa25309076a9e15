"""Hand-overs of partitions, under faults of brokers, networks and the durable store: workload, judges, nemesis."""
