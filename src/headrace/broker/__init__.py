"""The shell: it carries out the decisions of the cores. It has the handlers, the drivers, the waiting requests, and the
start."""
