"""Whole clusters on virtual time: hosts, the network between them, a workload, what breaks them, and the judges."""
