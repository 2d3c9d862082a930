"""Crashes of the kernel: reports from console logs, and their source lines."""
