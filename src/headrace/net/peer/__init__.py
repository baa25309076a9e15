"""Connections between brokers: messages of the quorum, and copies of partitions."""
