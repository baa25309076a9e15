"""Durable history: its export, its retention, its merging, and reads from it."""
