"""Replication: followers copy from leaders, and leaders propose in-sync replicas."""
