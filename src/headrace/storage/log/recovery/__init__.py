"""Recovery of a partition's directory, and the handling of damage."""
