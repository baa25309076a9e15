"""Compaction of one log: what is due, what is kept, and how cleaned files take the place of segments."""
