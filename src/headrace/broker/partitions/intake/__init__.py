"""Takes batches of clients for partitions that this broker leads: checks them, orders them, or carries them on."""
