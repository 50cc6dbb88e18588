"""Sandfleet: sandboxes for agents in training and evaluation."""
