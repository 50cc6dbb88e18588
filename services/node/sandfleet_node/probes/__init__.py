"""Trying what the kernel does, without leaving anything; loaded quickly, needs only Python."""
