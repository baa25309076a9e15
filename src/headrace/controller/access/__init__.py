"""Decisions on who may do what, and how much."""
