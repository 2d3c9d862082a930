"""What runs in a guest, and the ways to talk to it."""
