"""Benchmarks as they are published: bugs by what is known of them, and agents' attempts."""
