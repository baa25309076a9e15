"""Replays of topics into other topics."""
