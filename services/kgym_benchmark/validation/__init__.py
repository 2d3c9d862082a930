"""Validation: bugs are tried on their own kernels before agents are measured on them."""
