"""Campaigns: their bugs, their equipment, their results."""
