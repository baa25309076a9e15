"""Hand-overs of partitions, with faults of brokers, networks and the durable store: workload, judges, nemesis."""
