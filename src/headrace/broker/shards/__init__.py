"""Shards of internal topics: what coordinators of groups and of transactions have in common.

Each partition of such a topic that this broker leads is a shard. Its log is read and its state machines are driven.
Their records are written, and answers wait until these are durable.
"""
