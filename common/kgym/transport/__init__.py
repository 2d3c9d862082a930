"""What lies between scheduler and workers: stored files and messages."""
