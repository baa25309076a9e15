"""The functions that run in Redis, their keys, and a model of them."""
