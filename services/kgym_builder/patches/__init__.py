"""Patches on a kernel tree: what they change, worked out where it can do no harm."""
