"""How open pages hear of changes: one subscription to the scheduler for all of them."""
