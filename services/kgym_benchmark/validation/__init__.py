"""Bugs are tried on their own kernels, before agents are."""
