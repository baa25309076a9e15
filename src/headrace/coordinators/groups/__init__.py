"""Classic consumer groups: membership in generations, and committed offsets.

`machine.step` applies one event to a group. `replay.Replay` rebuilds all groups from their records, whose form in the
log is in `records`. Never does IO: appends, answers and timers come out as effects.
"""
