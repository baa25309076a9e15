"""Bytes <-> frozen messages: the Kafka protocol's frames, headers, messages, error codes and record batches. Sans-IO.

Wrong bytes raise `DecodeError` (a `CorruptData`), whatever they are; what is decoded holds views of the bytes, never
copies of records. `headrace.wire.messages` is generated: CONTRIBUTING.md says how to add an API.
"""
