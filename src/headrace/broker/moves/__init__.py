"""Moves of partitions between brokers: the old owner hands over, the new owner takes over."""
