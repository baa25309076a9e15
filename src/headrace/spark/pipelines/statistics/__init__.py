"""Statistics of topics."""
