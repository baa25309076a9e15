"""Sockets: the listener that serves frames, and the client. The meaning of a frame is known in `wire`, not here."""
