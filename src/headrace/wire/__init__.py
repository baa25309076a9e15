"""Converts bytes to frozen messages and back: the Kafka protocol's frames, headers, messages, error codes and record
batches. Sans-IO.

Wrong bytes of any kind raise `DecodeError` (a `CorruptData`). Decoded messages hold views of the bytes and never copies
of records. `headrace.wire.messages` is generated: CONTRIBUTING.md says how to add an API.
"""
