"""The commit log in Redis, and the lease of its writer."""
