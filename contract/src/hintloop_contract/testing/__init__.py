"""Fakes for unit tests; nothing here runs in production."""
