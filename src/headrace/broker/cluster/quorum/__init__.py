"""The parts of the metadata driver: what goes to the disk, what is applied, what is pending, who is there."""
