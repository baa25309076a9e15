"""Compaction of one log: when it is due, which records stay, and how cleaned files replace segments."""
