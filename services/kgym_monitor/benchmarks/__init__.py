"""Benchmarks: what agents made of bugs, as figures, views and comparisons."""
