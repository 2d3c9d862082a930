"""The REST interface, and the limits and checks before it."""
