"""The programs in a guest, and the ways to talk to it."""
