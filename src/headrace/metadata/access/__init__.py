"""Who may do what, and how much, as cluster state."""
