"""The write side of ``format("headrace")``: rows packed into batches and delivered to brokers."""
