"""Reads of one log: look-ups, and what is kept in memory for readers."""
