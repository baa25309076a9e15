"""Decisions on the rights and quotas of clients."""
