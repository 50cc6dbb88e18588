"""Snapshots."""
