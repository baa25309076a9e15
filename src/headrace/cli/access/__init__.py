"""Commands for users and their rights."""
