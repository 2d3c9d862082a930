"""Answers about kernels' sources."""
