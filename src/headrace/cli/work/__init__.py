"""What the commands do, loaded only when a command runs."""
