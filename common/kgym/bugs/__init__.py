"""Bugs, and what runs of their reproducers prove. Pure, except for reading bundles."""
