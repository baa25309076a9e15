"""Brokers on a simulated Redis, which runs the model of the functions: its faults, its judge, and planted bugs."""
