"""The audit of durable history."""
