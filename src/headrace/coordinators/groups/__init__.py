"""Classic consumer groups: membership in generations, and committed offsets.

`machine.step` takes one group from event to event; `replay.Replay` rebuilds all from their records; `records` is
the records' form in the log. Never does IO: what is to be appended, answered or waited for comes out as effects.
"""
