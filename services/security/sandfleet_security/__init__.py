"""The security service."""
