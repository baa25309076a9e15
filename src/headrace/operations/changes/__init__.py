"""Changes of a cluster, each by a plan: what would happen, the command that does the same, and what carries it out.

Promises: a plan changes nothing. Two plans have one digest where they ask for the same, and would have the same effect.
A caller makes a plan again before it is carried out, and compares the digests.
"""
