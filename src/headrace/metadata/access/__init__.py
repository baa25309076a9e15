"""Rights and quotas of clients, as cluster state."""
