"""The work of the commands, loaded only when a command runs."""
