"""Kernel sources: from where they may come, fetched, unpacked."""
