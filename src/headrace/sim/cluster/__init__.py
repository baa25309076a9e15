"""Whole clusters on virtual time: hosts, the network between them, a workload, faults, and judges."""
