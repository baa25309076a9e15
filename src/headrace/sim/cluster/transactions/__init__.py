"""Transactions in simulated clusters: producers and readers, their history, and the judges of it."""
