"""Commands about settings: configs, quotas and contexts."""
