"""Sockets: the listener that serves frames, and the client. What a frame means is not known here but in `wire`."""
