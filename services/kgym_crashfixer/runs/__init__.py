"""Runs: searches that use a model and a platform, are stored as they proceed, and can resume."""
