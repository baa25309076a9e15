"""The transaction coordinator of this broker, and what leaders of partitions do for transactions."""
