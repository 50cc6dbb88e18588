"""The node service."""
