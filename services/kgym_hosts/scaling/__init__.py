"""Automatic scaling: decisions without I/O, and their simulation."""
