"""Traces of kernels as pages show them: trees of calls on an axis of time, and whole traces."""
