"""Environments built from what people have: Dockerfiles, directories, toolkits, images.

A builder is a client like any other: it runs steps in sandboxes, has what they wrote
packed as layers, and names the stack.
"""
