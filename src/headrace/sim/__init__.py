"""The simulator: runs a shipped broker on virtual time from one seed, with a network and a disk that fail like real
ones.

One seed always gives exactly one run. Only the ports of `headrace.base.ports` and the event loop are replaced; every
other part of the broker is the real one.
"""
