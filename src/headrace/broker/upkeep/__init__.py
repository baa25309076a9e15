"""Upkeep of the local logs: compaction, examination, retention, and reports."""
