"""Variants: programs close to the reproducer, run on the patched kernel."""
