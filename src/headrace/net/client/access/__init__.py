"""Administers who may do what: ACLs, and the SCRAM credentials of users."""
