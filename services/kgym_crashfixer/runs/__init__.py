"""Runs: a search that asks a model and a platform, is stored as it goes, and can go on."""
