"""Campaigns: attempts of agents on bugs, each made once, even if processes are killed."""
