"""Identities and rights of clients, decided on values alone."""
