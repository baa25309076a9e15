"""Decides how the cluster's state shall change: (image, request) -> events, or a refusal.

Promises: nothing is changed here, and the same image and request give the same events. It never does IO.
"""
