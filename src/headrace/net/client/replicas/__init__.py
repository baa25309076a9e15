"""Requests about the replicas of partitions: where they are, which one leads, and how far each is."""
