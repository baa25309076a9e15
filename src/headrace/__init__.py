"""Headrace: a distributed log that speaks the Kafka protocol and keeps its history as open files."""

__version__ = "0.1.0"
