"""Bundles of bugs, and their source trees."""
