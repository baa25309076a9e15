"""Reads of one log: look-ups, and batches kept in memory for readers."""
