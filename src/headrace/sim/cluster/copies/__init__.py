"""Replicas that begin behind durable history, and leaders that discard their log for it: workload, judge, nemesis."""
