"""Requests before and beside their handlers: dispatch, quotas, fetch sessions, and answers that several APIs share."""
