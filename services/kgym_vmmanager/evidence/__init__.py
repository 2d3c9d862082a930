"""Evidence that a guest could have reported the bug, and that the program did its work."""
