"""Replicas that begin behind durable history, and leaders whose logs give way to it: workload, judge, nemesis."""
