"""Exactly-once writes: tasks prepare transactions, and the driver ends them (docs/decisions/0056)."""
