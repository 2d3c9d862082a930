"""Crashes of the kernel: what it printed, and where in the source that was."""
