"""Campaigns: agents on bugs, so many attempts each, carried out once whatever is killed."""
