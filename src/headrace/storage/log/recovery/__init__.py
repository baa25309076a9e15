"""Recovery of a partition's directory, and what becomes of damage."""
