"""This machine: running programs, sandboxes, cached folders, cores and memory."""
