"""The simulator: a shipped broker on virtual time, on a network and a disk that fail as real ones do, from one seed.

The same seed gives the same run to the letter. Nothing here is a stand-in for a part of the broker: only the ports
of `headrace.base.ports` and the event loop are replaced.
"""
